"""The tool `python`, made from `tools.sandbox`."""

from collections.abc import Mapping
from typing import Any

from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import PriceList
from orchestra_jax.tools.base import Tool, ToolContext, unreachable
from orchestra_jax.tools.python.sandbox import PythonSandbox
from orchestra_jax.tools.python.spec import TOOL
from orchestra_jax.types import ToolResult


class PythonTool(Tool):
    """Runs code in a sandbox of this machine, or on the server at `tools.sandbox.url`."""

    spec = TOOL

    def __init__(self, context: ToolContext) -> None:
        from orchestra_jax.tools.python.server import RemoteSandbox

        cfg = context.cfg.tools.sandbox
        self.settings = {"timeout_s": cfg.timeout_s}
        self._executor: PythonSandbox | RemoteSandbox | None = None
        if context.live and cfg.url:
            self._executor = RemoteSandbox(cfg.url, cfg.timeout_s + 50.0)
        elif context.live:
            self._executor = PythonSandbox(cfg.workers, cfg.timeout_s, isolation=cfg.isolation)

    async def run(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        assert self._executor is not None  # what is only replayed is not run
        return await self._executor.run(arguments["code"])

    async def close(self) -> None:
        if self._executor is not None:
            self._executor.close()

    @classmethod
    def problems(cls, cfg: WorldConfig, prices: PriceList) -> list[str]:
        return unreachable(cls.spec.name, cfg.tools.sandbox.url)
