"""Sampling: the embedded engine beside Hugging Face's `generate` and Tunix's sampler, on one core, interleaved.

    .venv/bin/python benchmarks/engine.py
    .venv/bin/python benchmarks/engine.py --rounds 11 --shapes tiny:64x16-64+64:1024 --group 8 --json out.json

All get the same checkpoint (written by orchestra_jax, read by each library's own loader) and the same prompts of
different lengths, in fp32, and sample the same number of tokens for every prompt at temperature 1 from the whole
vocabulary; nothing ends early. Every peer is a process of its own with one thread on one core; after warm-up the
processes take their rounds in turn, so that whatever else the machine does meets all of them alike. The first greedy
token of every prompt must agree between the peers, or the run says so and exits with 1.
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from peer import OURS, TORCH, TUNIX, Peer, Worker, save_model, take_turns
from rich.console import Console
from rich.table import Table
from short import keep, machine, parse, table, wide_console

SHAPES = ("tiny:64x16-64+64:1024", "tiny:16x16-64+64:32768", "small:16x32-128+64:1024")
TARGET = 1.5  # tokens per second against `generate`
FIRST_ID = 1  # 0 is the padding


@dataclass(frozen=True)
class Shape:
    """MODEL:ROWSxSHORTEST-LONGEST+NEW:VOCABULARY, for example tiny:64x16-64+64:1024."""

    model: str
    rows: int
    shortest: int
    longest: int
    new: int
    vocab: int

    @classmethod
    def parse(cls, text: str) -> Self:
        found = re.fullmatch(r"(.+):(\d+)x(\d+)-(\d+)\+(\d+):(\d+)", text)
        if not found:
            raise argparse.ArgumentTypeError(f"{text!r} is no shape: write MODEL:ROWSxSHORTEST-LONGEST+NEW:VOCABULARY.")
        shape = cls(found[1], *map(int, found.groups()[1:]))
        if not (shape.rows > 0 and 0 < shape.shortest <= shape.longest and shape.new > 0 and shape.vocab > FIRST_ID):
            raise argparse.ArgumentTypeError(f"{text!r}: sizes must be positive, and SHORTEST at most LONGEST.")
        return shape

    def __str__(self) -> str:
        return f"{self.model}:{self.rows}x{self.shortest}-{self.longest}+{self.new}:{self.vocab}"


PEERS = {
    "ours": Peer("orchestra_jax embedded engine", *OURS, "sampler.py", ("ours",)),
    "torch": Peer("transformers generate", *TORCH, "sampler.py", ("torch",)),
    "tunix": Peer("Tunix sampler", *TUNIX, "sampler.py", ("tunix",)),
}


def _write_work(shape: Shape, group: int, folder: Path) -> int:
    """Checkpoint and prompts of a shape, for all peers; returns the number of parameters."""
    params = save_model(folder, shape.model, shape.vocab)
    random = np.random.default_rng(0)
    lengths = np.linspace(shape.shortest, shape.longest, -(-shape.rows // group)).astype(int)
    distinct = [random.integers(FIRST_ID, shape.vocab, length).tolist() for length in random.permutation(lengths)]
    prompts = [distinct[row // group] for row in range(shape.rows)]
    (folder / "work.json").write_text(json.dumps({"prompts": prompts, "new": shape.new}))
    return params


def _measure(shape: Shape, args: argparse.Namespace, keys: Sequence[str], console: Console) -> dict[str, Any]:
    """Medians per peer; a peer that dies is reported and left out."""
    with tempfile.TemporaryDirectory(prefix="engine_") as name:
        params = _write_work(shape, args.group, Path(name))
        peers = [PEERS[key] for key in keys]
        workers = take_turns(peers, Path(name), args.rounds, args.core, str(shape), console)
    found = {worker.peer.options[0]: _summary(worker, shape) for worker in workers}
    return {"shape": asdict(shape), "name": str(shape), "params": params, "group": args.group, "peers": found}


def _summary(worker: Worker, shape: Shape) -> dict[str, Any]:
    """Medians of one peer.

    Raises:
        RuntimeError: it sampled another number of tokens than it was asked for.
    """
    wanted = shape.rows * shape.new
    if any(found["tokens"] != wanted for found in worker.rounds):
        raise RuntimeError(f"{worker.peer.name} sampled {worker.rounds[0]['tokens']} tokens instead of {wanted}.")
    speeds = [wanted / found["wall_s"] for found in worker.rounds]
    return {
        "tokens_per_s": statistics.median(speeds),
        "tokens_per_s_range": [min(speeds), max(speeds)],
        "wall_s": statistics.median(found["wall_s"] for found in worker.rounds),
        "cpu_s": statistics.median(found["cpu_s"] for found in worker.rounds),
        "peak_rss_gib": worker.rounds[-1]["peak_rss_gib"],
        **worker.ready,
    }


def _ratios(result: Mapping[str, Any], quantity: str) -> dict[str, float]:
    """How many times as fast the embedded engine is as each peer, by "wall_s" or "cpu_s"."""
    peers = result["peers"]
    return {key: peer[quantity] / peers["ours"][quantity] for key, peer in peers.items()} if "ours" in peers else {}


def _table(results: Sequence[Mapping[str, Any]], rounds: int) -> Table:
    made = table(
        f"Sampled tokens per second on one core, median of {rounds} (range); above 1: ours is faster",
        ["shape", "sampler"],
        ["tokens/s", "range", "wall s", "CPU s", "ours / it", "by CPU", "GiB"],
    )
    for result in results:
        wall, cpu = _ratios(result, "wall_s"), _ratios(result, "cpu_s")
        for i, (key, peer) in enumerate(result["peers"].items()):
            made.add_row(
                f"{result['name']}\n{result['params'] / 1e6:.1f} M parameters" if i == 0 else "",
                PEERS[key].name,
                f"{peer['tokens_per_s']:.0f}",
                "{:.0f}-{:.0f}".format(*peer["tokens_per_s_range"]),
                f"{peer['wall_s']:.3f}",
                f"{peer['cpu_s']:.3f}",
                f"{wall[key]:.2f}" if wall else "-",
                f"{cpu[key]:.2f}" if cpu else "-",
                f"{peer['peak_rss_gib']:.2f}",
                end_section=i == len(result["peers"]) - 1,
            )
    return made


NOTES = f"""Shapes are MODEL:ROWSxSHORTEST-LONGEST+NEW:VOCABULARY. Models are orchestra_jax presets, embeddings tied:
  tiny 3 layers, width 96, MLP 256, 4 heads and 2 key-value heads of 24; small 6, 256, 704, 8 and 4 of 32.
