"""The run: warm start, evaluation, group-relative policy optimisation, evaluation. Every part of it resumes."""

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from orchestra_jax.config.checks import resume_conflicts
from orchestra_jax.config.choices import EngineName, Importance
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.engines.start import start_engine
from orchestra_jax.envs.base import Demonstrations, Environment
from orchestra_jax.evaluation.runner import Evaluator
from orchestra_jax.models.base import Params
from orchestra_jax.models.lora import init_adapters
from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.money.replay import ReplayMiss
from orchestra_jax.money.run import Halted, RunMoney
from orchestra_jax.rl.batching import group_arrays, sequences
from orchestra_jax.rl.learner import TrainState
from orchestra_jax.rl.optimizer import learning_rate
from orchestra_jax.rl.setup import (
    adapters,
    device_mesh,
    kl_share,
    policy_batches,
    policy_learner,
    policy_updates,
    score_groups,
    warm_learner,
)
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.event_loop import LoopThread
from orchestra_jax.rollout.source import Rollouts
from orchestra_jax.training.build import config_record, make_collector, make_policy
from orchestra_jax.training.checkpointing import Checkpoints
from orchestra_jax.training.loggers.base import RunLog
from orchestra_jax.training.progress import ProgressBar
from orchestra_jax.training.transcripts import write_transcripts
from orchestra_jax.training.warm_start import (
    copy_accuracy,
    demonstration_rows,
    demonstration_shapes,
    supervised_batches,
)
from orchestra_jax.training.weights import export, for_engine, reference_copy, whole_policy
from orchestra_jax.types import Status, Trajectory

# The learner's metrics that are logged, and their names there (docs/metrics.md).
_UPDATE_METRICS = {
    "loss": "loss",
    "entropy": "entropy",
    "kl_ref": "kl/ref",
    "clip_fraction_low": "clip/low",
    "clip_fraction_high": "clip/high",
    "ratio_max": "ratio/max",
    "ratio_p01": "ratio/p01",
    "ratio_p50": "ratio/p50",
    "ratio_p99": "ratio/p99",
    "mismatch_mean": "mismatch/mean",
    "mismatch_max": "mismatch/max",
    "importance_ess": "importance/ess",
    "importance_p01": "importance/p01",
    "importance_p99": "importance/p99",
    "grad_norm": "grad_norm",
    "skipped": "updates/skipped",
}
# Of learner and engine: what they say before the first update of a step, everything else after the last one.
_FIRST_METRICS = ("mismatch_mean", "mismatch_max", "importance_p01", "importance_p99")
# Metrics beside the progress bar: label, name in metrics.jsonl.
_LIVE = {
    "reward": "reward/mean",
    "accuracy": "accuracy",
    "$/question": "cost_usd",
    "valid": "valid_rate",
    "$ spent": "spend/usd",
}


class Interrupted(Exception):  # noqa: N818  an event, no error
    """The user stopped the run; everything is saved."""


