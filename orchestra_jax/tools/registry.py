"""The names of plain tools: one list, also for tools of the user's own."""

from collections.abc import Callable

from orchestra_jax.config.registry import Registry
from orchestra_jax.tools.base import Tool, ToolContext

# A name stands for a tool, such as a decorated function, or for what makes one, such as a subclass of `Tool`.
MakeTool = Callable[[ToolContext], Tool]

TOOLS: Registry[Tool | MakeTool] = Registry(
    "tool",
    "tools.names",
    group="orchestra_jax.tools",
    builtin={
        "python": "orchestra_jax.tools.plain:Python",
        "local_search": "orchestra_jax.tools.plain:LocalSearch",
        "web_search": "orchestra_jax.tools.plain:WebSearch",
        "web_extract": "orchestra_jax.tools.plain:WebExtract",
        "answer": "orchestra_jax.tools.plain:Answer",
    },
)