orchestra_jax: returns the log-prob of every token too; one slot per prompt. With --group N, N rows share a prompt,
  which the engine runs once. transformers: one left-padded batch, SDPA, dynamic cache. Tunix: one left-padded batch,
  its jitted loop. Goal: at least {TARGET} times the tokens/s of transformers."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", type=Shape.parse, default=[Shape.parse(text) for text in SHAPES])
    parser.add_argument("--group", type=int, default=1, help="rows with the same prompt (default 1)")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds per sampler, at least 5 to report")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument(
        "--core", type=int, default=max(os.sched_getaffinity(0)), help="the CPU core everything runs on"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured here")
    args = parse(parser, "--shapes", "tiny:2x4-4+4:64", "--rounds", "1")
    if args.rounds < 1 or args.group < 1:
        parser.error("--rounds and --group must be at least 1.")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    console = wide_console()
    wanted = [key for key in PEERS if key in args.peers and PEERS[key].is_there(console)]
    if not wanted:
        return 1
    results = [_measure(shape, args, wanted, console) for shape in args.shapes]
    console.print(_table(results, args.rounds))
    console.print(NOTES, highlight=False, soft_wrap=True)
    if args.json:
        for result in results:
            result["ours_times_as_fast"] = {quantity: _ratios(result, quantity) for quantity in ("wall_s", "cpu_s")}
        keep(args.json, {**machine(), "results": results})
    wrong = [
        result["name"]
        for result in results
        if len({str(peer["first_greedy"]) for peer in result["peers"].values()}) > 1
    ]
    for name in wrong:
        console.print(f"[red]The first greedy tokens of {name} differ: the samplers did not do the same.[/red]")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
