"""The tool `python` as a menu shows it."""

from orchestra_jax.tools.schema import one_text
from orchestra_jax.types import CODE, ToolSpec

TOOL = ToolSpec(
    name="python",
    description="Runs Python code and returns what it prints and the value of its last line.",
    parameters=one_text("code", "The code; it starts from a fresh interpreter."),
    local=True,
    traits=(CODE,),
)
