"""What the benchmarked processes share: the batch they get, and the loop that answers the parent. NumPy only.

A worker is `python <peer>.py FOLDER [options]`. It builds what it measures, warms it up, says so, and then works once
per line on stdin, answering each with one JSON line on stdout. Whatever else the libraries print goes to stderr.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

CLIP = 0.2
LEARNING_RATE, WEIGHT_DECAY, B1, B2, MAX_GRAD_NORM = 1e-5, 0.01, 0.9, 0.95, 1.0
PAD_ID, EOS_ID = 0, 1  # never in a batch: every row is full, so that no peer computes on padding
FIRST_ID = 2


@dataclass(frozen=True)
class Batch:
    """B rows of P prompt and R response tokens; `group` consecutive rows share their prompt.

    Attributes:
        tokens: int32 [B, P + R].
        prompt: P.
        group: rows with the same prompt.
        advantages: float32 [B].
        old_logprobs: float32 [B, R], of the responses under the policy that sampled them.
    """

    tokens: np.ndarray
    prompt: int
    group: int
    advantages: np.ndarray
    old_logprobs: np.ndarray

    @classmethod
    def make(cls, rows: int, prompt: int, response: int, vocab: int, group: int, seed: int = 0) -> "Batch":
        """Random tokens; old log-probs scattered around those of an untrained policy, so that some ratios clip."""
        random = np.random.default_rng(seed)
        prompts = random.integers(FIRST_ID, vocab, (rows // group, prompt)).repeat(group, 0)
        tokens = np.concatenate([prompts, random.integers(FIRST_ID, vocab, (rows, response))], 1).astype(np.int32)
        advantages = np.where(np.arange(rows) % 2, -1.0, 1.0).astype(np.float32)
        old = (random.normal(0.0, 0.3, (rows, response)) - np.log(vocab)).astype(np.float32)
        return cls(tokens, prompt, group, advantages, old)

    def save(self, folder: Path) -> None:
        np.savez(folder / "batch.npz", **vars(self))

    @classmethod
    def load(cls, folder: Path) -> "Batch":
        with np.load(folder / "batch.npz") as arrays:
            return cls(
                arrays["tokens"],
                int(arrays["prompt"]),
                int(arrays["group"]),
                arrays["advantages"],
                arrays["old_logprobs"],
            )


def claim_stdout() -> TextIO:
    """The real stdout, for answers; from now on everything else that is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def serve(answers: TextIO, ready: Mapping[str, Any], work: Callable[[int], Mapping[str, Any]]) -> None:
    """Says `ready`, then times `work(n)` once per line on stdin and answers with what it returns and cost."""
    answers.write(json.dumps(ready) + "\n")
    for number, _ in enumerate(sys.stdin):
        wall, cpu = time.perf_counter(), time.process_time()
        found = work(number)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        answers.write(json.dumps({**found, "cpu_s": cpu, "wall_s": wall, "peak_rss_gib": peak}) + "\n")


def serve_steps(build: Callable[[Path, Batch], Callable[[], Mapping[str, float]]], versions: Mapping[str, str]) -> None:
    """Builds the step of the folder in argv[1] and serves it.

    Args:
        build: returns a function that takes one optimizer step, waits until it is done and returns "loss" and
            "grad_norm" (before clipping).
        versions: of the libraries at work.
    """
    answers = claim_stdout()
    folder = Path(sys.argv[1])
    step = build(folder, Batch.load(folder))
    began = time.perf_counter()
    first = dict(step())
    compiled = time.perf_counter() - began
    for _ in range(2):
        step()
    ready = {"first": first, "first_step_s": compiled, "versions": dict(versions)}
    serve(answers, ready, lambda number: step())
