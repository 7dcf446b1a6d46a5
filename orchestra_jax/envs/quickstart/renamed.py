"""The quickstart's world with tools under other names, so that the menu alone says what they can do.

`+experiment=new_tools`: a line of the menu begins with the step that a tool does, and whether it runs here
(`lookup local blue-helper 3 40`). Training shows half of the tools under names drawn for that menu, and demonstrations
compare tools that can do the next step. The benchmark `unseen_tools` shows three tools under names that no training
has. All other held-out tasks have the usual names.
"""

import re
import zlib
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.envs.base import Demonstrations, OwnChat
from orchestra_jax.envs.quickstart.demonstrations import next_step, reads_menu, shown_tools, think_aloud
from orchestra_jax.envs.quickstart.environment import SCAFFOLDS, QuickstartEnvironment, texts
from orchestra_jax.envs.quickstart.facts import TOOL_NAMES, pick
from orchestra_jax.envs.quickstart.plans import able_tools
from orchestra_jax.envs.quickstart.world import QuickstartWorld
from orchestra_jax.envs.words import CHAT_TEMPLATE, word_chat
from orchestra_jax.types import Task, ToolResult

UNSEEN = ("calculator", "web_search", "expert_medium")  # one for each step; its rivals keep their names
COLOURS = "amber black blue brown gold green grey orange pink purple red silver white yellow".split()
ROLES = "agent bot desk finder guide helper scout service solver worker".split()
NAMES = {
    split: [
        [f"{colour}-{role}" for r, role in enumerate(ROLES) if ((c + r) % 5 == 0) == (split == "eval")]
        for c, colour in enumerate(COLOURS)
    ]
    for split in ("train", "eval")
}  # a list for each colour; no name is in both splits, and every colour and role is in each
_REPEATED = re.compile(r"(?<=\d) \d+(?=</think>)")


def renamed(task: Task, split: str, tools: Collection[str], share: float = 1.0) -> Task:
    """Return the task with a share of these tools under names of the split, no colour twice.

    The task's instance says which usual name each drawn one stands for: figures and tables count a tool under that.
    """
    rng = np.random.default_rng(zlib.crc32(repr((task.question, *task.tools)).encode()))
    names = (pick(NAMES[split][place], rng) for place in rng.permutation(len(COLOURS)))
    shown = {
        spec.name: next(names) if spec.name in tools and rng.random() < share else spec.name for spec in task.tools
    }
    weights = {shown[name]: weight for name, weight in task.preference.tools.items()}
    menu = tuple(replace(spec, name=shown[spec.name]) for spec in task.tools)
    behind = {"instance": {"tools": {other: name for name, other in shown.items()}}}
    wish = replace(task.preference, tools=weights)
    return replace(task, tools=menu, preference=wish, extra={**task.extra, **behind})


class RenamedWorld(QuickstartWorld):
    """Shows half of the tools under other names in training."""

    def paired_tasks(
        self, split: str, index: int, k: int, tools: Sequence[str] = TOOL_NAMES, *, short: bool = False, gap: int = 1
    ) -> list[Task]:
        posed = super().paired_tasks(split, index, k, tools, short=short, gap=gap)
        return [renamed(task, split, TOOL_NAMES, share=0.5) for task in posed] if split == "train" else posed


class RenamedQuickstart(QuickstartEnvironment):
    """The quickstart with tools whose names say nothing; its demonstrations read in the menu what a tool can do."""

    def __init__(self, cfg: WorldConfig) -> None:
        super().__init__(cfg)
        self.world = RenamedWorld(cfg.env.seed)

    def demonstrations(self) -> Demonstrations:
        seed, script = self._cfg.seed, shown_tools(self._cfg.seed)

        def able(task: Task, results: Sequence[ToolResult]) -> Task:
            """Return the task with the tools alone that do the next step."""
            step = next_step(task, results)
            return replace(task, tools=tuple(able_tools(task, step[0]))) if step else task

        def think(task: Task, results: Sequence[ToolResult]) -> str:
            """Say the lower of two figures once more: what is called is the word before the same figure."""
            said = think_aloud(seed, able(task, results), results)
            figures = [word for word in said.split() if word.isdigit()]
            return f"{said} {min(figures, key=int)}" if figures else said

        return replace(
            super().demonstrations(),
            script=lambda task, results: script(able(task, results), results),
            think=think,
            reads_menu=lambda task, said, tool: reads_menu(task, _REPEATED.sub("", said), tool),
        )

    @classmethod
    def chat(cls, cfg: WorldConfig) -> OwnChat:
        own = word_chat([*texts(), f" {' '.join(COLOURS)}"], [*SCAFFOLDS, *(f"-{role}" for role in ROLES)])
        own.tokenizer.chat_template = CHAT_TEMPLATE.replace(
            "; {{ f.name }}", "; {{ f.description.split(':')[0] }} {{ 'local ' if f.local }}{{ f.name }}"
        )
        return own
