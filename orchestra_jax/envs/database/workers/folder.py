"""The tools of a world's folder in the sandbox: its tools.py in the form of `envs.database.session`."""

import random
import sys
import types
from collections import Counter
from dataclasses import asdict
from datetime import datetime
from typing import Any

from orchestra_jax.envs.database.frozen import canonical
from orchestra_jax.envs.database.session import DatabaseTool, LocalWorld
from orchestra_jax.envs.database.state import Database
from orchestra_jax.types import ToolCall

_MODULE = "world_tools"


class FolderTools:
    """The tools of one folder, as `worker.Adapter` asks for them.

    Args:
        payload: the "name" of the world, the "source" of its tools, the "tables" and the time it plays at, "now".
    """

    def __init__(self, payload: dict[str, Any]) -> None:
        module = types.ModuleType(_MODULE)
        sys.modules[_MODULE] = module  # get_type_hints looks there
        exec(compile(payload["source"], "tools.py", "exec"), module.__dict__)
        tools = [each for each in vars(module).values() if isinstance(each, DatabaseTool)]
        now = datetime.fromisoformat(payload["now"])
        self._world = LocalWorld(payload["name"], Database(payload["tables"]), tools, now)

    def describe(self) -> dict[str, Any]:
        return {"tools": [{**asdict(tool.spec), "kind": tool.kind} for tool in self._world.tools.values()]}

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        session = self._world.session(request["seed"])
        session.ids = Counter(request["ids"])
        session.state.apply(request["delta"])
        call = ToolCall(request["name"], request["arguments"])
        random.seed(
            canonical([request["seed"], call.name, call.arguments])
        )  # a tool that draws gets the same draws again
        effect = self._world.perform(session, call)
        session.state.write(effect.changes)  # raises here, as a bug of the tool, if the changes are no JSON
        delta = dict[str, dict[str, Any]]()
        for (table, name), entry in effect.changes.items():
            delta.setdefault(table, {})[name] = entry
        return {**asdict(effect.result), "delta": delta, "read": sorted(effect.read), "ids": effect.ids}
