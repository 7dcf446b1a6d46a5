"""A plan in one look: memory of a GPU, seconds of update and rollouts, dollars, checkpoints, and all assumptions."""

import re
import shutil
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from orchestra_jax.config.choices import EngineName, ReplayMode
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.models.gpus import GIB
from orchestra_jax.money.price_book import price_book
from orchestra_jax.money.prices import PriceList
from orchestra_jax.planning.layout import Layout
from orchestra_jax.planning.plan import USABLE, Job, Plan
from orchestra_jax.planning.rollouts import Assumed, Rollouts, Servers, estimate, turns
from orchestra_jax.rl.learner import Learner
from orchestra_jax.rl.optimizer import make_optimizer
from orchestra_jax.tools.catalogue import role_seconds
from orchestra_jax.training.checkpoint_names import checkpoint_folder, in_bucket
from orchestra_jax.training.forecast import StepCost, evaluations_usd, step_cost

_SHARE = re.compile(r"--mem-fraction-static[= ]([0-9.]+)")  # of a server's flags


def show_glance(cfg: RunConfig, plan: Plan, layout: Layout, console: Console) -> None:
    """Print the table and, below it, its assumptions.

    Raises:
        ConfigError: the price list is not there.
    """
    prices = price_book(cfg).base
    cost = None if cfg.replay.mode is ReplayMode.replay else step_cost(cfg, prices)
    assumed = assumptions(cfg, prices, cost)
    rollouts = estimate(plan.job, plan.gpu, servers_of(cfg, plan, layout), assumed)
    table = Table("", "", "", title="A step in one look", title_justify="left", show_header=False, min_width=60)
    for row in _memory(plan, rollouts):
        table.add_row(*row)
    table.add_section()
    for row in _seconds(cfg, plan, rollouts):
        table.add_row(*row)
    table.add_section()
    for row in _dollars(cfg, prices, cost):
        table.add_row(*row)
    table.add_section()
    table.add_row(*_checkpoints(cfg, plan.job))
    console.print(table)
    for sentence in _said(cfg, plan, rollouts, assumed):
        console.print(sentence, markup=False, highlight=False)


