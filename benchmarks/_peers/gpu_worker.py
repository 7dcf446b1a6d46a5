"""What the two processes of `gpu_step.py` share: the job they read, the batch, and how a step is timed. NumPy only."""

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from worker import claim_stdout


@dataclass(frozen=True)
class Job:
    """One measurement, as JSON in argv[1].

    Attributes:
        config: Hugging Face's config.json of the model.
        row_tokens: tokens of a step.
        sequences: equally long sequences that they divide into.
        response: tokens of each sequence that carry loss, at its end.
        chunk: tokens whose logits exist at once.
        steps: measured steps.
        master: dtype of the parameters; with "float32" products still run in bf16.
        attention: of orchestra_jax: "cudnn" or "xla".
        compile: whether PyTorch compiles its layers.
        device: "gpu" or "cpu".
    """

    config: Mapping[str, Any]
    row_tokens: int
    sequences: int
    response: int
    chunk: int
    steps: int
    master: str
    attention: str
    compile: bool
    device: str

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.row_tokens // self.sequences

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens int32 [sequences, length], advantages [sequences], old log-probs [sequences, response]."""
        random, vocab = np.random.default_rng(0), int(self.config["vocab_size"])
        tokens = random.integers(0, vocab, (self.sequences, self.length), np.int32)
        old = random.normal(0.0, 0.3, (self.sequences, self.response)) - np.log(vocab)
        advantages = np.where(np.arange(self.sequences) % 2, -1.0, 1.0)
        return tokens, advantages.astype(np.float32), old.astype(np.float32)


def run(build: Callable[[Job], tuple[Callable[[], float], Callable[[], float | None], Mapping[str, str]]]) -> None:
    """Measures one job and prints the result as one JSON line.

    Args:
        build: returns a step (waits until it is done, returns the loss), the peak device memory in bytes so far (None
            where unknown), and what to tell about the environment.
    """
    answers = claim_stdout()
    job = Job(**json.loads(sys.argv[1]))
    step, peak, about = build(job)
    began = time.perf_counter()
    first_loss = step()
    first = time.perf_counter() - began
    step()
    seconds = []
    for _ in range(job.steps):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    result = {
        "step_s": statistics.median(seconds),
        "range_s": [min(seconds), max(seconds)],
        "first_step_s": first,
        "first_loss": first_loss,
        "peak_bytes": peak(),
        "about": dict(about),
    }
    answers.write(json.dumps(result) + "\n")
