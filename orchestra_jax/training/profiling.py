"""Traces of single steps with `jax.profiler`, for TensorBoard or Perfetto."""

import functools
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from orchestra_jax.training.trainer import Trainer

FOLDER = "profile"  # in the run's folder


def trace_steps(trainer: "Trainer") -> None:
    """Let the trainer record a trace of each step in `profile.steps`, in `profile/step-000003/`; of each process one.

    Rollouts, update and weight push are named in it. A step that is done again after a kill is traced again.
    """
    step, wanted = trainer.policy_step, frozenset(trainer.cfg.profile.steps)

    @functools.wraps(step)
    def traced() -> dict[str, float]:
        number = trainer.state.step + 1
        if number not in wanted:
            return step()
        folder = trainer.directory / FOLDER / f"step-{number:06}"
        with jax.profiler.trace(str(folder)), jax.profiler.StepTraceAnnotation("policy", step_num=number):
            return step()

    trainer.policy_step = traced  # type: ignore[method-assign]
