"""Whether a policy's calls collapse onto few tools: the entropy of what is called."""

import math
from collections import Counter
from collections.abc import Sequence

from orchestra_jax.evaluation.calls import called_tools
from orchestra_jax.tools.answers import ANSWER_TOOL
from orchestra_jax.types import Status, Task, Trajectory


def tool_entropy(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Entropy of the executed calls of all trajectories together, tools told by what they are and not by an alias.

    The call that only hands in the answer is no choice, and what failed is no skill: they count nowhere.

    Returns:
        entropy: bits, 0 where one tool gets every call; missing where nothing was called. entropy_share: of the
            most that it could be, log2 of the number of tools on these menus; missing where there is one at most.
    """
    counted = [trajectory for trajectory in trajectories if trajectory.status is not Status.FAILED]
    called = Counter(name for t in counted for name in called_tools(t) if name != ANSWER_TOOL.name)
    offered = {name for t in counted for name in _offered(t.task)} - {ANSWER_TOOL.name}
    if not called:
        return {}
    total = called.total()
    bits = sum(count / total * math.log2(total / count) for count in called.values())
    return {"entropy": bits, **({"entropy_share": bits / math.log2(len(offered))} if len(offered) > 1 else {})}


def _offered(task: Task) -> list[str]:
    """What the task's menu offers; of a function with a choice of models, these."""
    keys = task.extra.get("instance", {}).get("tools")
    return list(keys.values()) if keys else [spec.name for spec in task.tools]
