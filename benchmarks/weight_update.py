"""New weights into a running SGLang server: from a folder in memory, and from a folder on disk.

    .venv/bin/python benchmarks/weight_update.py
    .venv/bin/python benchmarks/weight_update.py --model tiny --vocab 1024 --rounds 3        # a smoke run
    .venv/bin/python benchmarks/weight_update.py --write-only                                # no server

Starts a real server on a random checkpoint and gives it new weights, the paths in turn, so that whatever else the
machine does meets all of them alike. Seconds are from the call until the server generates again under the new version,
which it must report; the pause is the part in which it does not generate. The folder on disk is read back while it is
still cached: that is the path's best case. Memory is what an update adds to this process at its highest, files in
shared memory included, and the highest of all of the server's processes together.

With several trainer processes the weights are gathered into host memory first. `--write-only` measures what then
writes them, in turns: from matrices that lie [in, out], as the learner has them, which the processor turns; and from
matrices that the devices turned before they travelled, as a run does it. Both are written by several threads, which
turn matrices block by block, and as it was before: one file after the other, each matrix turned as a whole.
"""

import argparse
import asyncio
import filecmp
import os
import resource
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peer import ROOT
from rich.console import Console
from rich.table import Table
from short import keep, machine, parse, table, wide_console

PATHS = {
    "memory": "folder in shared memory",
    "disk": "folder on disk",
}
GIB = 1 << 30
START_SECONDS = 1800


def _memory(pid: int, name: str) -> float:
    """GiB of a process: "VmRSS" now, or "VmHWM" at its highest since it was last reset."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found[0]) * 1024 / GIB if found else 0.0


def _reset_highest(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _descendants(ancestor: int) -> list[int]:
    """The running processes that a process started, and theirs."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended in between
    found = [ancestor]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def _round(weight_sync: Any, url: str, params: Any, version: int, folder: Path | None) -> dict[str, float]:
    """One update, with a connection of its own."""
    from orchestra_jax.io.http_json import JsonClient

    async def update() -> Any:
        client = JsonClient(url)
        try:
            return await weight_sync.sync([client], params, version)
        finally:
            await client.close()

    server = _descendants(os.getpid())  # we start nothing else
    for pid in (os.getpid(), *server):
        _reset_highest(pid)
    before, cpu = _memory(os.getpid(), "VmRSS"), resource.getrusage(resource.RUSAGE_SELF)
    report = asyncio.run(update())
    after = resource.getrusage(resource.RUSAGE_SELF)
    files = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / GIB if folder else 0.0
    return {
        "seconds": report.seconds,
        "paused_seconds": report.paused_seconds,
        "bytes": report.bytes,
        "cpu_s": after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime,
        "added_gib": _memory(os.getpid(), "VmHWM") - before + files,
        "server_gib": sum(_memory(pid, "VmHWM") for pid in server),
    }


