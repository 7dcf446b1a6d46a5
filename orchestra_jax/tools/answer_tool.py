"""The tool that gives the answer."""

from orchestra_jax.types import HAND_IN, ToolSpec

ANSWER_TOOL = ToolSpec(
    name=HAND_IN[0],
    description="Gives the final answer and ends the task.",
    parameters={
        "type": "object",
        "properties": {"answer": {"type": "string", "description": "The final answer, as short as it can be."}},
        "required": ["answer"],
    },
    terminal=True,
)
