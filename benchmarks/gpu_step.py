"""One GRPO update of a released Qwen3 on one GPU: tokens/s, MFU and peak memory, orchestra_jax beside PyTorch.

    .venv/bin/python benchmarks/gpu_step.py                                  # the largest preset that fits, 8k and 32k
    .venv/bin/python benchmarks/gpu_step.py --preset qwen3-4b --master float32 --json out.json
    .venv/bin/python benchmarks/gpu_step.py --preset tiny --row-tokens 256 --allow-cpu        # does it run at all

Random weights, bf16 products. A step has one row of `--row-tokens` tokens in `--sequences` equally long sequences, half
of whose tokens carry loss: packed with segment ids for orchestra_jax, as the rows of a batch for PyTorch (which there
needs no mask: its fastest layout). Both recompute layers in the backward pass and hold the logits of `--chunk` tokens.
Each measurement is a process of its own, one after the other; times are wall-clock medians after two steps.

MFU = model FLOPs / (median time x dense bf16 peak of the GPU), recomputation not counted, with
    model FLOPs = 6 x (layer weights x tokens + head weights x tokens with loss)
                + 6 x layers x heads x head_dim x sum over sequences of length^2        (causal attention)

Without a GPU nothing is measured and the exit status is 0.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from short import keep, parse, table, wide_console

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LARGEST_FIRST = ("qwen3-32b", "qwen3-14b", "qwen3-8b", "qwen3-4b", "qwen3-1.7b", "qwen3-0.6b")
PROBE = """
import json, jax
device = jax.devices()[0]
memory = device.memory_stats() or {}
print(json.dumps([device.platform, device.device_kind, memory.get("bytes_limit")]))
"""
ENVIRONMENT = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Failed(Exception):  # noqa: N818  reported, never fatal
    """A measurement that ended without a result; the message is the end of its log."""


def _last_line(command: list[str], environment: Mapping[str, str]) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment})
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise Failed(done.stderr[-3000:])
    return json.loads(lines[-1])


def _flops(config: Any, job: Any) -> float:
    """Model FLOPs of a step; see the module's docstring."""
    from orchestra_jax.models.sizes import num_params

    head = config.hidden_size * config.vocab_size
    layers = num_params(config) - head * (1 if config.tie_word_embeddings else 2)
    weights = layers * job.row_tokens + head * job.sequences * job.response
    squares = job.sequences * job.length**2
    return 6.0 * weights + 6.0 * config.num_layers * config.num_heads * config.head_dim * squares


def _estimate(config: Any, args: argparse.Namespace) -> float:
    """Rough bytes of our step: parameters, fp32 gradients, bf16 moments, layer inputs and a chunk's logits."""
    from orchestra_jax.models.sizes import num_params

    per_parameter = 4 + 4 + (4 + 2 if args.master == "float32" else 2)
    activations = 2 * config.num_layers * config.hidden_size * max(args.row_tokens)
    return num_params(config) * per_parameter + activations + 12 * args.chunk * config.vocab_size + 2e9


def _peak_tflops(kind: str) -> float | None:
    from orchestra_jax.models.gpus import GPUS

    known = [gpu.tflops for gpu in GPUS.values() if gpu.label == kind or gpu.label.startswith(kind + " ")]
    return known[0] if len(set(known)) == 1 else None


def _row(name: str, tokens: int, flops: float, peak: float | None, result: Mapping[str, Any]) -> list[str]:
    seconds, memory = result["step_s"], result["peak_bytes"]
    return [
        name,
        str(tokens),
        f"{seconds:.3f} ({result['range_s'][0]:.3f}-{result['range_s'][1]:.3f})",
        f"{tokens / seconds:,.0f}",
        "-" if peak is None else f"{100 * flops / seconds / peak / 1e12:.1f} %",
        "-" if memory is None else f"{memory / 2**30:.1f}",
        f"{result['first_step_s']:.0f}",
        result["about"]["attention"],
    ]


