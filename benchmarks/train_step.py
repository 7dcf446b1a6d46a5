"""One GRPO update: orchestra_jax beside PyTorch + transformers and beside Tunix, on one core, interleaved.

    .venv/bin/python benchmarks/train_step.py
    .venv/bin/python benchmarks/train_step.py --rounds 11 --shapes small:16x64+128:1024 --json out.json

All get the same checkpoint (written by orchestra_jax in Hugging Face format, read by each library's own loader) and the
same batch, in fp32, with AdamW and gradient clipping, the clipped surrogate averaged over tokens, no KL, old log-probs
given. Every peer is a process of its own with one thread on one core; after warm-up the processes take their steps in
turn, so that whatever else the machine does meets all of them alike. Time is CPU seconds of the process, all threads.
The first step's loss and gradient norm must agree between the peers, or the run says so and exits with 1.
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from peer import HERE, OURS, TORCH, TUNIX, Peer, Worker, save_model, take_turns
from rich.console import Console
from rich.table import Table
from short import keep, machine, parse, table, wide_console

SHAPES = ("small:16x64+128:1024", "tiny:16x64+128:32768", "small:8x64+448:1024", "tiny:8x64+448:32768")
GROUP = 8
AGREEMENT = 1e-3  # of losses and gradient norms between the peers, relative; fp32 sums in another order differ by 1e-5


@dataclass(frozen=True)
class Shape:
    """MODEL:ROWSxPROMPT+RESPONSE:VOCABULARY, for example small:16x64+128:1024."""

    model: str
    rows: int
    prompt: int
    response: int
    vocab: int

    @classmethod
    def parse(cls, text: str) -> Self:
        found = re.fullmatch(r"(.+):(\d+)x(\d+)\+(\d+):(\d+)", text)
        if not found:
            raise argparse.ArgumentTypeError(f"{text!r} is no shape: write MODEL:ROWSxPROMPT+RESPONSE:VOCABULARY.")
        rows, prompt, response, vocab = map(int, found.groups()[1:])
        if rows % GROUP or prompt < 2 or response < 1 or vocab < 8:
            raise argparse.ArgumentTypeError(
                f"{text!r}: rows must be a multiple of {GROUP}, with at least 2 prompt and 1 response tokens."
            )
        return cls(found[1], rows, prompt, response, vocab)

    def __str__(self) -> str:
        return f"{self.model}:{self.rows}x{self.prompt}+{self.response}:{self.vocab}"


def _peers(vocab_block: int) -> dict[str, Peer]:
    options = ("--vocab-block", str(vocab_block))
    return {
        "shared": Peer("orchestra_jax, prompt shared", *OURS, "ours.py", ("--share-prefix", *options)),
        "ours": Peer("orchestra_jax, same work", *OURS, "ours.py", options),
        "torch": Peer("PyTorch + transformers", *TORCH, "pytorch.py"),
        "tunix": Peer("Tunix GRPO", *TUNIX, "tunix_grpo.py"),
    }


def _write_shape(shape: Shape, folder: Path) -> int:
    """Checkpoint and batch of a shape, for all peers; returns the number of parameters."""
    sys.path.insert(0, str(HERE / "_peers"))
    from worker import Batch

    params = save_model(folder, shape.model, shape.vocab)
    Batch.make(shape.rows, shape.prompt, shape.response, shape.vocab, GROUP).save(folder)
    return params


def _measure(shape: Shape, peers: Sequence[Peer], rounds: int, core: int, console: Console) -> dict[str, Any]:
    """Medians per peer; a peer that dies is reported and left out."""
    with tempfile.TemporaryDirectory(prefix="train_step_") as name:
        folder = Path(name)
        params = _write_shape(shape, folder)
        workers = take_turns(peers, folder, rounds, core, str(shape), console)
    return {
        "shape": str(shape),
        "params": params,
        "peers": {worker.peer.name: _summary(worker) for worker in workers},
    }


def _summary(worker: Worker) -> dict[str, Any]:
    def median(name: str) -> float:
        return statistics.median(step[name] for step in worker.rounds)

    cpu = [step["cpu_s"] for step in worker.rounds]
    return {
        "cpu_s": median("cpu_s"),
        "cpu_s_range": [min(cpu), max(cpu)],
        "wall_s": median("wall_s"),
        "peak_rss_gib": worker.rounds[-1]["peak_rss_gib"],
        **worker.ready,
    }


def _disagreement(result: Mapping[str, Any]) -> str | None:
    """What differs between the peers' first steps by more than rounding, or None."""
    for name in ("loss", "grad_norm"):
        values = [peer["first"][name] for peer in result["peers"].values()]
        if values and max(values) - min(values) > AGREEMENT * max(map(abs, values)):
            return f"{result['shape']}: {name} of the first step: {values}"
    return None


