"""The outside world of a run, on 127.0.0.1: experts that answer by their role, and a web search; and a policy that
plays a script, so that tools are called without a trained one."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
from aiohttp import web

from orchestra_jax.engines.base import Generation
from orchestra_jax.envs.qa import demonstrations
from orchestra_jax.rollout.parsing import render_call
from orchestra_jax.rollout.speakers import Opening, TokenSpeaker
from orchestra_jax.tools.experts.judge import JUDGE_SYSTEM
from orchestra_jax.tools.experts.roles import ROLES
from orchestra_jax.types import ToolCall, ToolResult
from tests.tools.http_stub import in_thread, serving
from tests.tools.openai_stub import StubOpenAI


def reply(body: dict[str, Any]) -> str:
    """What an expert of the role says; a function of the request."""
    system, user = body["messages"][0]["content"], body["messages"][-1]["content"]
    odd = hashlib.blake2b(f"{body['model']}{user}".encode(), digest_size=1).digest()[0] % 2
    if system == JUDGE_SYSTEM:
        return json.dumps({"reason": "So it is.", "verdict": "correct" if odd else "incorrect"})
    if system == ROLES["query_writer"].system:
        return "<answer>capital of Norway</answer>"
    if system == ROLES["code_writer"].system:
        return "```python\nprint(6 * 7)\n```"
    return rf"Thinking it over. \boxed{{{41 + odd}}}"


class Outside:
    """The two servers; `searches` are the searches."""

    def __init__(self) -> None:
        self.experts = StubOpenAI()
        self.experts.reply = reply
        self.web_url, self.searches = "", 0

    async def search(self, request: web.Request) -> web.StreamResponse:
        self.searches += 1
        query = (await request.json())["query"]
        results = [{"title": "Norway", "url": "http://n", "content": f"About {query}: 42."}]
        return web.json_response({"results": results})


@contextmanager
def outside() -> Iterator[Outside]:
    """Both servers, started."""
    world = Outside()
    with in_thread(world.experts), in_thread(serving(world.search)) as world.web_url:
        yield world


class ScriptedPolicy(TokenSpeaker):
    """In place of `collector.EngineSpeaker`: calls two tools of the menu, drawn by its seed, then answers.

    Attributes:
        begun: ids of the tasks that were begun.
    """

    begun: ClassVar[set[str]] = set()

    def __init__(self, opening: Opening, engine: Any, params: Any, seed: tuple[int, ...]) -> None:
        super().__init__(opening)
        self._seed = seed

    async def generate(self, ids: Sequence[int], results: Sequence[ToolResult], turn: int, attempt: int) -> Generation:
        task, turn = self.opening.task, turn - 1
        self.begun.add(task.id)
        names = [spec.name for spec in task.tools if spec.name != "answer"]
        rng = np.random.default_rng([*self._seed, attempt, turn])
        action: ToolCall | str = demonstrations.random_tool(task, results)
        if turn < 2 and names:
            action = demonstrations.reference_call(task, names[int(rng.integers(len(names)))])
        text = action if isinstance(action, str) else render_call(action)
        sampled = (*self._chat.encode(text), self._chat.stop_ids[0])
        return Generation(sampled, (-1.0,) * len(sampled), "stop", 0)
