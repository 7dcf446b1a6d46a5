"""Small trajectories made by hand, and a model that learns from them."""

import functools

from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.types import Preference, Status, Task, ToolCall, ToolResult, ToolSpec, Trajectory, Turn
from tests.models.trees import drawn_params

# One layer: what several do is tested with packed rows, on meshes and in tests/models.
MODEL = Qwen3Config(
    vocab_size=32, hidden_size=16, intermediate_size=24, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8,
    tie_word_embeddings=True, initializer_range=0.3,
)  # fmt: skip


@functools.cache
def weights(seed: int = 0) -> dict:
    return drawn_params(MODEL, seed)


def task(name: str, tools: str, preference: Preference) -> Task:
    return Task(name, "Question?", ("yes",), tuple(ToolSpec(tool, "", {}) for tool in tools.split()), preference)


def turn(prompt: list[int], sampled: list[int], calls: str = "", results: int | None = None) -> Turn:
    made = tuple(ToolCall(name, {}) for name in calls.split())
    answered = tuple(ToolResult("") for _ in range(len(made) if results is None else results))
    logprobs = tuple(-0.01 * token for token in sampled)
    return Turn(tuple(prompt), tuple(sampled), logprobs, 0, "stop", "", made, answered)


def trajectory(asked: Task, *turns: Turn, status=Status.COMPLETED, solved=True, ledger=(), forks=()) -> Trajectory:
    return Trajectory(asked, 0, 0, (turns, *forks), status, "", "yes", solved, tuple(ledger))