def _table(result: Mapping[str, Any], rounds: int) -> Table:
    made = table(
        f"{result['shape']}, {result['params'] / 1e6:.1f} M parameters, {rounds} rounds",
        ["step"],
        ["CPU s, median", "range", "to ours, same work", "wall s", "first step s", "peak GiB"],
    )
    peers = result["peers"]
    base = next((row["cpu_s"] for name, row in peers.items() if name.endswith("same work")), None)
    for name, row in peers.items():
        made.add_row(
            name,
            f"{row['cpu_s']:.3f}",
            "{:.3f}-{:.3f}".format(*row["cpu_s_range"]),
            "-" if base is None else f"{row['cpu_s'] / base:.2f}",
            f"{row['wall_s']:.3f}",
            f"{row['first_step_s']:.1f}",
            f"{row['peak_rss_gib']:.2f}",
        )
    return made


NOTES = """A ratio above 1 is slower than our same-work step.
Shapes are MODEL:ROWSxPROMPT+RESPONSE:VOCABULARY; models are orchestra_jax presets with tied embeddings:
  tiny 3 layers, width 96, MLP 256, 4 heads and 2 key-value heads of 24; small 6, 256, 704, 8 and 4 of 32.
"prompt shared" runs each prompt once for its group of 8, as orchestra_jax trains; "same work" runs it in every row.
PyTorch: eager; causal SDPA, logits of response positions only, fused AdamW, no entropy and no other metrics.
Tunix: its trainer's jitted step alone, without its loop; logits of all positions; entropy and ratio metrics.
orchestra_jax: entropy, ratio and mismatch metrics; transfer of the batch and metrics on the host are in the time."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", type=Shape.parse, default=[Shape.parse(text) for text in SHAPES])
    parser.add_argument("--rounds", type=int, default=7, help="measured steps per peer and shape, at least 5 to report")
    parser.add_argument("--peers", nargs="+", choices=list(_peers(0)), default=list(_peers(0)))
    parser.add_argument("--vocab-block", type=int, default=512, help="ids whose logits our step holds at once")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="the CPU core all steps run on")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured here")
    args = parse(parser, "--shapes", "tiny:8x16+16:64", "--rounds", "1", "--peers", "shared", "torch", "tunix")
    if args.rounds < 1:
        parser.error("--rounds must be at least 1.")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    console = wide_console()
    wanted = [peer for key, peer in _peers(args.vocab_block).items() if key in args.peers and peer.is_there(console)]
    if not wanted:
        parser.error("no environment of any of the peers is there.")
    results = []
    for shape in args.shapes:
        results.append(_measure(shape, wanted, args.rounds, args.core, console))
        console.print(_table(results[-1], args.rounds))
    console.print(NOTES, highlight=False, soft_wrap=True)
    keep(args.json, {**machine(), "results": results})
    wrong = [text for text in map(_disagreement, results) if text]
    for text in wrong:
        console.print(f"[red]The peers did not do the same work: {text}[/red]", highlight=False)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
