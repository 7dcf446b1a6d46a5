"""A scripted OpenAI-compatible server in a thread of its own, and the configuration of a synthesis that asks it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.synthesis.synthesize import synthesize
from tests.tools.openai_stub import StubOpenAI


@contextmanager
def serving(reply: Callable[[dict[str, Any]], str]) -> Iterator[StubOpenAI]:
    """Start the server, which answers with `reply`."""
    stub = StubOpenAI()
    stub.reply = reply
    with LoopThread() as loop:
        loop.run(stub.__aenter__())
        try:
            yield stub
        finally:
            loop.run(stub.__aexit__())


def configured(folder: Path, url: str | None, *overrides: str) -> RunConfig:
    """Return the configuration of a synthesis in `folder` with the server's models."""
    models = ("writer", "checker", "programmer", "evolver", "solver")
    return compose(
        f"output_dir={folder}", f"tools.server.url={url or 'null'}", "tools.server.retries=0",
        *(f"synthesis.models.{role}=qwen3-32b" for role in models), *overrides, name="synthesis",
    )  # fmt: skip


def synthesised(cfg: RunConfig) -> bool:
    """Run the synthesis of a configuration; return whether it made anything."""
    return synthesize(cfg, cfg.synthesis)


def asked(body: dict[str, Any]) -> str:
    """Return the request of a body without the messages after it."""
    return body["messages"][1]["content"].split("\n\nJSON schema of your reply:")[0]
