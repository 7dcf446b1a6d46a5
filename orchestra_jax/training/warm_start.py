"""Warm start: supervised fine-tuning on scripted demonstrations until the policy copies well, as measured."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import jax
import numpy as np

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.base import Demonstrations, Environment
from orchestra_jax.processes import Processes
from orchestra_jax.rl.batching import MicroBatch, MicroShapes, PackShapes, TokenSequence, sequences
from orchestra_jax.rl.learner import Learner
from orchestra_jax.rl.packing import most_packed, policy_batches
from orchestra_jax.rollout.collector import share_all
from orchestra_jax.training.loggers.progress import ProgressBar
from orchestra_jax.training.trainer import Trainer
from orchestra_jax.types import ToolResult, Trajectory

Cut = Callable[[Sequence[Any]], list[MicroBatch]]  # makes micro-batches of a process's part of a batch
_FIRST = 0.25  # share of the rows that batches come from at first, while they grow
_AT_A_TIME = 2048  # demonstrations that are played at once; one in play takes several times the memory of its row
_SPARE = 1.08  # a packed batch holds so many times the mean tokens: for longer batches, and what packing wastes


def warm_start(trainer: Trainer, learner: Learner, environment: Environment) -> None:
    """Take supervised steps on the environment's demonstrations until the policy copies well enough, or all are done.

    Every warm_start.check_every steps the copying is measured and everything is saved.

    Raises:
        ConfigError: the environment has no demonstrations, or one of them did not end with an answer.
        Interrupted: a signal came; the last finished step is saved.
    """
    cfg, settings, state = trainer.cfg, trainer.cfg.warm_start, trainer.state
    if (demonstrations := environment.demonstrations()) is None:
        raise ConfigError(
            f"The environment {cfg.env.name} has no demonstrations to learn from: set model.path=FOLDER, or "
            "warm_start.steps=0."
        )
    with ProgressBar(len(demonstrations.tasks), phase="demonstrations") as progress:
        progress.print(f"Making {progress.total} demonstrations ...")
        prompts = trainer.loop.run(_by_prompt(trainer, demonstrations, progress))
    with ProgressBar(settings.steps, phase="warm start", start=state.step, every=50) as progress:
        rows = [*chain(*prompts)]
        cut = _cutter(trainer, rows, learner.shards, each=round(len(rows) / len(prompts)))
        if grow := settings.growing_steps:
            prompts.sort(key=lambda rows: len(rows[0].tokens))
        batches = supervised_batches(prompts, settings.batch_size, cut, cfg.seed, state.step, trainer.processes, grow)
        if (copied := state.notes.get("copy_accuracy", 0.0)) is None:
            copied = _measured(trainer, demonstrations, progress)
        while state.step < settings.steps and copied < settings.min_copy_accuracy:
            trainer.free_gpus()
            batch = next(batches)
            with jax.transfer_guard("disallow"):
                state.trained, metrics = learner.supervised_step(state.trained, batch, base=trainer.base)
            state.step += 1
            if state.step % settings.check_every == 0 or state.step == settings.steps:
                copied = _measured(trainer, demonstrations, progress)
            progress.update(state.step, {"loss": metrics["loss"], "copied": copied})
            trainer.stop_if_asked()
        if copied < settings.min_copy_accuracy:
            progress.print(
                f"The warm start ended at copy accuracy {copied:.2f}, below warm_start.min_copy_accuracy="
                f"{settings.min_copy_accuracy}: more warm_start.steps or demonstrations would help."
            )


def _measured(trainer: Trainer, demonstrations: Demonstrations, progress: ProgressBar) -> float:
    """Return the copy accuracy on the gate's tasks, of which no demonstration was made; save the run with it."""
    state, processes, gate = trainer.state, trainer.processes, demonstrations.gate
    state.notes = state.notes | {"copy_accuracy": None}  # a run that is stopped here measures when it goes on
    trainer.push_weights()
    budget, seed = trainer.money.run, (trainer.cfg.seed, 1, state.step)
    mine, numbers = processes.mine(gate), processes.mine(range(len(gate)))
    sampling = trainer.collector.collect(trainer.engine, mine, budget=budget, seed=seed, numbers=numbers)
    sampled = trainer.loop.run(share_all(processes, sampling))
    state.notes["copy_accuracy"] = copied = copy_accuracy(sampled, demonstrations)
    progress.show(sampled)
    trainer.save()
    return copied


async def _by_prompt(trainer: Trainer, shown: Demonstrations, progress: ProgressBar) -> list[list[TokenSequence]]:
    """Return the rows of all demonstrations, those of one prompt together. Each process plays its share."""

    async def play() -> list[list[TokenSequence]]:
        mine, rows = trainer.processes.mine(shown.tasks), list[list[TokenSequence]]()
        for k in range(0, len(mine), _AT_A_TIME):
            some = mine[k : k + _AT_A_TIME]
            played = await trainer.collector.play(shown.script, some, shown.think, budget=trainer.money.run)
            rows += [demonstration_rows(each, trainer.cfg.rollout.limits) for each in played]
            if shown.beginnings is not None and trainer.collector.chat is not None:
                from orchestra_jax.training.beginnings import with_beginnings

                rows[k:] = with_beginnings(rows[k:], map(shown.beginnings, some), trainer.collector.chat)
            progress.update(min(len(rows) * trainer.processes.count, progress.total))
        return rows

    return await trainer.processes.merged(play())


