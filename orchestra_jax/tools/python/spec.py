"""The tool `python` as a menu shows it."""

from orchestra_jax.types import CODE, ToolSpec

TOOL = ToolSpec(
    name="python",
    description="Runs Python code and returns what it prints and the value of its last line.",
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The code; it starts from a fresh interpreter."}},
        "required": ["code"],
    },
    local=True,
    traits=(CODE,),
)
