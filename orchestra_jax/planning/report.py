"""The planner's answer in print: memory, work, time, and what to change where a run does not fit."""

import math
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.checkpoint.reading import read_config
from orchestra_jax.models.families import preset_config, run_settings
from orchestra_jax.models.gpus import GIB, GPUS, find_gpu
from orchestra_jax.models.sizes import num_params
from orchestra_jax.planning.glance import show_glance
from orchestra_jax.planning.layout import layout_of
from orchestra_jax.planning.plan import Job, Plan, make_plan, reserve_cpu_devices
from orchestra_jax.planning.rollouts import forks
from orchestra_jax.rl.batching import BatchShape, MicroShapes, PackShapes, select_size
from orchestra_jax.rl.packing import policy_shapes
from orchestra_jax.rl.setup import adapters, learner_config, ratio_spans_rows, separate_old_pass
from orchestra_jax.rl.shared import compiled_pieces
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.training.forecast import forecast


def run(cfg: RunConfig) -> bool:
    """Plan a run as `cfg.plan` says, print the answer, and return whether it fits and can run.

    Raises:
        ConfigError: the GPU, the mesh or the model is not known.
    """
    try:
        gpu = find_gpu(cfg.plan.gpu)
    except ValueError as error:
        raise ConfigError(f"plan.gpu: {error}") from error
    # Before anything below starts JAX.
    reserve_cpu_devices(max(1, cfg.mesh.data * cfg.mesh.fsdp * cfg.mesh.tensor))
    plan = make_plan(job_of(cfg), gpu, cfg.plan)
    console = Console(width=118)
    show(plan, console)
    layout = layout_of(cfg)
    console.print(layout.text(), markup=False, highlight=False)
    for problem in layout.problems:
        console.print(f"[bold red]It cannot run[/]: {escape(problem)}", highlight=False)
    if sentence := forecast(cfg):
        console.print(sentence, markup=False, highlight=False)
    console.print()
    show_glance(cfg, plan, layout, console)
    return plan.fits and not layout.problems


def job_of(cfg: RunConfig) -> Job:
    """Return the step of a run at its largest shape: packed rows, or rows that hold the longest trajectory whole."""
    algorithm, model = cfg.algorithm, model_config(cfg)
    shapes = policy_shapes(algorithm, cfg.model, cfg.rollout.limits.max_length, cfg.rollout.history)
    updates = algorithm.epochs * algorithm.minibatches
    # Before every update but the first, the ratio of a trajectory needs the scores of its sequences in other rows.
    spans_rows = ratio_spans_rows(algorithm.loss, cfg.rollout.history)
    related = algorithm.epochs * (updates - 1) / updates if spans_rows else 0.0
    job = Job(
        model=model,
        learner=learner_config(algorithm, cfg.rollout, model),
        optimizer=algorithm.optimizer,
        mesh=(cfg.mesh.data, cfg.mesh.fsdp, cfg.mesh.tensor),
        shape=largest_shape(shapes, cfg.plan.response),
        sequences=algorithm.tasks_per_step * algorithm.group_size,
        tokens=cfg.plan.tokens or cfg.rollout.limits.max_length,
        response=cfg.plan.response,
        epochs=algorithm.epochs,
        minibatches=algorithm.minibatches,
        reference=model.dtype if algorithm.loss.kl_coef > 0 else None,
        offload=algorithm.reference_offload,
        adapters=adapters(cfg.model.lora),
        forks=forks(cfg.plan, cfg.rollout),
        row_sequences=shapes.row_sequences if isinstance(shapes, PackShapes) else None,
        share=isinstance(shapes, PackShapes) and shapes.shared,
        scored=related + (1.0 if separate_old_pass(algorithm) else 0.0),
        engine=engine_bytes(cfg, model),
    )
    if not job.share:
        return job
    pieces = compiled_pieces(math.ceil(job.update_tokens / job.parts / (job.shape.rows * job.shape.length)))
    return replace(job, shape=replace(job.shape, pieces=pieces))