def _measure(args: argparse.Namespace, work: Path, console: Console) -> dict[str, Any]:
    """All rounds of all paths against one server."""
    import jax

    from orchestra_jax.engines.sglang.process import ServerConfig, SGLangProcess
    from orchestra_jax.engines.sglang.weight_sync import DiskWeightSync
    from orchestra_jax.models.checkpoint import safetensors
    from orchestra_jax.models.decoder import init_params
    from orchestra_jax.models.qwen3 import Qwen3Config
    from orchestra_jax.models.sizes import num_params

    config = Qwen3Config.preset(
        args.model, param_dtype=args.dtype, **({"vocab_size": args.vocab} if args.vocab else {})
    )
    params = jax.jit(init_params, static_argnums=0)(config, jax.random.key(0))
    safetensors.save(work / "model", config, params)
    rounds: dict[str, list[dict[str, float]]] = {key: [] for key in args.paths}
    memory = Path(tempfile.mkdtemp(prefix="weight_update_", dir="/dev/shm"))
    syncs = {
        "memory": DiskWeightSync(config, memory),
        "disk": DiskWeightSync(config, work / "weights"),
    }
    flags = [f"--dtype={args.server_dtype}"]
    if not args.gpu:
        flags += ["--mem-fraction-static=0.5", "--max-total-tokens=1024"]
    server = SGLangProcess(
        ServerConfig(
            python=args.python,
            model=work / "model",
            log=work / "server.log",
            port=args.port,
            device="cuda" if args.gpu else "cpu",
            flags=tuple(flags),
            ready_s=START_SECONDS,
        )
    )
    try:
        with console.status("The server starts ..."):
            asyncio.run(server.start())
        for number in range(args.rounds + 1):  # the first warms up
            for place, key in enumerate(args.paths, 1):
                version = len(args.paths) * number + place
                found = _round(syncs[key], server.url, params, version, memory if key == "memory" else None)
                if number:
                    rounds[key].append(found)
                for folder in (memory, work / "weights"):
                    shutil.rmtree(folder, ignore_errors=True)  # the next path starts with free memory
                console.print(f"{number}/{args.rounds} {PATHS[key]}: {found['seconds']:.2f} s", highlight=False)
    finally:
        asyncio.run(server.stop())
        shutil.rmtree(memory, ignore_errors=True)
    return {"model": args.model, "params": num_params(config), "dtype": args.dtype, "rounds": rounds}


