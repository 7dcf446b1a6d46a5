"""Rewards and advantages of a step's groups, with the same shapes in every step."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from orchestra_jax.config.algorithm import AdvantageConfig
from orchestra_jax.config.schema import RewardConfig
from orchestra_jax.rl.groups import group_arrays
from orchestra_jax.rl.setup import reward_groups
from orchestra_jax.types import Trajectory


class GroupRewards:
    """Computes rewards and advantages of any number of groups, `per_step` at a time, by `rl.setup.reward_groups`.

    So nothing is compiled anew, and a group's figures are the same to the bit whatever was collected after it.

    Args:
        per_step: groups that this process trains on in a step.
        menu: most tools of a task, as far as the environment knows.
    """

    def __init__(
        self, reward: RewardConfig, advantage: AdvantageConfig, group_size: int, per_step: int, menu: int | None
    ) -> None:
        self._reward, self._advantage, self._size = reward, advantage, group_size
        self.per_step, self._menu = per_step, menu

    def reward_and_advantage(
        self, trajectories: Sequence[Trajectory]
    ) -> tuple[Float[np.ndarray, "G N"], Float[np.ndarray, "G N"], Bool[np.ndarray, " G"]]:
        """Return rewards, advantages, and which groups have a gradient, of trajectories ordered by group and member."""
        size = self._size
        part, found = self.per_step * size, []
        for first in range(0, len(trajectories), part):
            own = trajectories[first : first + part]
            arrays = group_arrays([*own, *trajectories[: part - len(own)]], size, self._menu)
            self._menu = arrays.tool_counts.shape[-1]
            found.append(reward_groups(arrays, self._reward, self._advantage))
        rewards, advantages, informative = (
            np.concatenate(figures)[: len(trajectories) // size] for figures in zip(*found, strict=True)
        )
        return rewards, advantages, informative

    def informative(self, trajectories: Sequence[Trajectory]) -> Bool[np.ndarray, " G"]:
        """Return which groups have a gradient."""
        return self.reward_and_advantage(trajectories)[2]
