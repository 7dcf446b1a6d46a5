"""The tool that gives the answer."""

from orchestra_jax.types import ToolSpec

ANSWER_TOOL = ToolSpec(
    name="answer",
    description="Gives the final answer and ends the task.",
    parameters={
        "type": "object",
        "properties": {"answer": {"type": "string", "description": "The final answer, as short as it can be."}},
        "required": ["answer"],
    },
    terminal=True,
)
HAND_IN = (ANSWER_TOOL.name, "relay")  # tools that only hand in the answer: no choice between ways to find it
