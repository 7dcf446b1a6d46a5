"""The tool that gives the answer."""

from orchestra_jax.tools.schema import one_text
from orchestra_jax.types import HAND_IN, ToolSpec

ANSWER_TOOL = ToolSpec(
    name=HAND_IN[0],
    description="Gives the final answer and ends the task.",
    parameters=one_text("answer", "The final answer, as short as it can be."),
    terminal=True,
)
