"""The dearest model of the menu, asked alone: what a comparison puts beside the policy."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from orchestra_jax.envs.base import Baseline, Environment
from orchestra_jax.serving.asking import QuestionError, Surroundings
from orchestra_jax.serving.orchestrator import ALONE, Orchestrator
from orchestra_jax.types import Task, ToolCall, ToolResult

DEAREST = "dearest"  # the model's name is NAME:dearest
_LOOKED_AT = 8  # held-out questions


class DearestModel(Orchestrator):
    """Asks the dearest model of the menu and says what it says, in the world of a policy and with its money.

    Ends with that policy.
    """

    def __init__(self, beside: Orchestrator) -> None:
        opened = beside._opened
        script = Baseline(DEAREST, partial(_asked, opened.environment))
        super().__init__(replace(opened, engine=script, parts=contextlib.ExitStack()))
        self.policy = "the dearest model alone"

    @classmethod
    def of(cls, beside: Orchestrator) -> "DearestModel | None":
        """Return it, or None if the menus of the policy's world offer no model with a price."""
        environment = beside._opened.environment
        return cls(beside) if any(map(environment.experts, environment.held_out(_LOOKED_AT))) else None

    def posed(self, question: str, wish: str | None = None, said: Surroundings = ALONE) -> Task:
        task = super().posed(question, wish, said)
        if not self._opened.environment.experts(task):
            raise QuestionError("No model with a price is on the menu of this question.")
        return task


def _asked(environment: Environment, task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
    if results:
        return environment.said(task, results[-1]) or ""
    return environment.experts(task)[-1].call
