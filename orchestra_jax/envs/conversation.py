"""Episodes with a user who answers."""

from typing import Protocol, runtime_checkable

from orchestra_jax.envs.base import Episode
from orchestra_jax.tools.user_turn import UserTurn


@runtime_checkable
class Conversation(Episode, Protocol):
    """An `Episode` with a user who answers. `rollout.talk` has the rules.

    Its `tools` may grow while the user speaks. The words then tell of the new tools, because a prompt in tokens stays
    as it is; the task's own `tools` name all of them from the beginning.
    """

    async def respond(self, text: str) -> UserTurn | None:
        """Return what the user says to a turn without calls; None: nothing more, the turn was the answer.

        A call that raised InfrastructureError, or was cancelled because it was overdue, is repeated with the same text:
        it must not have changed the episode.

        Args:
            text: the policy's words without its thinking, never empty.

        Raises:
            InfrastructureError: the user failed; the sample is invalid.
        """
        ...