def engine_bytes(cfg: RunConfig, model: DecoderConfig) -> int:
    """Return the bytes that the embedded engine keeps on its device: a cache for all slots, and a policy of its own.

    It samples from the trainer's policy where that is whole on the device and no rollouts run during an update.
    """
    rollout = cfg.rollout
    if rollout.engine is not EngineName.embedded:
        return 0
    rows = rollout.slots + math.ceil(rollout.slots / math.ceil(rollout.slots / rollout.threads))  # a spare in each part
    token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * np.dtype(model.dtype).itemsize
    own = cfg.mesh.data * cfg.mesh.fsdp * cfg.mesh.tensor > 1 or rollout.max_staleness > 0 or cfg.model.lora.rank > 0
    policy = num_params(model) * np.dtype(model.param_dtype).itemsize if own else 0
    return rows * rollout.limits.max_length * token + policy


def largest_shape(shapes: MicroShapes | PackShapes, response: float) -> BatchShape:
    """Return the largest of the compiled shapes for a share of sampled tokens; prefixes stay in their rows."""
    if isinstance(shapes, PackShapes):
        positions = shapes.rows * shapes.row_length
        return shapes.batch_shape(select_size(int(positions * response), positions, shapes.response_fractions))
    width = shapes.widths[-1]
    rows = max(1, shapes.tokens // width)
    selected = select_size(int(rows * width * response), rows * width, shapes.response_fractions)
    return BatchShape(
        rows=rows,
        length=width,
        sequences=rows,
        sequence_length=width,
        prefixes=1,
        prefix_length=0,
        pieces=0,
        selected=selected,
    )


def model_config(cfg: RunConfig) -> DecoderConfig:
    """Return architecture and numerics; this needs no weights, and a checkpoint's folder only without a preset."""
    m = cfg.model
    vocabulary = {}
    try:
        if m.path is not None:
            return read_config(m.path, **run_settings(m))
        if m.tokenizer is not None:
            vocabulary["vocab_size"] = len(make_chat(cfg).tokenizer)
        return preset_config(m, **vocabulary)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error


def show(plan: Plan, console: Console) -> None:
    """Print the plan."""
    job, gpu = plan.job, plan.gpu
    rows = f"{job.shape.rows} x {job.shape.length}"
    size, idle = num_params(job.model), job.model.idle_params()
    active = f" ({(size - idle) / 1e9:.2f} B of them for a token)" if idle else ""
    console.print(
        f"[bold]{size / 1e9:.2f} B parameters{active} on {job.devices} x {gpu.label}[/] "
        f"(data {job.mesh[0]}, fsdp {job.mesh[1]}, tensor {job.mesh[2]})\n"
        f"A step: {job.sequences} trajectories of {_sequences(job)} = {job.update_tokens:,} tokens, "
        + (f"of which {job.run_tokens:,} are run, as sequences begin alike, " if job.share else "")
        + f"in {job.micro_batches} micro-batches of {rows} tokens on each of {job.shards} batch shards, and "
        f"{plan.updates} optimizer step{'s' if plan.updates > 1 else ''}."
    )
    for table in (_memory(plan), _work(plan), _collectives(plan), _time(plan)):
        console.print(table)
    if plan.seconds["memory"] > plan.seconds["compute"]:
        console.print(
            "The kernels as compiled move more than arithmetic at that MFU leaves time for, unless caches catch it: "
            "with long rows, model.attention=auto in bfloat16 (Hopper or newer) keeps attention's scores out of memory."
        )
    for name, program in plan.programs.items():
        console.print(f"Compiled {name} for {plan.compiled_for} in {program.seconds:.0f} s.")
    for note in plan.notes:
        console.print(note, markup=False)  # it may name jax[cuda12]
    console.print()
    room = f"{plan.peak / GIB:.1f} of {plan.usable / GIB:.1f} GiB"
    if plan.fits:
        fraction = plan.usable / gpu.memory
        console.print(
            f"[bold green]It fits[/]: {room}. Set XLA_PYTHON_CLIENT_MEM_FRACTION={fraction:.2f} (default 0.75), unless "
            "servers use these GPUs in turns: JAX then takes what it needs, and gives it back."
        )
    else:
        console.print(f"[bold red]It does not fit[/]: {room}. What would change that, with the peak it would give:")
        for line in advice(plan):
            console.print(f"  - {line}", markup=False)


def _sequences(job: Job) -> str:
    """Return the sequences of one trajectory in words."""
    if job.forks == 1:
        return f"{job.tokens:,} tokens"
    return (
        f"{job.forks} sequences (a new one after every turn that thought, see plan.turns) of "
        f"{job.lengths[0]:,} to {job.tokens:,} tokens, {sum(job.lengths):,} together,"
    )


def advice(plan: Plan) -> list[str]:
    """Return the changes that make a run smaller, sufficient ones first; the new peaks are estimates."""
    job, state, program = plan.job, plan.state, plan.programs["gradients"]
    optimizer, trained = state["optimizer"], state["parameters"] + state["optimizer"] + state["gradients"]
    found: list[tuple[int | None, str]] = []

    def cut(saved: float, text: str) -> None:
        found.append((plan.peak - int(saved), text))

    if job.model.remat != "full":
        found.append((None, "model.remat=full: recompute every layer in the backward pass"))
    if job.optimizer.name == "adamw" and job.optimizer.moment_dtype == "float32":
        cut(optimizer / 2, "algorithm.optimizer.moment_dtype=bfloat16: half of the optimizer's state")
    if job.shape.rows > 1:
        tokens = job.shape.rows // 2 * job.shape.length
        cut(program.temp / 2, f"algorithm.micro_tokens={tokens}: half as many rows in a micro-batch")
    whole = trained + state["reference"] + state["base"]
    cut(whole / 2, f"mesh.fsdp={2 * job.mesh[1]}: twice the GPUs, half of the state on each")
    if job.mesh[2] < job.model.num_kv_heads:
        cut(
            (program.temp + whole) / 2,
            f"mesh.tensor={2 * job.mesh[2]}: twice the GPUs, heads, MLP and vocabulary split between two",
        )
    if job.tokens < job.shape.length or job.shape.rows == 1:
        half = job.shape.length // 2
        cut(program.temp / 2, f"rollout.limits.max_length={half} and rows to match: half as long trajectories")
    if job.engine:
        cut(job.engine, "rollout=sglang: servers sample on GPUs of their own, or in turns (+placement=shared)")
    if state["reference"]:
        cut(state["reference"], "algorithm.reference_offload=true: the reference policy waits in host memory")
    if job.adapters is None:
        # The frozen base stays, in bf16; adapters, their moments and gradients are small beside it.
        base = state["parameters"] * 2 // (4 if job.model.param_dtype == "float32" else 2)
        cut(trained - base, "model.lora.rank=32 model.param_dtype=bfloat16: train adapters of a frozen bf16 base")
    if (name := smallest_gpu(plan)) is not None:
        found.append((plan.peak, f"plan.gpu={name}: {GPUS[name].memory / GIB:.0f} GiB per GPU"))

    def line(peak: int | None, text: str) -> tuple[int, str]:
        if peak is None:
            return 1, f"{text} (plan again to see)."
        enough = peak <= plan.usable or text.startswith("plan.gpu")
        return (0 if enough else 2), f"{text}: about {peak / GIB:.1f} GiB{'' if enough else ', not enough alone'}."

    return [text for _, text in sorted((line(*item) for item in found), key=lambda ranked: ranked[0])]


def smallest_gpu(plan: Plan) -> str | None:
    """Return the known GPU with the least memory that the plan's peak fits into, or None."""
    fraction = plan.usable / plan.gpu.memory
    fitting = [name for name, gpu in GPUS.items() if plan.peak <= gpu.memory * fraction]
    return min(fitting, key=lambda name: GPUS[name].memory, default=None)


def _memory(plan: Plan) -> Table:
    table = Table("", "GiB", title="Memory of one device", title_justify="left", min_width=60)
    gradients, update = plan.programs["gradients"], plan.programs["update"]
    peaks = plan.peaks
    named = {
        "parameters": f"parameters ({plan.job.model.param_dtype})",
        "base": "frozen base",
        "reference": f"reference policy ({plan.job.reference})",
        "optimizer": f"optimizer ({plan.job.optimizer.name}, {plan.job.optimizer.moment_dtype} moments)",
        "gradients": "gradients (float32, accumulated)",
    }
    for key, text in named.items():
        if plan.state[key]:
            table.add_row(text, f"{plan.state[key] / GIB:.2f}")
    table.add_row("micro-batches of an epoch", f"{plan.batches / GIB:.2f}")
    if plan.job.engine:
        table.add_row("embedded engine, on the first device", f"{plan.job.engine / GIB:.2f}")
    table.add_row("activations and other temporaries of a micro-batch", f"{gradients.temp / GIB:.2f}")
    table.add_row("temporaries of the optimizer step", f"{update.temp / GIB:.2f}")
    table.add_section()
    table.add_row("peak during a micro-batch", f"{peaks['gradients'] / GIB:.2f}")
    table.add_row("peak during the optimizer step", f"{peaks['update'] / GIB:.2f}")
    table.add_row(
        f"usable ({plan.usable / plan.gpu.memory:.0%} of {plan.gpu.memory / GIB:.1f} GiB)", f"{plan.usable / GIB:.2f}"
    )
    return table


def _work(plan: Plan) -> Table:
    job = plan.job
    table = Table("", "all devices", "one device", title="Work of a training step", title_justify="left", min_width=60)

    def row(text: str, each: float, unit: str) -> None:
        table.add_row(text, _si(each * job.devices, unit), _si(each, unit))

    row("model FLOPs of the update (analytic, no recomputation)", job.update_flops / job.devices, "FLOP")
    if job.reference:
        row("model FLOPs of scoring with the reference policy", job.forward_flops / job.devices, "FLOP")
    if job.scored:
        row("model FLOPs of scoring with the policy", job.forward_flops * job.scored / job.devices, "FLOP")
    row("matrix FLOPs of the update as compiled", plan.per_step("flops"), "FLOP")
    row("bytes of the update as compiled, caches aside", plan.per_step("bytes"), "B")
    return table


def _collectives(plan: Plan) -> Table:
    columns = ("collective", "GPUs", "of a node", "runs", "arrays", "sent", "at", "seconds")
    table = Table(*columns, title="Collectives of a training step, one device", title_justify="left", min_width=60)
    for each in plan.collectives:
        rate = plan.rate(each)
        sizes = (_si(each.bytes, "B"), _si(each.wire_bytes, "B"), _si(rate, "B/s"))
        seconds = f"{each.wire_bytes / rate:.2f}"
        table.add_row(each.kind, str(each.devices), str(each.per_node), f"{each.count:,.0f}", *sizes, seconds)
    return table


def _time(plan: Plan) -> Table:
    table = Table("", "seconds", title="Time of a training step, rollouts aside", title_justify="left", min_width=60)
    seconds, tokens = plan.seconds, plan.job.run_tokens
    peak = f"{plan.gpu.tflops:,.0f} TFLOP/s (dense bf16)"
    table.add_row(f"[bold]at {plan.mfu:.0%} MFU[/] of {peak}", f"[bold]{seconds['compute']:.1f}[/]")
    table.add_row(
        f"bytes at {_si(plan.gpu.bandwidth, 'B/s')}, were no kernel's input cached", f"{seconds['memory']:.1f}"
    )
    table.add_row("links, were nothing overlapped", f"{seconds['links']:.1f}")
    table.add_section()
    table.add_row("tokens/s at that MFU", f"{tokens / seconds['compute']:,.0f}")
    return table


def _si(value: float, unit: str) -> str:
    for factor, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.2f} {prefix}{unit}"
    return f"{value:.0f} {unit}"
