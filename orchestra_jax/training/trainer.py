"""The loop of a run: rollouts, rewards and advantages, the update, the new weights to the engine; all of it resumes."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from orchestra_jax.config.schema import RunConfig
from orchestra_jax.engines.base import RunEngine
from orchestra_jax.engines.start import start_engine, write_first_model
from orchestra_jax.envs.base import Environment
from orchestra_jax.evaluation.runner import Evaluator
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.models.base import Params
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.money.run_budget import Halted, RunBudget
from orchestra_jax.processes import Processes
from orchestra_jax.rl.batching import MicroBatch
from orchestra_jax.rl.groups import group_arrays, trained_groups
from orchestra_jax.rl.optimizer import learning_rate
from orchestra_jax.rl.setup import (
    adapters,
    device_mesh,
    policy_learner,
    policy_updates,
    reward_groups,
    warm_learner,
)
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.source import RolloutSource
from orchestra_jax.training.build import make_collector, make_policy, policy_config
from orchestra_jax.training.checkpointing import Checkpoints, RunState, newest_checkpoint
from orchestra_jax.training.loggers.base import RunLog
from orchestra_jax.training.loggers.progress import ProgressBar, show_step
from orchestra_jax.training.loggers.rollouts import RolloutFiles
from orchestra_jax.training.loggers.scored import own_logprobs
from orchestra_jax.training.loggers.transcripts import write_transcripts
from orchestra_jax.training.metrics import (
    StepPart,
    evaluation_metrics,
    rollout_metrics,
    spending_metrics,
    update_metrics,
    whole_step,
)
from orchestra_jax.training.stopping import CleanInterrupt, Interrupted
from orchestra_jax.training.subject import policy_model
from orchestra_jax.training.update import update
from orchestra_jax.training.weights import (
    abstract_reference,
    engine_params,
    fingerprint,
    starting_adapters,
    starting_reference,
)
from orchestra_jax.types import OutOfTime, ReplayMiss, Trajectory


class Trainer:
    """Owns the parts and the state of one run. The environment's processes belong to `loop`.

    Attributes:
        origin: the checkpoint that it goes on from; None: it begins anew.

    Raises:
        ConfigError: the folder holds another run.
    """

    def __init__(
        self,
        cfg: RunConfig,
        environment: Environment,
        chat: ChatFormat,
        money: RunBudget,
        loop: LoopThread,
        processes: Processes | None = None,
    ) -> None:
        self.cfg, self.money, self.loop, self.processes = cfg, money, loop, processes or Processes()
        self.directory, self._began = Path(cfg.output_dir), time.monotonic()
        self.mesh, self.lora = device_mesh(cfg.mesh), adapters(cfg.model.lora)
        self.checkpoints = Checkpoints(self.directory / "checkpoints", cfg.checkpoint.keep, self.processes)
        params: Params | None = None
        with self.processes.together():
            meta = self.checkpoints.run_meta(cfg)
            self.origin = newest_checkpoint(self.directory / "checkpoints")
            if meta is None or self.lora is not None:
                self.model, params = make_policy(cfg, chat, self.mesh)
            else:
                self.model = policy_config(cfg, chat)  # the weights are the checkpoint's
            self.collector = make_collector(cfg, environment, chat)
            self._menu = environment.largest_menu()  # K of the rewards' arrays
        self.policy = policy_learner(
            cfg.algorithm, cfg.rollout, cfg.steps, self.model, mesh=self.mesh, adapters=self.lora
        )
        warms = cfg.warm_start.steps and (cfg.model.path is None or cfg.warm_start.pretrained)
        self.warm = warm_learner(cfg.warm_start, self.model, mesh=self.mesh, adapters=self.lora) if warms else None
        self.schedule = learning_rate(cfg.algorithm.optimizer, policy_updates(cfg.algorithm, cfg.steps))
        self.base: Any = None  # what LoRA freezes
        if self.lora is not None:
            self.base = self.policy.place_params(cast(Params, params))
            with self.processes.together():
                params = starting_adapters(cfg, self.model, self.lora)
        self.state, position = self._restore_or_init(meta, params)
        del params  # used up
        self.serving = self._start_engine(len(chat.tokenizer))
        self.engine = self.serving.engine
        with self.processes.together():
            tasks = environment.train_tasks(cfg.algorithm.tasks_per_step)
            self.rollouts = RolloutSource(
                cfg, self.collector, self.engine, tasks, loop, self.processes, lambda found: self._score(found)[2]
            )
            if position is not None:
                self.rollouts.set_state(position)
            trajectories = self.directory / "evaluation" / "trajectories"
            self.evaluator = Evaluator(cfg, self.collector, self.engine, money.run, trajectories, self.processes)
            next_step = self.state.step + 1 if self.state.phase == "policy" else 1
            self.files = RolloutFiles(self.directory, next_step, self.processes, on=cfg.logger.rollouts)
        self.interrupt = CleanInterrupt(cfg.checkpoint.grace_s, self._out_of_time)
        if self.processes.lifeline is not None:
            self.processes.lifeline.on_late = self._give_up
        money.share()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Heeds Ctrl-C, SIGTERM and SIGHUP, and at the end, however it comes, closes everything.

        Raises:
            Halted: a budget is used up, or a call was never recorded; the last finished step is saved.
            Interrupted: it was stopped, and the step under way took too long; likewise.
        """
        with self.interrupt:
            try:
                yield
            except (BudgetExceeded, ReplayMiss) as error:
                state = self.state
                self._save_last_finished()
                scope = error.scope if isinstance(error, BudgetExceeded) else ""
                raised = f" with a higher budget.{scope}_*" if scope else ""
                raise Halted(
                    f"{error} Stopped after step {state.step} of {state.phase} with ${self.money.spent.usd:.6g} "
                    f"spent; the same command{raised} continues from there."
                ) from None
            except OutOfTime as late:
                self._save_last_finished()
                raise Interrupted(
                    f"Stopped after step {self.state.step} of {self.state.phase}: {late}; the same command continues "
                    "from there."
                ) from None
            finally:
                with ExitStack() as closing:
                    closing.callback(lambda: self.loop.run(self.serving.close()))
                    closing.callback(self.rollouts.stop)
                    closing.callback(self.files.close)
                    self.checkpoints.close()

    # --- policy optimisation ---

    def optimise(self, log: RunLog) -> None:
        """Policy steps until the last one; each is evaluated, logged, shown and saved as configured.

        Raises:
            Interrupted: Ctrl-C or another signal; the checkpoint of the last finished step is written.
        """
        cfg, state = self.cfg, self.state
        with ProgressBar(cfg.steps, phase="policy", start=state.step) as progress:
            while state.step < cfg.steps:
                metrics = self._policy_step()
                refused: BudgetExceeded | ReplayMiss | OutOfTime | None = None
                if cfg.evaluation.every and state.step % cfg.evaluation.every == 0 and state.step < cfg.steps:
                    try:
                        metrics |= evaluation_metrics(self.evaluate(f"step {state.step}"))
                    except (BudgetExceeded, ReplayMiss, OutOfTime) as error:
                        refused = error  # the step itself is done
                metrics["seconds"] = self.seconds()
                log.log(state.step, metrics)
                show_step(progress, state.step, metrics)
                if state.step % cfg.checkpoint.every == 0 or state.step == cfg.steps:
                    self.save()
                self.checkpoints.check()
                if refused is not None:
                    raise refused
                self.stop_if_asked()
        self.rollouts.stop()

    def _policy_step(self) -> dict[str, float]:
        """One step of the method: rollouts, rewards, advantages, update, and the new weights to the engine."""
        cfg, state, start = self.cfg, self.state, time.monotonic()
        budget = self.money.step()
        trajectories, ages = self.rollouts.take(state.step, state.version, budget)
        rolled = time.monotonic()
        with self.processes.together():
            self.loop.run(self.serving.free_gpus())
        rewards, advantages, kept = self._score(trajectories)
        trained, size = trained_groups(kept, self.rollouts.per_step), cfg.algorithm.group_size
        rate = float(self.schedule(int(state.trained.step)))
        indices = [g * size + m for g in trained for m in range(size)]
        members = [trajectories[index] for index in indices]
        scored: list[MicroBatch] | None = [] if self.files.on else None
        state.trained, updates = update(
            cfg,
            self.policy,
            state.trained,
            members,
            advantages[trained].reshape(-1),
            step=state.step,
            base=self.base,
            reference=self.base if state.reference is None else state.reference,
            scored=scored,
        )
        learner = {indices[n]: own for n, own in own_logprobs(members, scored or []).items()}
        del scored  # its arrays leave the devices
        self.sync_engine()
        state.step += 1
        self.files.add(state.step, trajectories, rewards, advantages, kept, learner)
        whole = whole_step(self.processes, StepPart(trajectories, rewards, kept, self.money.run.spent, budget.spent))
        if self.processes.first:
            shown = whole.trajectories[::size][: cfg.logger.trajectories]
            write_transcripts(self.directory / "trajectories", state.step, shown)
        return {
            **rollout_metrics(whole.trajectories, whole.rewards, whole.kept),
            **ages,
            **update_metrics(updates),
            **spending_metrics(whole.spent, whole.step_spent),
            "lr": rate,
            "time/rollout": rolled - start,
            "time/update": time.monotonic() - rolled,
        }

    def _score(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """What `reward_groups` gives for whole groups, however many: in parts as large as a step without more groups.

        So nothing is compiled anew, and a group's figures are the same to the bit whatever was collected after it.
        """
        members, parts = self.cfg.algorithm.group_size, []
        part = self.rollouts.per_step * members
        for first in range(0, len(trajectories), part):
            found = trajectories[first : first + part]
            arrays = group_arrays([*found, *trajectories[: part - len(found)]], members, self._menu)
            self._menu = arrays.tool_counts.shape[-1]
            parts.append(reward_groups(arrays, self.cfg.reward, self.cfg.algorithm.advantage))
        return [np.concatenate(figures)[: len(trajectories) // members] for figures in zip(*parts, strict=True)]

    def begin_policy_phase(self) -> None:
        """Ends the warm start: the policy optimizer, the reference of the KL, and the figures before training."""
        state = self.state
        if self.warm is not None:
            # Takes over the parameters, and the warm start's moments go before its own come.
            state.trained = replace(state.trained, opt_state=None)
            state.trained = self.policy.init(state.trained.params, donate=True)
        self.sync_engine()
        state.phase, state.step = "policy", 0
        state.reference = starting_reference(self.cfg, state.trained.params)
        state.notes["before"] = self.evaluate("before")
        self.save()

    def sync_engine(self) -> None:
        """Hands the engine the current weights under a new version."""
        self.state.version += 1
        params = self._engine_params()
        with self.processes.together():
            self.loop.run(self.engine.update_weights(params, self.state.version))

    def evaluate(self, when: str) -> dict[str, Any]:
        """Figures of the current weights, by benchmark; nothing with evaluation.questions=0.

        What an earlier process of this run left of the same evaluation, of the same weights to the bit, is not asked
        again.
        """
        if not self.evaluator.benchmarks:
            return {}
        print(f"Evaluating on {' and '.join(self.evaluator.benchmarks)} ({when}) ...", flush=True)
        return self.loop.run(
            self.evaluator.evaluate(when, fingerprint((self.state.trained.params, self.base)), policy_model(self.cfg))
        )

    # --- state ---

    def seconds(self) -> float:
        """Wall clock of the whole run, earlier processes included."""
        return self.state.seconds + time.monotonic() - self._began

    def save(self) -> None:
        """Saves everything that the run needs to continue from the last finished step."""
        self.files.flush()  # no step before a checkpoint is done again
        self.checkpoints.save_run(self.cfg, self.state, self.rollouts.get_state(), self.seconds())

    def _save_last_finished(self) -> None:
        """Saves what the step under way has not changed; what was spent since is in the run's budget."""
        state = self.state
        if (state.step and self.warm) if state.phase == "warm_start" else "before" in state.notes:
            self.save()

    def _out_of_time(self) -> None:
        """Ends the rollouts or the evaluation under way in all processes; none then waits for another's."""
        if self.processes.lifeline is not None:
            self.processes.lifeline.late()
        self._give_up()

    def _give_up(self) -> None:
        reason = OutOfTime(f"the next one did not end within checkpoint.grace_s={self.cfg.checkpoint.grace_s:g}")
        self.loop.call_soon(self.collector.give_up, reason)

    def stop_if_asked(self) -> None:
        """Raises:
        Interrupted: a signal came; the last finished step is saved.
        """
        words = self.processes.gather((self.interrupt.asked, self.money.run.get_state()))
        self.money.share([spent for _, spent in words])
        if any(asked for asked, _ in words):
            self.processes.agreed = True
            self.save()
            raise Interrupted(
                f"Stopped after step {self.state.step} of {self.state.phase}; the same command continues from there."
            )

    def _restore_or_init(self, meta: Any, params: Params | None) -> tuple[RunState, dict[str, Any] | None]:
        """The state and position in the tasks of the newest checkpoint, or a fresh state on `params` and None.

        A checkpoint's arrays go straight to where they belong: nothing of their size is made beside them.

        Args:
            meta: of the newest checkpoint, or None.
            params: used up; of the policy or the adapters.
        """
        first = self.warm or self.policy
        if meta is None:
            return RunState(first.init(cast(Params, params), donate=True)), None
        if meta["phase"] == "warm_start":
            return self.checkpoints.restore_run(meta, first.abstract_state(), None), None
        like = self.policy.abstract_state()
        return self.checkpoints.restore_run(meta, like, abstract_reference(self.cfg, like.params)), meta["data"]

    def _start_engine(self, tokenizer_size: int) -> RunEngine:
        params, version = self._engine_params(), self.state.version
        with self.processes.together():
            if self.processes.first and self.processes.count > 1:
                write_first_model(self.cfg.rollout, self.model, params, self.directory)
        with self.processes.together():
            starting = start_engine(
                self.cfg.rollout,
                self.model,
                params,
                version,
                tokenizer_size=tokenizer_size,
                directory=self.directory,
                processes=self.processes,
            )
            return self.loop.run(starting)

    def _engine_params(self) -> Params:
        return engine_params(self.cfg, self.state.trained.params, self.base, self.lora, self.mesh)