def servers_of(cfg: RunConfig, plan: Plan, layout: Layout) -> Servers:
    """Return the servers of a layout and their memory; the embedded engine counts as one for each process."""
    rollout, waiting = cfg.rollout, sum(plan.state.values()) - plan.state["gradients"]
    if rollout.engine is EngineName.embedded:
        return Servers(layout.nodes, 1, rollout.slots, plan.usable - waiting, waiting)
    if layout.urls:
        each = max(1, rollout.slots * layout.nodes // layout.urls)
        return Servers(layout.urls, cfg.plan.server_gpus, each, plan.usable)
    own = layout.servers or ((0,),)  # without rollout.server.gpus one server, of one GPU
    beside = waiting if layout.turns else 0
    found = _SHARE.search(" ".join(rollout.server.flags))
    share = float(found[1]) if found else USABLE
    room = share * (plan.gpu.memory - beside)  # SGLang's share is one of what is free when it starts
    return Servers(layout.nodes * len(own), len(own[0]), max(1, rollout.slots // len(own)), room, beside)


def assumptions(cfg: RunConfig, prices: PriceList, cost: StepCost | None) -> Assumed:
    """Return the assumed turns, calls and their mean seconds, and the seconds of the judge's verdict.

    A model's seconds are those of its role in the price list. A verdict is a short text, so its seconds are the
    shortest that the list has for the judge.
    """
    plan, experts = cfg.plan, cfg.tools.experts
    found = [role_seconds(model, role, prices) for role, models in experts.items() for model in models]
    known = [seconds for seconds in found if seconds is not None]
    each = sum(known) / len(known) if known else 0.0
    calls = plan.calls if cost else 0
    verdict = min(prices.latencies.get(cfg.tools.judge, {}).values(), default=0.0)
    return Assumed(turns(plan, cfg.rollout.limits), plan.mfu, plan.bandwidth, calls, each, verdict if cost else 0.0)


def _memory(plan: Plan, rollouts: Rollouts) -> Sequence[tuple[str, str, str]]:
    servers, parts = rollouts.servers, []
    if servers.waiting:
        parts.append(f"{servers.waiting / GIB:.1f} of the trainer")
    parts += [f"{rollouts.weights / GIB:.1f} weights", f"{rollouts.cache / GIB:.1f} keys and values"]
    total = servers.waiting + rollouts.weights + rollouts.cache
    few = f" ({rollouts.wanted} would run side by side)" if rollouts.concurrent < rollouts.wanted else ""
    each = "one server" if servers.count == 1 else f"each of {servers.count} servers"
    gpus = "1 GPU" if servers.gpus == 1 else f"{servers.gpus} GPUs"
    several = f"{rollouts.concurrent} sequences on {each} of {gpus}{few}"
    return [
        (
            "memory of a GPU, update",
            f"{'at most ' if plan.compiled_for == 'cpu' else ''}{plan.peak / GIB:.1f} GiB",
            f"{'fits' if plan.fits else 'does not fit'} into {plan.usable / GIB:.1f}",
        ),
        ("memory of a GPU, rollouts", f"{total / GIB:.1f} GiB", f"{' + '.join(parts)} of {several}"),
    ]


def _seconds(cfg: RunConfig, plan: Plan, rollouts: Rollouts) -> Sequence[tuple[str, str, str]]:
    update = plan.seconds["compute"]
    rows = [("seconds of the update", _short(update), f"{plan.job.run_tokens:,} tokens at {plan.mfu:.0%} MFU")]
    if not rollouts.concurrent:
        return [*rows, ("seconds of the rollouts", "-", "the servers have no room for one sequence")]
    parts = [f"{_short(rollouts.decode_s)} decoding", f"{_short(rollouts.prefill_s)} prefill"]
    if rollouts.calls_s:
        parts.append(f"{_short(rollouts.calls_s)} waiting for experts and judge")
    ahead = cfg.rollout.max_staleness > 0 and not cfg.rollout.oversample
    step = max(update, rollouts.seconds) if ahead else update + rollouts.seconds
    how = "the longer of both, as rollouts run ahead" if ahead else "one after the other"
    hours = step * cfg.steps / 3600
    lasts = f"{hours / 24:.1f} days" if hours > 48 else f"{_short(hours)} hours"
    return [
        *rows,
        ("seconds of the rollouts", _short(rollouts.seconds), " + ".join(parts)),
        ("seconds of a step", _short(step), f"{how}; {cfg.steps} steps are {lasts}"),
    ]


def _dollars(cfg: RunConfig, prices: PriceList, cost: StepCost | None) -> Sequence[tuple[str, str, str]]:
    if cost is None:
        return [("dollars of a step", "0", "no call is paid")]
    parts = f"{_usd(cost.calls)} calls at random + {_usd(cost.judge)} judge"
    parts = f"{parts}; {_usd(cost.alone)} with {cost.dearest} alone" if cost.dearest else "for the judge"
    run = cost.total * cfg.steps
    return [
        ("dollars of a step", _usd(cost.total), parts),
        (
            f"dollars of {cfg.steps} steps",
            f"{run:.0f}" if run >= 100 else _usd(run),
            f"evaluations are {_usd(evaluations_usd(cfg, prices))} besides; the GPUs' own price is not in it",
        ),
    ]


def _checkpoints(cfg: RunConfig, job: Job) -> tuple[str, str, str]:
    size = checkpoint_bytes(job)
    keep, place = cfg.checkpoint.keep, checkpoint_folder(cfg.output_dir, cfg.checkpoint.folder)
    needed = (keep + 1) * size
    text = f"{keep} kept and one being written are {_short(needed / 1e9)} GB"
    if in_bucket(place):
        text += f", in {place}"
    else:
        there = next(path for path in (place.absolute(), *place.absolute().parents) if path.is_dir())
        free = shutil.disk_usage(there).free
        fits = "fits" if needed <= free else "does not fit"
        text += f"; {fits} into the {_short(free / 1e9)} GB free here"
    return "a checkpoint", f"{_short(size / 1e9)} GB", text


def checkpoint_bytes(job: Job) -> int:
    """Return the size of the arrays in a checkpoint: what is trained, its moments, the reference of a KL."""
    learner = Learner(job.model, job.learner, make_optimizer(job.optimizer), adapters=job.adapters)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(learner.state_shapes))
    if job.reference is not None and job.adapters is None:
        params = sum(leaf.size for leaf in jax.tree.leaves(learner.state_shapes.params))
        size += params * jnp.dtype(job.reference).itemsize
    return size


def _said(cfg: RunConfig, plan: Plan, rollouts: Rollouts, assumed: Assumed) -> Sequence[str]:
    """Return a sentence for every number that is assumed, with its key."""
    job, options = plan.job, cfg.plan
    said = [
        f"Assumed of a trajectory: plan.turns={assumed.turns}, plan.tokens={job.tokens} at its end, plan.response="
        f"{job.response:g} of what the update trains sampled: {rollouts.sampled:,.0f} tokens, on average with "
        f"{rollouts.context:,.0f} before them.",
        f"Assumed of a server: decoding reads weights, keys and values at plan.bandwidth={assumed.bandwidth:g} of "
        f"{plan.gpu.bandwidth / 1e12:.2f} TB/s ({_short(1e3 * rollouts.token_s)} ms a token), prefill runs at plan.mfu="
        f"{assumed.mfu:g}, and its cache keeps what a turn has from the turns before.",
    ]
    if assumed.calls:
        said.append(
            f"Assumed of experts: plan.calls={assumed.calls} calls of plan.call_input={options.call_input} + "
            f"plan.call_output={options.call_output} tokens, each {assumed.call_seconds:.1f} s, the price list's "
            "mean, none at the same time as another; of the judge "
            f"one of as many tokens, {assumed.verdict_seconds:.0f} s."
        )
    return [
        *said,
        "Not in the seconds: the way of new weights, checkpoints, evaluation, a wait for the slowest trajectory.",
    ]


def _usd(value: float) -> str:
    """Return dollars with their cents, or two digits where the cents alone would hide them."""
    return f"{value:.2g}" if 0 < value < 0.1 else f"{value:.2f}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
