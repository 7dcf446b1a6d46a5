"""Put together the whole step that several processes rolled out in parts."""

from typing import NamedTuple

import numpy as np

from orchestra_jax.money.budgets import Spending, total
from orchestra_jax.processes import Processes
from orchestra_jax.types import Trajectory


class StepPart(NamedTuple):
    """The rollouts of a step, of one process or of all.

    Attributes:
        trajectories: trajectories ordered by group and member.
        rewards: rewards of the groups, [G, N].
        informative: whether a group has a gradient, [G].
        spent: money spent in the run so far.
        step_spent: money spent in this step.
    """

    trajectories: list[Trajectory]
    rewards: np.ndarray
    informative: np.ndarray
    spent: Spending
    step_spent: Spending


def whole_step(processes: Processes, own: StepPart) -> StepPart:
    """Return the whole step's groups in their order, their trajectories without token ids."""
    size = own.rewards.shape[1]
    sent = own._replace(trajectories=[t.without_ids() for t in own.trajectories])
    parts = processes.gather(sent)
    groups = [
        (part.trajectories[g * size : (g + 1) * size], part.rewards[g], part.informative[g])
        for part in parts
        for g in range(len(part.informative))
    ]
    members, rewards, informative = zip(*sorted(groups, key=lambda group: group[0][0].group), strict=True)
    spent, step_spent = total([part.spent for part in parts]), total([part.step_spent for part in parts])
    return StepPart([t for some in members for t in some], np.stack(rewards), np.stack(informative), spent, step_spent)
