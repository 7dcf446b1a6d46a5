"""The smallest policy: what one layer costs to trace and compile is most of a micro run."""

import numpy as np

from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.rl.groups import GroupArrays


class OneLayer(Qwen3Config):
    presets = {name: Qwen3Config.presets[name] | {"num_layers": 1} for name in ("tiny", "reader")}  # noqa: RUF012 - as in the base


def score_by_index(arrays: GroupArrays, *_settings: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards and advantages of group members by their index: a policy of a few steps solves nothing."""
    by_member = np.broadcast_to(np.linspace(-1, 1, arrays.solved.shape[1], dtype=np.float32), arrays.solved.shape)
    return by_member, by_member, np.ones(len(by_member), bool)


def score_some(arrays: GroupArrays, *_settings: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same where a group teaches: by its task alone, the parity of a number of the tools and the preference."""
    by_member, _, _ = score_by_index(arrays)
    taught = (arrays.preference @ np.arange(1, arrays.preference.shape[1] + 1) * 10).astype(int) % 2 == 0
    return by_member * taught[:, None], by_member * taught[:, None], taught