class Trainer:
    """Owns the state of one run.

    Args:
        cfg: the run.
        environment: tasks and episodes.
        chat: tokenizer and chat format.
        runner: the loop that the environment's processes belong to.

    Raises:
        ConfigError: the folder holds another run.
    """

    def __init__(self, cfg: RunConfig, environment: Environment, chat: ChatFormat, runner: LoopThread) -> None:
        self.cfg, self.environment, self.chat, self._runner = cfg, environment, chat, runner
        self.directory = Path(cfg.output_dir)
        self.model, params = make_policy(cfg, chat)
        self.collector = make_collector(cfg, environment, chat)
        self.money = RunMoney(cfg.budget, self.directory)
        self.mesh, self.lora = device_mesh(cfg.mesh), adapters(cfg)
        self.warm = warm_learner(cfg, self.model, self.mesh)
        self.policy = policy_learner(cfg, self.model, self.mesh)
        self.schedule = learning_rate(cfg.algorithm.optimizer, policy_updates(cfg))
        self.base: Any = None  # what LoRA freezes
        if self.lora is not None:
            self.base = self.policy.place_params(params)
            params = init_adapters(jax.random.key(cfg.seed), self.model, self.lora)
        self.reference: Any = None  # of the KL; with LoRA it is the base
        self.phase, self.step, self.version = "warm_start", 0, 0
        self.notes: dict[str, Any] = {"seconds": 0.0}
        self._began = time.monotonic()
        self._stop = False
        self.checkpoints = Checkpoints(self.directory / "checkpoints", cfg.checkpoint.keep)
        self.state, position = self._restore_or_init(params)
        self.serving = runner.run(
            start_engine(
                cfg,
                self.model,
                self._engine_params(),
                self.version,
                tokenizer_size=len(chat.tokenizer),
                directory=self.directory,
            )
        )
        self.engine = self.serving.engine
        tasks = environment.train_tasks(cfg.algorithm.tasks_per_step)
        self.rollouts = Rollouts(cfg, self.collector, self.engine, tasks, runner)
        if position is not None:
            self.rollouts.set_state(position)
        self.evaluator = Evaluator(
            cfg.evaluation,
            environment.held_out(cfg.evaluation.questions),
            environment.paired_preferences(cfg.evaluation.swap_questions),
            environment.baselines(),
            self.collector,
            self.engine,
            cfg.reward.tool_feature,
            self.money.run,
        )

    def train(self) -> dict[str, Any]:
        """Runs what is left of the run.

        Returns:
            The summary for summary.json.

        Raises:
            Interrupted: Ctrl-C; the checkpoint of the last finished step is written.
            Halted: a budget is used up, or a call was never recorded; likewise.
        """
        with (
            RunLog(self.cfg, self.step + 1 if self.phase == "policy" else 0) as logger,
            self._clean_interrupt(),
        ):
            try:
                if self.phase == "warm_start":
                    self._warm_start()
                self._optimise(logger)
            except (BudgetExceeded, ReplayMiss) as error:
                raise self._halt(error) from None
            finally:
                self.money.save()
                self.checkpoints.close()
                self.rollouts.stop()
                self._runner.run(self.serving.close())
            return self._summary()

    # --- state ---

    def _restore_or_init(self, params: Params) -> tuple[TrainState, dict[str, Any] | None]:
        """The newest checkpoint's state and position in the tasks, or a fresh state on `params` and None."""
        # Only a policy with random weights has a warm start to go through, or to resume.
        first = self.warm if self._warms else self.policy
        meta = self.checkpoints.peek()
        if meta is None:
            return first.init(params), None
        changed = resume_conflicts(meta["config"], self.cfg)
        if changed:
            raise ConfigError(
                f"{self.directory} holds another run ({'; '.join(changed)}): choose another name=..., or delete it."
            )
        self.phase, self.step, self.version = meta["phase"], meta["step"], meta["version"]
        self.notes = meta["notes"]
        if self.phase == "warm_start":
            return self.checkpoints.restore({"state": first.init(params)})["state"], None
        like: dict[str, Any] = {"state": self.policy.init(params)}
        if self._keeps_reference:
            like["reference"] = self._reference_copy(like["state"].params)
        restored = self.checkpoints.restore(like)
        self.reference = restored.get("reference")
        return restored["state"], meta["data"]

    @property
    def _warms(self) -> bool:
        return bool(self.cfg.warm_start.steps) and self.cfg.model.path is None

    @property
    def _keeps_reference(self) -> bool:
        """Whether a copy of the starting policy is kept for the KL; under LoRA's adapters it is there anyway."""
        return self.cfg.algorithm.loss.kl_coef > 0 and self.lora is None

    def _reference_copy(self, params: Params) -> Any:
        algorithm = self.cfg.algorithm
        return reference_copy(params, algorithm.reference_dtype, offload=algorithm.reference_offload)

    def _engine_params(self) -> Params:
        params, rollout = whole_policy(self.state.params, self.base, self.lora), self.cfg.rollout
        if rollout.engine is EngineName.sglang:
            return params  # gathered bucket by bucket on its way out
        params = for_engine(params, self.mesh)
        # The update uses up its parameters: an engine that samples meanwhile needs its own.
        return jax.tree.map(jnp.copy, params) if rollout.max_staleness else params

    def _save(self) -> None:
        """Saves params, optimizer, reference, data cursor, step, version and notes together."""
        arrays: dict[str, Any] = {"state": self.state}
        if self.reference is not None:
            arrays["reference"] = self.reference
        offset = self.cfg.warm_start.steps + 1 if self.phase == "policy" else 0
        meta = {
            "phase": self.phase,
            "step": self.step,
            "version": self.version,
            "data": self.rollouts.get_state(),
            "notes": self.notes | {"seconds": self._seconds()},
            "config": config_record(self.cfg),
        }
        self.checkpoints.save(offset + self.step, arrays, meta)

    def _seconds(self) -> float:
        return self.notes["seconds"] + time.monotonic() - self._began

    def _check_stop(self) -> None:
        if self._stop:
            self._save()
            raise Interrupted(f"Stopped after step {self.step} of {self.phase}; the same command continues from there.")

    def _halt(self, error: BudgetExceeded | ReplayMiss) -> Halted:
        """Saves the last finished step; what was spent since is in the run's budget."""
        if (self.step and self._warms) if self.phase == "warm_start" else "before" in self.notes:
            self._save()
        raised = f" with a higher budget.{error.scope}_*" if isinstance(error, BudgetExceeded) else ""
        spent = self.money.run.spent.usd
        return Halted(
            f"{error} Stopped after step {self.step} of {self.phase} with ${spent:.6g} spent; the same command{raised} "
            "continues from there."
        )

    @contextmanager
    def _clean_interrupt(self) -> Iterator[None]:
        """The first Ctrl-C ends the run after the step under way; a second one ends it at once."""

        def handler(number: int, frame: Any) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True

        try:
            previous = signal.signal(signal.SIGINT, handler)
        except ValueError:  # not in the main thread (a notebook's or sweep's worker): nothing to install
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def _sync_engine(self) -> None:
        """Hands the engine the current weights under a new version."""
        self.version += 1
        self._runner.run(self.engine.update_weights(self._engine_params(), self.version))

    # --- warm start ---

    def _warm_start(self) -> None:
        """Supervised steps until the policy copies well enough, then the switch to the policy optimizer."""
        cfg = self.cfg.warm_start
        if self._warms:
            demonstrations = self.environment.demonstrations()
            if demonstrations is None:
                raise ConfigError(
                    f"The environment {self.cfg.env.name} has no demonstrations to learn from: set model.path=FOLDER, "
                    "or warm_start.steps=0."
                )
            with ProgressBar(cfg.steps, phase="warm start", start=self.step, every=50) as progress:
                progress.print(f"Making {len(demonstrations.tasks)} demonstrations ...")
                played = self._runner.run(
                    self.collector.play(
                        demonstrations.script, demonstrations.tasks, demonstrations.think, budget=self.money.run
                    )
                )
                try:
                    rows = demonstration_rows(played)
                except ValueError as error:
                    raise ConfigError(str(error)) from error
                self._warm_steps(rows, demonstrations, progress)
        self._sync_engine()
        self.phase, self.step = "policy", 0
        self.state = self.policy.init(self.state.params)  # copies: the engine holds the others
        if self._keeps_reference:
            self.reference = self._reference_copy(self.state.params)
        self.notes["before"] = self._evaluate("before")
        self._save()

    def _warm_steps(self, rows: Sequence[Any], demonstrations: Demonstrations, progress: ProgressBar) -> None:
        cfg = self.cfg.warm_start
        algorithm, shards = self.cfg.algorithm, self.warm.shards
        fractions = tuple(algorithm.response_fractions)
        shapes = demonstration_shapes(rows, cfg.batch_size, algorithm.micro_tokens, fractions, shards)
        batches = supervised_batches(rows, cfg.batch_size, shapes, self.cfg.seed, self.step, shards)
        copied = self.notes.get("copy_accuracy", 0.0)
        while self.step < cfg.steps and copied < cfg.min_copy_accuracy:
            self._runner.run(self.serving.free_gpus())
            self.state, metrics = self.warm.supervised_step(self.state, next(batches))
            self.step += 1
            if self.step % cfg.check_every == 0 or self.step == cfg.steps:
                self._sync_engine()
                copied = self._measure_copying(demonstrations)
                self.notes["copy_accuracy"] = copied
                self._save()
            progress.update(self.step, {"loss": metrics["loss"], "copied": copied})
            self._check_stop()
        if copied < cfg.min_copy_accuracy:
            progress.print(
                f"The warm start ended at copy accuracy {copied:.2f}, below warm_start.min_copy_accuracy="
                f"{cfg.min_copy_accuracy}: more warm_start.steps or demonstrations would help."
            )

    def _measure_copying(self, demonstrations: Demonstrations) -> float:
        """Copy accuracy of sampled trajectories on tasks that no demonstration was made of."""
        trajectories = self._runner.run(
            self.collector.collect(
                self.engine, demonstrations.gate, budget=self.money.run, seed=(self.cfg.seed, 1, self.step)
            )
        )
        return copy_accuracy(trajectories, demonstrations.reference_call, demonstrations.answer_from)

    # --- policy optimisation ---

    def _optimise(self, logger: RunLog) -> None:
        cfg = self.cfg
        with ProgressBar(cfg.steps, phase="policy", start=self.step) as progress:
            while self.step < cfg.steps:
                metrics = self._policy_step()
                self.step += 1
                refused: BudgetExceeded | ReplayMiss | None = None
                if cfg.evaluation.every and self.step % cfg.evaluation.every == 0 and self.step < cfg.steps:
                    try:
                        figures = self._evaluate(f"step {self.step}")
                    except (BudgetExceeded, ReplayMiss) as error:
                        figures, refused = {}, error  # the step itself is done
                    metrics |= {f"eval/{name}": value for name, value in figures.items() if isinstance(value, float)}
                metrics["seconds"] = self._seconds()
                logger.log(self.step, metrics)
                if metrics.get("updates/skipped"):
                    progress.print(f"Step {self.step}: loss or gradient was not finite, so its update was skipped.")
                progress.update(self.step, {name: metrics[key] for name, key in _LIVE.items() if key in metrics})
                self.money.save()
                if self.step % cfg.checkpoint.every == 0 or self.step == cfg.steps:
                    self._save()
                if refused is not None:
                    raise refused
                self._check_stop()
        self.rollouts.stop()
        if "after" not in self.notes:
            self.notes["after"] = self._evaluate("after")
        if cfg.checkpoint.export:
            folder = self.directory / "policy"
            export(folder, self.model, self.state.params, self.lora, base=cfg.model.path, tokenizer=self.chat.tokenizer)
            print(f"The policy is in {folder}" + (" (adapters in PEFT's format)." if self.lora else "."), flush=True)

    def _policy_step(self) -> dict[str, float]:
        """Rollouts, rewards, advantages and the update of one step."""
        cfg = self.cfg
        start = time.monotonic()
        budget = self.money.step()
        trajectories, ages = self.rollouts.take(self.step, self.version, budget)
        rolled = time.monotonic()
        self._runner.run(self.serving.free_gpus())
        shown = trajectories[:: cfg.algorithm.group_size][: cfg.logger.trajectories]
        write_transcripts(self.directory / "trajectories", self.step + 1, shown)
        arrays = group_arrays(trajectories, cfg.algorithm.group_size)
        rewards, advantages, kept = score_groups(cfg, arrays)
        updates = self._update(trajectories, advantages.reshape(-1))
        self._sync_engine()
        done = time.monotonic()
        return {
            **_rollout_metrics(trajectories, rewards, kept),
            **ages,
            **updates,
            **self._spending(budget),
            "time/rollout": rolled - start,
            "time/update": done - rolled,
        }

    def _spending(self, step: Budget) -> dict[str, float]:
        """What was paid outside; nothing where all is simulated, local or replayed."""
        run = self.money.run.spent
        return {"spend/usd": run.usd, "spend/step_usd": step.spent.usd} if run.calls else {}

    def _update(self, trajectories: Sequence[Trajectory], advantages: np.ndarray) -> dict[str, float]:
        """All optimizer steps on one step's trajectories."""
        algorithm = self.cfg.algorithm
        kl_scale = kl_share(algorithm, self.step, self.cfg.steps)
        # Without a pull towards the reference, a trajectory with advantage 0 has no gradient and need not be run.
        regularised = algorithm.loss.kl_coef * kl_scale > 0 or algorithm.entropy_coef > 0
        size = len(trajectories) // algorithm.minibatches
        minibatches = []
        for first in range(0, len(trajectories), size):
            part = zip(trajectories[first : first + size], advantages[first : first + size], strict=True)
            rows = [
                row
                for trajectory, a in part
                if a != 0 or (regularised and trajectory.status is not Status.FAILED)
                for row in sequences(trajectory, float(a))
            ]
            if rows:
                minibatches.append(policy_batches(self.cfg, rows, self.policy.shards))
        if algorithm.loss.importance is not Importance.none:
            minibatches = [
                [self.policy.score(self.state.params, batch, base=self.base) for batch in batches]
                for batches in minibatches
            ]
        if algorithm.loss.kl_coef * kl_scale > 0:
            reference = self.policy.place_params(self.base if self.reference is None else self.reference)
            minibatches = [
                [self.policy.score_reference(reference, batch) for batch in batches] for batches in minibatches
            ]
            del reference  # an offloaded one leaves the devices before the update
        rate = float(self.schedule(int(self.state.step)))
        found: list[Mapping[str, float]] = []
        for _ in range(algorithm.epochs):
            for batches in minibatches:
                self.state, metrics = self.policy.policy_step(self.state, batches, kl_scale=kl_scale, base=self.base)
                found.append(metrics)
        if not found:
            return {"lr": rate}
        merged = {**found[-1], **{name: found[0][name] for name in _FIRST_METRICS}}
        merged["skipped"] = sum(metrics["skipped"] for metrics in found)
        if algorithm.loss.kl_coef * kl_scale == 0:
            merged.pop("kl_ref", None)  # nothing was scored by the reference
        return {"lr": rate} | {shown: merged[name] for name, shown in _UPDATE_METRICS.items() if name in merged}

    # --- evaluation ---

    def _evaluate(self, name: str) -> dict[str, Any]:
        """Figures of the current weights on the held-out questions."""
        if not self.cfg.evaluation.questions:
            return {}
        print(f"Evaluating on {self.cfg.evaluation.questions} held-out questions ({name}) ...", flush=True)
        return self._runner.run(self.evaluator.evaluate())

    def _summary(self) -> dict[str, Any]:
        """What summary.json holds."""
        before, after = self.notes["before"], self.notes["after"]
        summary: dict[str, Any] = {"name": self.cfg.name, "seed": self.cfg.seed, "steps": self.step}
        summary["seconds"] = self._seconds()
        summary["copy_accuracy"] = self.notes.get("copy_accuracy")
        summary["preference_swap"] = {"before": before.pop("swap", {}), "after": after.pop("swap", {})}
        summary["baselines"] = self._runner.run(self.evaluator.baselines()) if self.cfg.evaluation.questions else {}
        return summary | {"before": before, "after": after, "spent": self.money.summary()}


def _rollout_metrics(trajectories: Sequence[Trajectory], rewards: np.ndarray, kept: np.ndarray) -> dict[str, float]:
    solved, cost = sum(t.solved for t in trajectories), sum(t.cost_usd for t in trajectories)
    return {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std(axis=1).mean()),
        "groups/kept": float(kept.mean()),
        "accuracy": solved / len(trajectories),
        "valid_rate": float(np.mean([t.valid for t in trajectories])),
        "cost_usd": cost / len(trajectories),
        "cost_per_correct": cost / max(1, solved),
        "latency_s": float(np.mean([t.latency_s for t in trajectories])),
        "calls": float(np.mean([len(t.tool_names) for t in trajectories])),
        "tokens/sampled": float(np.mean([sum(len(turn.sampled_ids) for turn in t.turns) for t in trajectories])),
    }