def _write_rounds(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Write the same weights from both layouts, into shared memory, and compare the files."""
    import time

    import jax

    from orchestra_jax.models.checkpoint import safetensors
    from orchestra_jax.models.checkpoint.hf_names import TURNED
    from orchestra_jax.models.decoder import init_params
    from orchestra_jax.models.qwen3 import Qwen3Config
    from orchestra_jax.models.sizes import num_params
    from orchestra_jax.processes.several import on_host

    own = {name: own for name, own in (("vocab_size", args.vocab), ("num_layers", args.layers)) if own}
    config = Qwen3Config.preset(args.model, param_dtype=args.dtype, scan_layers=True, **own)
    params = jax.jit(init_params, static_argnums=0)(config, jax.random.key(0))
    layouts = {
        "[in, out]": on_host(params, args.server_dtype),
        "turned": on_host(params, args.server_dtype, lambda path: path[-1].key in TURNED),
    }
    del params
    ways = {f"{name}, {how}": (host, how) for name, host in layouts.items() for how in ("one by one", "threads")}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory(prefix="weight_update_", dir="/dev/shm") as folder:
        for number in range(args.rounds + 1):  # the first warms up
            for name, (host, how) in ways.items():
                start, cpu = time.perf_counter(), time.process_time()
                if how == "threads":
                    to = Path(folder, name)
                    safetensors.save(to, config, host, dtype=args.server_dtype, overwrite=True, alone=True)
                else:
                    _one_by_one(Path(folder, name), safetensors.host_tensors(config, host, args.server_dtype))
                if number:
                    rounds[name].append({"seconds": time.perf_counter() - start, "cpu_s": time.process_time() - cpu})
                _require_same(Path(folder, name), Path(folder, next(iter(ways))))
                if name != next(iter(ways)):
                    shutil.rmtree(Path(folder, name))
    size = sum(t.nbytes for t in safetensors.host_tensors(config, layouts["turned"], args.server_dtype))
    for name, found in rounds.items():
        seconds, cpu = _median(found, "seconds"), _median(found, "cpu_s")
        before = rounds[name.replace("threads", "one by one")]
        ratios = ", ".join(f"{_median(before, key) / _median(found, key):.2f} times {key}" for key in found[0])
        console.print(
            f"{name:22} {size / 1e9:.2f} GB: {seconds:.2f} s, {cpu:.2f} CPU-s, {cpu / size * 1e9:.2f} CPU-s a GB"
            + (f"; one by one: {ratios}" if found is not before else ""),
            markup=False,
            highlight=False,
        )
    return {"model": args.model, "params": num_params(config), "bytes": size, "rounds": rounds}


def _one_by_one(folder: Path, tensors: Sequence[Any]) -> None:
    """Write the files one after the other, and turn each matrix as a whole, as it was done before 2026-11-26."""
    import numpy as np
    from safetensors.numpy import save_file

    from orchestra_jax.models.checkpoint import safetensors

    folder.mkdir(exist_ok=True)
    for file, names in safetensors.split(tensors).filename_to_tensors.items():
        by_name = {tensor.name: tensor for tensor in tensors}
        found = {name: np.ascontiguousarray(by_name[name].gathered()) for name in names}
        save_file(found, folder / file, metadata={"format": "pt"})


def _require_same(folder: Path, other: Path) -> None:
    """Raise if a tensor file of one folder is not in the other, byte for byte."""
    files = [sorted(each.glob("*.safetensors")) for each in (folder, other)]
    if [file.name for file in files[0]] != [file.name for file in files[1]]:
        raise AssertionError(f"{folder} and {other} have other files.")
    for mine, theirs in zip(*files, strict=True):
        if not filecmp.cmp(mine, theirs, shallow=False):
            raise AssertionError(f"{mine} and {theirs} differ.")


def _median(rounds: Sequence[Mapping[str, float]], quantity: str) -> float:
    return statistics.median(found[quantity] for found in rounds)


def _table(result: Mapping[str, Any]) -> Table:
    rounds = result["rounds"]
    count = len(next(iter(rounds.values())))
    title = (
        f"{result['model']}, {result['params'] / 1e6:.1f} M parameters in {result['dtype']}, median of {count} (range)"
    )
    made = table(title, ["path"], ["seconds", "range", "pause s", "MB/s", "our CPU s", "added GiB", "server GiB"])
    for key, found in rounds.items():
        seconds = [one["seconds"] for one in found]
        made.add_row(
            PATHS[key],
            f"{statistics.median(seconds):.3f}",
            f"{min(seconds):.3f}-{max(seconds):.3f}",
            f"{_median(found, 'paused_seconds'):.3f}",
            f"{statistics.median(one['bytes'] / one['seconds'] for one in found) / 1e6:.0f}",
            f"{_median(found, 'cpu_s'):.3f}",
            f"{max(one['added_gib'] for one in found):.2f}",
            f"{max(one['server_gib'] for one in found):.2f}",
        )
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-0.6b", help="an orchestra_jax preset (default qwen3-0.6b)")
    parser.add_argument("--vocab", type=int, help="vocabulary, for presets without one (tiny, small)")
    parser.add_argument("--layers", type=int, help="fewer layers than the preset has, for --write-only")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"), help="of our parameters")
    parser.add_argument("--server-dtype", default="bfloat16", choices=("float32", "bfloat16"), help="of the server's")
    parser.add_argument("--paths", nargs="+", choices=list(PATHS), default=list(PATHS))
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds per path, at least 5 to report")
    parser.add_argument("--folder", type=Path, help="parent of the folder on disk (default: the temporary folder)")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-sglang/bin/python", help="SGLang's interpreter")
    parser.add_argument("--port", type=int, default=31190)
    parser.add_argument("--gpu", action="store_true", help="the server runs on a GPU, with SGLang's own settings")
    parser.add_argument("--write-only", action="store_true", help="only write from host memory, in both layouts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured here")
    args = parse(parser, "--model", "tiny", "--vocab", "1024", "--rounds", "1")
    if args.rounds < 1:
        parser.error("--rounds must be at least 1.")
    console = wide_console()
    if not args.write_only and not args.python.exists():
        console.print(f"{args.python} is missing: make .venv-sglang, or name another interpreter with --python.")
        return 1
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if args.write_only:
        result = _write_rounds(args, console)
    else:
        with tempfile.TemporaryDirectory(prefix="weight_update_", dir=args.folder) as name:
            result = _measure(args, Path(name), console)
        console.print(_table(result))
    keep(args.json, {**machine(), **result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
