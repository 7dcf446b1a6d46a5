"""The samplers of `engine.py`, each in its own environment: `python sampler.py FOLDER NAME`.

The folder holds a checkpoint and `work.json`: the prompts as lists of ids, and how many tokens to sample for each. A
sampler warms up, then samples once per line on stdin, answering each with one JSON line on stdout.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
from worker import claim_stdout, serve

PAD_ID = 0  # in no prompt: Tunix takes it out wherever it stands

# (new tokens, greedy, seed) -> the new tokens of every prompt
Sample = Callable[[int, bool, int], list[list[int]]]


def _ours(folder: Path, prompts: list[list[int]], new: int) -> Sample:
    from orchestra_jax.config.rollout import RolloutConfig, RolloutLimits
    from orchestra_jax.engines.base import SamplingParams
    from orchestra_jax.engines.embedded import EmbeddedEngine
    from orchestra_jax.models import checkpoint

    config, params = checkpoint.load(folder)
    longest = max(map(len, prompts))
    limits = RolloutLimits(max_length=longest + new)
    engine = EmbeddedEngine(config, params, RolloutConfig(slots=len(prompts), limits=limits))
    loop = asyncio.new_event_loop()  # an engine lives in one loop

    def sample(count: int, greedy: bool, seed: int) -> list[list[int]]:
        def params_of(row: int) -> SamplingParams:
            return SamplingParams(count, temperature=0.0 if greedy else 1.0, seed=seed * len(prompts) + row)

        async def all_rows() -> list[list[int]]:
            # No session: nothing is kept from one round to the next.
            rows = (engine.generate(prompt, params_of(row)) for row, prompt in enumerate(prompts))
            return [list(generation.token_ids) for generation in await asyncio.gather(*rows)]

        return loop.run_until_complete(all_rows())

    return sample


def _transformers(folder: Path, prompts: list[list[int]], new: int) -> Sample:
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    model = transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.eval()
    longest = max(map(len, prompts))
    tokens = torch.tensor([[PAD_ID] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = (tokens != PAD_ID).long()

    def sample(count: int, greedy: bool, seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        how = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        with torch.inference_mode():
            found = model.generate(
                tokens, attention_mask=mask, max_new_tokens=count, pad_token_id=PAD_ID, eos_token_id=None, **how
            )
        return found[:, longest:].tolist()

    return sample


def _tunix(folder: Path, prompts: list[list[int]], new: int) -> Sample:
    from tunix.generate.sampler import CacheConfig, Sampler
    from tunix_model import load

    class Tokenizer:
        """Prompts are ids written as text; the end of sequence is no id of the vocabulary."""

        def encode(self, text: str) -> list[int]:
            return [int(word) for word in text.split()]

        def decode(self, ids: Sequence[int]) -> str:
            return ""

        def bos_id(self) -> int:
            return 0  # none

        def eos_id(self) -> int:
            return int(config.vocab_size)

        def pad_id(self) -> int:
            return PAD_ID

    model, config = load(folder)
    longest = max(map(len, prompts))
    cache = CacheConfig(longest + new, config.num_layers, config.num_kv_heads, config.head_dim)
    sampler = Sampler(model, Tokenizer(), cache)
    texts = [" ".join(map(str, prompt)) for prompt in prompts]

    def sample(count: int, greedy: bool, seed: int) -> list[list[int]]:
        how = {} if greedy else {"temperature": 1.0, "top_p": 1.0}
        found = sampler(texts, count, max_prompt_length=longest, seed=seed, **how)
        return [np.asarray(row).tolist() for row in found.tokens]

    return sample


BUILD = {
    "ours": (_ours, ("jax",)),
    "torch": (_transformers, ("torch", "transformers")),
    "tunix": (_tunix, ("google-tunix", "flax", "jax")),
}


def main() -> None:
    folder, name = Path(sys.argv[1]), sys.argv[2]
    answers = claim_stdout()
    work = json.loads((folder / "work.json").read_text())
    build, libraries = BUILD[name]
    began = time.perf_counter()
    sample = build(folder, work["prompts"], work["new"])
    first = [row[0] for row in sample(1, True, 0)]
    for seed in (0, 1):
        sample(work["new"], False, seed)
    versions = {library: version(library) for library in libraries}
    ready = {"first_greedy": first, "warm_up_s": time.perf_counter() - began, "versions": versions}
    serve(answers, ready, lambda n: {"tokens": sum(map(len, sample(work["new"], False, n + 2)))})


if __name__ == "__main__":
    main()
