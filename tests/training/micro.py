"""The smallest policy, as what a layer costs to compile is most of a micro run; and how such a run is stopped."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.rl.groups import GroupArrays

if TYPE_CHECKING:
    from orchestra_jax.training.trainer import Trainer


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


def stopped_at(
    where: str, tell: Callable[[str], None], original: "Callable[[Trainer], None]"
) -> "Callable[[Trainer], None]":
    """Return a `Trainer.stop_if_asked` that says each step and tells the run a signal after one: "policy 3 SIGINT"."""
    stop = where.split()

    def stop_if_asked(self: "Trainer") -> None:
        print("@", self.state.phase, self.state.step, flush=True)
        if [self.state.phase, str(self.state.step)] == stop[:2]:
            tell(stop[2])
            until = time.monotonic() + 60
            while not self.interrupt.asked and time.monotonic() < until:  # the kernel may give it to another thread
                time.sleep(0.001)
        original(self)

    return stop_if_asked
