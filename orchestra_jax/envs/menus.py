"""Menus of worlds with databases: a domain's own tools, and beside them priced experts and tools (§3.3).

The latter are drawn by `tools.catalogue`, which has the run's tools and prices; `tools=none` offers none of them.
The domain's tools are free and instant. A preference is about tools with a price, so it weighs no tool of the domain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from orchestra_jax.config.schema import ConfigError, PlanConfig, WorldConfig
from orchestra_jax.data.preference_pairs import drawn_from
from orchestra_jax.envs.base import OfferedExpert
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.price_book import PriceDraw
from orchestra_jax.tools.build import make_tools, tool_problems
from orchestra_jax.tools.catalogue import Catalogue, instance_seed
from orchestra_jax.tools.executor import ToolExecutor, ToolHandler, as_result
from orchestra_jax.tools.experts.roles import ROLES
from orchestra_jax.types import Preference, Task, ToolCall, ToolResult, Usage


class WorldMenus:
    """The menus of a run's episodes in worlds of databases; it owns the catalogue's tools.

    Args:
        cfg: settings of the run; `tools.*` say what stands beside the domain's tools.
        domain: names of all tools of the domains.
        answers: answers of some tasks, see `tools.build.make_tools`.

    Raises:
        ConfigError: a tool cannot be used, or has the name of one of the domain's.
    """

    def __init__(self, cfg: WorldConfig, domain: Sequence[str], answers: Sequence[str] = ()) -> None:
        self._cfg, self._preference = cfg, drawn_from(cfg.data.preferences_file)
        self._tools = make_tools(without_judge(cfg), answers)
        both = {self._tools.catalogue, self._tools.evaluation}
        shown = {spec.name for catalogue in both for spec in catalogue.instance(0).tools}
        if clash := sorted(shown & set(domain)):
            raise ConfigError(f"The world has a tool {clash[0]!r} of its own: leave that out of tools.*.")

    @staticmethod
    def problems(cfg: WorldConfig) -> list[str]:
        """Return one sentence, with the fix, for everything that the tools beside the domain's lack."""
        if cfg.tools.relay:
            return ["tools.relay ends a task without a word to the user, and here a user waits: set tools.relay=false."]
        return tool_problems(without_judge(cfg))

    @property
    def largest(self) -> int:
        """Most tools of a menu beside the domain's."""
        return self._tools.catalogue.largest

    def pose(self, task: Task, draw: int, split: str) -> Task:
        """Return the task with an instance's tools beside its own, and a preference if the run has them.

        Args:
            task: task with the domain's tools alone.
            draw: number of its place in the stream; another one offers other tools and prices.
            split: "train" or "eval", for the catalogue and for the preferences' wordings.
        """
        training, settings = split == "train", self._cfg.evaluation
        seed = instance_seed(self._cfg.seed if training else settings.seed, task.id, draw)
        instance = self._catalogue(split).instance(seed)
        asked = self._cfg.data.preferences
        if not training and settings.preferences is not None:
            asked = settings.preferences
        rng = np.random.default_rng(seed)
        preference = self._preference(instance.tools, rng, split) if asked else Preference("accuracy", "")
        record = {**instance.record, "split": split}
        return replace(
            task, tools=(*task.tools, *instance.tools), preference=preference, extra={**task.extra, "instance": record}
        )

    def executor(self, task: Task, handlers: Mapping[str, ToolHandler], budget: Budget) -> ToolExecutor:
        """Return the executor of an episode's calls.

        Args:
            task: task that `pose` made.
            handlers: handlers of the domain's tools.
            budget: budget of the trajectory.
        """
        record = task.extra["instance"]
        free = {name: _free(name, handler) for name, handler in handlers.items()}
        return self._catalogue(record["split"]).executor(record, task, budget, free)

    def experts(self, task: Task) -> Sequence[OfferedExpert]:
        """See `Environment.experts`."""
        return offered_experts(self._catalogue(task.extra["instance"]["split"]), task, self._cfg.plan)

    async def close(self) -> None:
        """End the catalogue's tools."""
        await self._tools.close()

    def _catalogue(self, split: str) -> Catalogue:
        return self._tools.evaluation if split == "eval" else self._tools.catalogue


def without_judge(cfg: WorldConfig) -> WorldConfig:
    """Return the settings without a judge: worlds compare states and words."""
    return replace(cfg, tools=replace(cfg.tools, judge="match"))


def offered_names(cfg: WorldConfig) -> list[str]:
    """Return the names that tools beside a domain's may have in menus without aliases."""
    tools = cfg.tools.opened
    experts = [f"{role}-{model}" for role, models in tools.experts.items() for model in models]
    return [*tools.names, *experts, *tools.simulated]


def _free(name: str, handler: ToolHandler) -> ToolHandler:
    """Return the handler with calls that cost nothing and take no time, whatever the machine does."""

    async def call(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        result = as_result(await handler(arguments, budget))
        return result if result.usage or result.refused else replace(result, usage=(Usage(name, price_list="world"),))

    return call


def offered_experts(catalogue: Catalogue, task: Task, plan: PlanConfig) -> list[OfferedExpert]:
    """Return generalists, mathematicians and simulated experts, the cheapest first; each is asked the whole question.

    Prices are of the task's own menu, for a call of as many tokens as `plan` assumes.
    """
    record = task.extra["instance"]
    prices = catalogue.book.prices(PriceDraw(**record["prices"]))
    found = list[tuple[float, OfferedExpert]]()
    for name, key in record["tools"].items():
        entry = catalogue.entries[key]
        if entry.for_task is not None:
            found.append((entry.spec.price_usd or 0.0, OfferedExpert(key, ToolCall(name, {"question": task.question}))))
        elif entry.role and ROLES[entry.role].use == "answer":
            dollars = prices.cost(entry.model, prompt_tokens=plan.call_input, completion_tokens=plan.call_output)
            argument = ROLES[entry.role].argument
            released = catalogue.rule.form == "released"
            call = ToolCall("answer", {"model": name}) if released else ToolCall(name, {argument: task.question})
            found.append((dollars, OfferedExpert(entry.model, call)))
    # By name where the price is one: menus are in random order.
    return [expert for _, expert in sorted(found, key=lambda pair: (pair[0], pair[1].name, pair[1].call.name))]