def _jobs(args: argparse.Namespace, preset: str, device: str) -> tuple[Any, list[Any]]:
    """The model and a job for each row length."""
    from orchestra_jax.models.qwen3 import Qwen3Config

    sys.path.insert(0, str(HERE / "_peers"))
    from gpu_worker import Job

    sizes = {} if preset in LARGEST_FIRST else {"vocab_size": 1024}
    config = Qwen3Config.preset(preset, **sizes, param_dtype=args.master)
    attention = args.attention or ("cudnn" if device == "gpu" else "xla")
    jobs = []
    for tokens in args.row_tokens:
        length = tokens // args.sequences
        jobs.append(
            Job(
                config=config.to_hf(),
                row_tokens=tokens,
                sequences=args.sequences,
                response=length // 2,
                chunk=args.chunk,
                steps=args.steps,
                master=args.master,
                attention=attention,
                compile=args.torch_compile,
                device=device,
            )
        )
    return config, jobs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="auto", help="a Qwen3Config preset; auto: the largest that fits")
    parser.add_argument("--row-tokens", type=int, nargs="+", default=[8192, 32768], help="tokens of a step")
    parser.add_argument("--sequences", type=int, default=4, help="sequences packed into the row")
    parser.add_argument("--steps", type=int, default=5, help="measured steps")
    parser.add_argument("--chunk", type=int, default=2048, help="tokens whose logits exist at once")
    parser.add_argument(
        "--master",
        choices=["bfloat16", "float32"],
        default="bfloat16",
        help="dtype of the parameters (ours: fp32 gradients and bf16 moments; PyTorch: both in this dtype)",
    )
    parser.add_argument("--attention", choices=["cudnn", "xla"], help="of orchestra_jax; cudnn on a GPU by default")
    parser.add_argument("--torch", default=".venv-torch/bin/python", help="Python with a CUDA build of torch")
    parser.add_argument("--torch-compile", action="store_true", help="let PyTorch compile its layers")
    parser.add_argument("--peak-tflops", type=float, help="dense bf16 peak of a GPU that hardware.py does not know")
    parser.add_argument("--allow-cpu", action="store_true", help="run without a GPU too; its figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured here")
    smoke = "--allow-cpu --preset tiny --row-tokens 64 --sequences 2 --steps 1 --chunk 64"
    args = parse(parser, *smoke.split())
    if min(args.row_tokens) < 2 * args.sequences or any(tokens % args.sequences for tokens in args.row_tokens):
        parser.error("--row-tokens must be multiples of --sequences, with at least 2 tokens for each.")
    console = wide_console()

    platform, kind, memory = _last_line([sys.executable, "-c", PROBE], {})
    if platform != "gpu" and not args.allow_cpu:
        console.print(
            "No GPU that JAX can use is here: nothing is measured (install '.[cuda12]' or '.[cuda13]').", markup=False
        )
        return 0
    os.environ["JAX_PLATFORMS"] = "cpu"  # this process only makes configurations
    peak = args.peak_tflops or _peak_tflops(kind)
    if peak is None and platform == "gpu":
        console.print(f"The peak of {kind} is not known, so no MFU: pass --peak-tflops.")

    presets = [args.preset]
    if args.preset == "auto":
        presets = [
            name
            for name in LARGEST_FIRST
            if memory is None or _estimate(_jobs(args, name, platform)[0], args) < 0.97 * memory
        ]
    libraries = {
        "orchestra_jax": ([sys.executable, str(HERE / "_peers" / "gpu_ours.py")], ENVIRONMENT),
        "PyTorch": ([args.torch, str(HERE / "_peers" / "gpu_pytorch.py")], ENVIRONMENT),
    }
    if not (ROOT / args.torch).exists():
        console.print(f"Without PyTorch: {args.torch} is missing. Make it with", soft_wrap=True)
        console.print("  python3.11 -m venv .venv-torch && .venv-torch/bin/pip install torch 'transformers>=5.20'")
        del libraries["PyTorch"]
    environment = {} if platform == "gpu" else {"JAX_PLATFORMS": "cpu"}

    measured: list[dict[str, Any]] = []
    for preset in presets:
        config, jobs = _jobs(args, preset, platform)
        failures = []
        for job in jobs:
            for name, (command, settings) in libraries.items():
                with console.status(f"{preset}, {job.row_tokens} tokens: {name}"):
                    try:
                        result = _last_line([*command, json.dumps(asdict(job))], {**settings, **environment})
                    except Failed as failure:
                        console.print(f"[red]{name}, {preset}, {job.row_tokens} tokens: no result.[/red]")
                        console.print(str(failure), highlight=False, markup=False)
                        failures.append((name, str(failure)))
                        continue
                measured.append(
                    {"library": name, "preset": preset, "flops": _flops(config, job), **asdict(job), **result}
                )
        # A smaller model only where ours ran out of memory: PyTorch may have more or less room.
        if not any(name == "orchestra_jax" and "RESOURCE_EXHAUSTED" in text for name, text in failures):
            break

    made = table(
        f"{kind}, dense bf16 peak {'unknown' if peak is None else f'{peak:.0f} TFLOP/s'}",
        ["step"],
        ["tokens", "s, median (range)", "tokens/s", "MFU", "peak GiB", "first step s", "attention"],
    )
    for m in measured:
        made.add_row(*_row(f"{m['library']}, {m['preset']}", m["row_tokens"], m["flops"], peak, m))
    console.print(made)
    versions = {m["library"]: m["about"] for m in measured}
    record = {"device": kind, "peak_tflops": peak, "command": sys.argv, "about": versions, "results": measured}
    keep(args.json, record)
    return 0 if measured else 1


if __name__ == "__main__":
    sys.exit(main())
