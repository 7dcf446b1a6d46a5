"""The loop of a run: collect trajectories, score them, update the policy, push its weights to the engine."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from orchestra_jax.config.schema import POLICY_FOLDER, RunConfig
from orchestra_jax.engines.start import start_engine
from orchestra_jax.envs.base import Environment
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.models import checkpoint
from orchestra_jax.models.base import Params
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.money.run_budget import RunBudget
from orchestra_jax.processes import Processes
from orchestra_jax.rl.batching import MicroBatch
from orchestra_jax.rl.groups import GroupRewards, trained_groups
from orchestra_jax.rl.optimizer import learning_rate
from orchestra_jax.rl.packing import policy_shapes
from orchestra_jax.rl.setup import (
    adapters,
    device_mesh,
    kl_scale,
    policy_learner,
    policy_updates,
    ratio_spans_rows,
    warm_learner,
)
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.training.build import make_collector, make_evaluator, make_policy, policy_config, rollout_source
from orchestra_jax.training.checkpoint_names import checkpoint_folder, newest_checkpoint
from orchestra_jax.training.checkpointing import Checkpoints, RunState
from orchestra_jax.training.loggers.base import RunLog
from orchestra_jax.training.loggers.progress import ProgressBar, show_step
from orchestra_jax.training.loggers.rollouts import RolloutFiles
from orchestra_jax.training.metrics import rollout_metrics, spending_metrics, update_metrics
from orchestra_jax.training.policy_weights import engine_params, fingerprint, starting_reference
from orchestra_jax.training.stopping import CleanInterrupt, Interrupted
from orchestra_jax.training.update import update
from orchestra_jax.types import OutOfTime, ReplayMiss, Trajectory


class Trainer:
    """The parts and the state of one run.

    Args:
        environment: its processes belong to `loop`.

    Attributes:
        origin: checkpoint that the run continues from; None: it begins.
        base: frozen parameters under the adapters of LoRA, else None.

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
        self._times, self._lapped = dict[str, float](), self._began

        # The run so far.
        place = checkpoint_folder(cfg.output_dir, cfg.checkpoint.folder)
        self.checkpoints = Checkpoints(place, cfg.checkpoint.keep, self.processes)
        with self.processes.together():
            if (saved := self.checkpoints.peek()) is not None:
                from orchestra_jax.config.begun import require_same_run

                require_same_run(saved, cfg, cfg.checkpoint.folder or cfg.output_dir)
        self.origin = newest_checkpoint(place)

        # The policy and its learners. Weights that a checkpoint of the run will replace are not loaded.
        self.mesh, self.lora = device_mesh(cfg.mesh), adapters(cfg.model.lora)
        params: Params | None = None
        with self.processes.together():
            if saved is None or self.lora is not None:
                self.model, params = make_policy(cfg, chat, self.mesh)
            else:
                self.model = policy_config(cfg, chat)
        self.policy = policy_learner(
            cfg.algorithm, cfg.rollout, cfg.steps, self.model, mesh=self.mesh, adapters=self.lora
        )
        self.shapes = policy_shapes(cfg.algorithm, cfg.model, cfg.rollout.limits.max_length, cfg.rollout.history)
        fresh = self.lora is not None and cfg.model.lora.path is None  # their base is the reference
        self._keeps_reference = cfg.algorithm.loss.kl_coef > 0 and not fresh
        self.schedule = learning_rate(cfg.algorithm.optimizer, policy_updates(cfg.algorithm, cfg.steps))
        warms = cfg.warm_start.steps and (cfg.model.path is None or cfg.warm_start.pretrained)
        self.warm = warm_learner(cfg.warm_start, self.model, mesh=self.mesh, adapters=self.lora) if warms else None
        self.base: Any = None
        if self.lora is not None:
            self.base = self.policy.place_params(cast(Params, params))
            from orchestra_jax.training.adapters import starting_adapters

            with self.processes.together():
                params = starting_adapters(cfg.model.lora.path, cfg.seed, self.model, self.lora)
        self.state, position = self._restore_or_init(saved, params)
        del params  # its buffers are the state's now

        # The engine, and the parts that sample with it.
        given = cfg.rollout, self.model, self._engine_params(), self.state.version
        self.serving = start_engine(
            *given, tokenizer_size=len(chat.tokenizer), directory=self.directory, loop=loop, processes=self.processes
        )
        self.engine = self.serving.engine
        if cfg.logger.speed:
            from orchestra_jax.training.idle import WatchedEngine

            self.engine = WatchedEngine(self.serving.engine)
        with self.processes.together():
            self.collector = make_collector(cfg, environment, chat)
            tasks = environment.train_tasks(cfg.algorithm.tasks_per_step)
            sampling = cfg.algorithm, cfg.rollout, cfg.seed, self.collector, self.engine, tasks, loop, self.processes
            self.rollouts = rollout_source(*sampling, steps=cfg.steps)
            groups, largest = self.rollouts.per_step, environment.largest_menu()
            self.rewards = GroupRewards(cfg.reward, cfg.algorithm.advantage, cfg.algorithm.group_size, groups, largest)
            if position is not None:
                self.rollouts.set_state(position)
            trajectories = self.directory / "evaluation" / "trajectories"
            self.evaluator = make_evaluator(cfg, self.collector, self.engine, money.run, trajectories, self.processes)
            self.files = RolloutFiles(self.directory, self.next_step, self.processes, on=cfg.logger.rollouts)

        self.watch: Callable[[Sequence[Trajectory]], None] | None = None  # gets every step's rollouts, of all processes

        # What may stop it.
        self.interrupt = CleanInterrupt(cfg.checkpoint.grace_s, self._out_of_time)
        if self.processes.lifeline is not None:
            self.processes.lifeline.on_late = self._give_up
        money.share()

    @property
    def next_step(self) -> int:
        """Number of the policy step that comes next."""
        return self.state.step + 1 if self.state.phase == "policy" else 1

    @contextmanager
    def running(self) -> Iterator[None]:
        """Heed Ctrl-C, SIGTERM and SIGHUP during the block, and close everything at its end, however it comes.

        Raises:
            Halted, Interrupted, ConfigError: a budget, the record, a signal or lost servers; the last step is saved.
        """
        with self.interrupt:
            try:
                yield
            except (BudgetExceeded, ReplayMiss, OutOfTime) as error:
                state = self.state
                # The step under way has not changed the last finished one; its bill is in the run's budget.
                if (state.step and self.warm) if state.phase == "warm_start" else "before" in state.notes:
                    self.save()
                from orchestra_jax.training.endings import stopped

                raise stopped(error, f"step {state.step} of {state.phase}", self.money.spent.usd) from None
            finally:
                self._give_up()  # rollouts that run ahead are lost: they must not pay while a save is awaited
                with ExitStack() as closing:
                    closing.callback(lambda: self.loop.run(self.serving.close()))
                    closing.callback(self.rollouts.stop)
                    closing.callback(self.files.close)
                    self.checkpoints.close()

    # --- policy optimisation ---

    def optimise(self, log: RunLog) -> None:
        """Take policy steps until the last one; evaluate, log, show and save as configured.

        Raises:
            Interrupted: a signal came; the last finished step is saved.
        """
        cfg, state, self._lapped = self.cfg, self.state, time.monotonic()
        with ProgressBar(cfg.steps, phase="policy", start=state.step) as progress:
            self.watch = progress.show
            while state.step < cfg.steps:
                metrics = state.notes.pop("unmeasured", None) or self.policy_step()
                metrics["seconds"] = self.seconds()
                refused: BudgetExceeded | ReplayMiss | OutOfTime | None = None
                if cfg.evaluation.every and state.step % cfg.evaluation.every == 0 and state.step < cfg.steps:
                    from orchestra_jax.training.evaluation_progress import evaluation_metrics

                    try:
                        metrics |= evaluation_metrics(self.evaluate(f"step {state.step}"))
                    except (BudgetExceeded, ReplayMiss, OutOfTime) as error:
                        refused, state.notes["unmeasured"] = error, metrics  # the step itself is done
                    self._lap("evaluate")
                log.log(state.step, metrics)
                show_step(progress, state.step, metrics)
                if state.step % cfg.checkpoint.every == 0 or state.step == cfg.steps:
                    self.save()
                self.checkpoints.check()
                if refused is not None:
                    raise refused
                self.stop_if_asked()
                self._lap("save")
        self.rollouts.stop()

    def policy_step(self) -> dict[str, float]:
        """Take one step of the method, and return its metrics: collect, score, update, push the weights."""
        state, budget = self.state, self.money.step()
        position = self.rollouts.get_state()
        trajectories, ages = self.rollouts.take(state.step, state.version, budget, self.rewards.informative)
        self._lap("rollout")
        try:
            self.free_gpus()
        except OutOfTime:  # the run that goes on repeats this step
            self.rollouts.set_state(position)
            raise

        rewards, advantages, informative = self.rewards.reward_and_advantage(trajectories)
        self._lap("score")

        size = self.cfg.algorithm.group_size
        groups = trained_groups(informative, self.rewards.per_step)
        numbers = [g * size + m for g in groups for m in range(size)]
        members = [trajectories[number] for number in numbers]
        rate = float(self.schedule(int(state.trained.step)))
        scored: list[MicroBatch] | None = [] if self.files.on else None
        given = self.cfg.algorithm, self.shapes, self.policy, state.trained, members, advantages[groups].reshape(-1)
        state.trained, updates = update(
            *given,
            kl_scale=kl_scale(self.cfg.algorithm, state.step, self.cfg.steps),
            spans_rows=ratio_spans_rows(self.cfg.algorithm.loss, self.cfg.rollout.history),
            base=self.base,
            reference=self.base if state.reference is None else state.reference,
            scored=scored,
        )
        learner = {}
        if scored:
            from orchestra_jax.training.loggers.scored import own_logprobs

            learner = {numbers[n]: own for n, own in own_logprobs(members, scored).items()}
        del scored  # frees its arrays on the devices
        self._lap("update")

        state.step += 1  # it is done, and is saved even if no server takes its weights
        self.files.add(state.step, trajectories, rewards, advantages, informative, learner)
        self.push_weights()
        self._lap("sync")

        spent, step_spent = self.money.run.spent, budget.spent
        if self.processes.count > 1:
            from orchestra_jax.training.whole_step import StepPart, whole_step

            own = StepPart(trajectories, rewards, informative, spent, step_spent)
            trajectories, rewards, informative, spent, step_spent = whole_step(self.processes, own)
        if self.watch is not None:
            self.watch(trajectories)
        if self.processes.first and (most := self.cfg.logger.trajectories):
            from orchestra_jax.training.loggers import transcripts

            transcripts.write_transcripts(self.directory / "trajectories", state.step, trajectories[::size][:most])
        figures = rollout_metrics(trajectories, rewards, informative) | ages | update_metrics(updates)
        figures |= {**spending_metrics(spent, step_spent), "lr": rate}
        self._lap("other")
        times, self._times = self._times, {}
        if self.cfg.logger.speed:
            from orchestra_jax.training.idle import idle_shares
            from orchestra_jax.training.speed import speed_metrics

            parts, trained = (self.cfg.algorithm, self.cfg.rollout, self.model, self.processes), advantages[groups].flat
            adapted = self.lora is not None
            figures |= speed_metrics(*parts, trajectories, members, trained, updates, times, adapted=adapted)
            figures |= idle_shares(self.engine, times, self._lapped, self.cfg.rollout)
        return figures | times

    def _lap(self, name: str) -> None:
        """End a phase of the step under way, which began where the one before ended."""
        before, self._lapped = self._lapped, time.monotonic()
        self._times[f"time/{name}"] = self._lapped - before

    def begin_policy_phase(self) -> None:
        """End the warm start: make the policy optimizer and the reference of the KL, and evaluate before training."""
        state, warmed = self.state, self.seconds()
        if self.warm is not None:
            # The warm start's moments are freed before the policy's are made.
            state.trained = replace(state.trained, opt_state=None)
            state.trained = self.policy.init(state.trained.params, donate=True)
        state.phase, state.step = "policy", 0
        self.push_weights()
        if self._keeps_reference:
            state.reference = starting_reference(self.cfg.algorithm, self.model.dtype, state.trained.params)
        state.notes["before"] = self.evaluate("before")
        state.notes["seconds"] = {"warm start": warmed, "evaluation before": self.seconds() - warmed}
        self.save()

    def free_gpus(self) -> None:
        """Take back the GPU memory that servers share with the learner, until the next `push_weights`."""
        with self.processes.together():
            self.loop.run(self.serving.free_gpus())

    def push_weights(self) -> None:
        """Give the engine the current weights under a new version."""
        self.state.version += 1
        params = self._engine_params()
        with self.processes.together():
            self.loop.run(self.engine.update_weights(params, self.state.version))

    def evaluate(self, when: str) -> dict[str, Any]:
        """Return figures of the current weights, by benchmark; none with evaluation.questions=0.

        Trajectories that an earlier process of this run has kept of this evaluation are not sampled again, if the
        weights are the same to the bit.
        """
        if not self.evaluator.benchmarks:
            return {}
        print(f"Evaluating on {' and '.join(self.evaluator.benchmarks)} ({when}) ...", flush=True)
        weights = fingerprint((self.state.trained.params, self.base))
        model = None  # the name of the policy's own model, if it is one that conf/models.yaml knows
        if self.cfg.model.path is not None or self.cfg.policy is not None:
            from orchestra_jax.training.subject import policy_model

            model = policy_model(self.cfg)
        return self.loop.run(self.evaluator.evaluate(when, weights, model))

    # --- state ---

    def seconds(self) -> float:
        """Return the wall-clock seconds of the whole run, earlier processes included."""
        return self.state.seconds + time.monotonic() - self._began

    def save(self) -> None:
        """Save everything that the run needs to continue from the last finished step."""
        self.files.flush()  # no step before a checkpoint is done again
        self.checkpoints.save_run(self.cfg, self.state, self.rollouts.get_state(), self.seconds())

    def export(self, tokenizer: Any) -> None:
        """Write the policy so that transformers and SGLang load it, or its adapters so that PEFT loads them."""
        folder, trained = self.directory / POLICY_FOLDER, self.state.trained.params
        if self.lora is not None:
            from orchestra_jax.models.lora import save_peft

            base = str(self.cfg.model.path)
            save_peft(folder, self.model, trained, self.lora, base, tokenizer=tokenizer, overwrite=True)
        else:
            checkpoint.save(folder, self.model, trained, tokenizer=tokenizer, overwrite=True)
        print(f"The policy is in {folder}" + (" (adapters in PEFT's format)." if self.lora else "."), flush=True)

    def stop_if_asked(self) -> None:
        """Save the last finished step and raise Interrupted, if any process got a signal."""
        words = self.processes.gather((self.interrupt.asked, self.money.run.get_state()))
        self.money.share([spent for _, spent in words])
        if any(asked for asked, _ in words):
            self.processes.agreed = True
            self.save()
            raise Interrupted(
                f"Stopped after step {self.state.step} of {self.state.phase}; the same command continues from there."
            )

    def _out_of_time(self) -> None:
        """End the rollouts or the evaluation under way in all processes, so that none waits for another's."""
        if self.processes.lifeline is not None:
            self.processes.lifeline.late()
        self._give_up()

    def _give_up(self) -> None:
        reason = OutOfTime(f"the next one did not end within checkpoint.grace_s={self.cfg.checkpoint.grace_s:g}")
        self.loop.call_soon(self.collector.give_up, reason)

    def _restore_or_init(self, saved: Any, params: Params | None) -> tuple[RunState, dict[str, Any] | None]:
        """Return the state and position in the tasks of the checkpoint, or a fresh state made of `params`."""
        if saved is None:
            return RunState((self.warm or self.policy).init(cast(Params, params), donate=True)), None
        from orchestra_jax.training.resuming import restored

        reference = self.cfg.algorithm if self._keeps_reference else None
        return restored(self.checkpoints, saved, self.warm, self.policy, reference)

    def _engine_params(self) -> Params:
        return engine_params(self.cfg.rollout, self.state.trained.params, self.base, self.lora, self.mesh)
