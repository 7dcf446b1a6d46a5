"""The tools of a world folder in the sandbox: its tools.py in the form of `envs.database.session`."""

import random
import sys
import types
from collections import Counter
from dataclasses import asdict
from datetime import datetime
from typing import Any

from orchestra_jax.envs.database.frozen import canonical
from orchestra_jax.envs.database.session import DatabaseTool, Session, World
from orchestra_jax.envs.database.state import Database, NoEntry
from orchestra_jax.types import ToolCall

_MODULE = "world_tools"


class FolderTools:
    """See `worker.Adapter`.

    Args:
        payload: the "name" of the world, the "source" of its tools, the "tables" and the time it plays at, "now".
    """

    def __init__(self, payload: dict[str, Any]) -> None:
        module = types.ModuleType(_MODULE)
        sys.modules[_MODULE] = module  # get_type_hints looks there
        exec(compile(payload["source"], "tools.py", "exec"), module.__dict__)
        tools = [each for each in vars(module).values() if isinstance(each, DatabaseTool)]
        now = datetime.fromisoformat(payload["now"])
        self._world = World.of(payload["name"], Database(payload["tables"]), tools, now)

    def describe(self) -> dict[str, Any]:
        return {"tools": [{**asdict(tool.spec), "kind": tool.kind} for tool in self._world.tools.values()]}

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        session = Session(self._world, seed=request["seed"])
        session.ids = Counter(request["ids"])
        session.state.apply(request["delta"])
        call = ToolCall(request["name"], request["arguments"])
        random.seed(canonical([request["seed"], call.name, call.arguments]))  # who draws draws the same again
        outcome = session.call(call)
        delta = dict[str, dict[str, Any]]()
        made = [(table, name) for table, rows in session.state.delta().items() for name in rows]  # in their order
        unchanged = sorted(session.written.difference(made))
        for table, name in [key for key in (*made, *unchanged) if key in session.written]:
            rows = delta.setdefault(table, {})
            try:
                rows[name] = session.state.get(table, name)
            except NoEntry:
                rows[name] = None
        return {
            "text": outcome.text, "ok": outcome.ok, "refused": outcome.refused, "delta": delta,
            "read": sorted(session.read), "written": sorted(session.written), "ids": session.ids,
        }  # fmt: skip