def demonstration_rows(demonstration: Trajectory, limits: RolloutLimits) -> list[TokenSequence]:
    """Return a demonstration as rows. The script's tokens carry loss; prompts and observations do not.

    Raises:
        ConfigError: it did not end with an answer, or it is longer than the policy may be, as a whole or in a turn.
    """
    if not demonstration.completed:
        raise ConfigError(
            f"The demonstration of task {demonstration.task.id} ended as {demonstration.status} "
            f"({demonstration.reason}): raise rollout.limits.max_length if it is too long."
        )
    rows, name = sequences(demonstration, 1.0), demonstration.task.id
    turn, whole = max(len(turn.sampled_ids) for turn in demonstration.turns), max(len(row.tokens) for row in rows)
    for limit, tokens in (("max_new_tokens", turn), ("max_length", whole)):
        if tokens > getattr(limits, limit):
            raise ConfigError(f"A demonstration, {name}, is too long: set rollout.limits.{limit}={tokens} or more.")
    return rows


def _cutter(trainer: Trainer, rows: Sequence[TokenSequence], shards: int, each: int = 1) -> Cut:
    """Return what makes micro-batches of the rows of some prompts: packed, or like the update's rows."""
    cfg = trainer.cfg
    if not cfg.warm_start.packing:
        unpacked = trainer.shapes
        if isinstance(unpacked, MicroShapes) and unpacked.prefix_widths:
            alone = replace(unpacked, widths=unpacked.prefix_widths, prefix_widths=())
            unpacked = alone if each == 1 else replace(unpacked, rows_per_prefix=each)
        return lambda prompts: policy_batches([*chain(*prompts)], unpacked, shards)
    fractions, whole = tuple(cfg.algorithm.response_fractions), shards * trainer.processes.count
    shapes = demonstration_shapes(rows, cfg.warm_start.batch_size, cfg.algorithm.micro_tokens, fractions, whole)
    shapes = replace(shapes, row_sequences=most_packed(cfg.model, shapes.row_length))
    return lambda prompts: policy_batches([*chain(*prompts)], shapes, shards)


def demonstration_shapes(
    rows: Sequence[TokenSequence],
    batch_size: int,
    micro_tokens: int,
    response_fractions: tuple[float, ...],
    shards: int = 1,
) -> PackShapes:
    """Return shapes whose rows hold one to two of the longest demonstrations; a mean batch fills whole micro-batches.

    Args:
        micro_tokens: most tokens of a micro-batch on one batch shard, unless a demonstration has more.
        shards: batch shards of the mesh.
    """
    lengths = [len(row.tokens) for row in rows]
    row_length = max(max(lengths), min(2 * max(lengths), micro_tokens // 8))  # attention takes longer in long rows
    needed = _SPARE * batch_size * float(np.mean(lengths)) / shards
    micro = max(1, math.ceil(needed / max(micro_tokens, row_length)))
    count = min(math.ceil(needed / micro / row_length), max(1, micro_tokens // row_length))
    return PackShapes(row_length, count, max(count, batch_size), response_fractions)


def supervised_batches(
    rows: Sequence[Any],
    batch_size: int,
    cut: Cut,
    seed: int,
    start: int,
    processes: Processes | None = None,
    growing: int = 0,
) -> Iterator[list[MicroBatch]]:
    """Yield shuffled batches without end, from step `start` on. Step n is the same wherever it began.

    The first `growing` steps take rows from the beginning: at first from a quarter of them, at last from all.
    """
    mine, per_epoch, step = (processes or Processes()).mine, max(1, len(rows) // batch_size), start
    while True:
        if step < growing:
            share = _FIRST + (1 - _FIRST) * step / growing
            pool = max(math.ceil(share * len(rows)), min(batch_size, len(rows)))
            chosen = np.random.default_rng([seed, step]).permutation(pool)[:batch_size]
        else:
            first = step % per_epoch * batch_size
            chosen = np.random.default_rng([seed, step // per_epoch]).permutation(len(rows))[first : first + batch_size]
        yield cut([rows[k] for k in mine(chosen.tolist())])
        step += 1


def copy_accuracy(trajectories: Sequence[Trajectory], shown: Demonstrations) -> float:
    """Return the share of calls with arguments, of final answers, and of figures of the menu that were copied exactly.

    A malformed trajectory counts as one failed copy, so a policy that breaks the format cannot pass the gate.
    """
    copied: list[bool] = []
    for trajectory in trajectories:
        offered = {spec.name for spec in trajectory.task.tools}
        results = list[ToolResult]()
        for turn in trajectory.turns:
            for call in turn.calls:
                if call.name not in offered:
                    copied.append(False)
                elif call.arguments:
                    right = shown.reference_call(trajectory.task, call.name, results)
                    copied.append(dict(call.arguments) == dict(right.arguments))
                if (read := shown.reads_menu(trajectory.task, turn.text, call.name)) is not None:
                    copied.append(read)
            results += turn.results
        copied.append(trajectory.answer == shown.answer_from(results) if trajectory.completed else False)
    return float(np.mean(copied)) if copied else 0.0
