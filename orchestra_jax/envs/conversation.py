"""Episodes with a user who answers.

- If the user says None, or words that are `done` (a stop word, a hand-over), the conversation is over, and the policy's
  last words are its answer, which is scored.
- Other words open the policy's next turn. They are read, never sampled: they carry no loss.
- An empty turn is said to nobody: there is no answer. A malformed or cut turn ends the trajectory as anywhere.
- `max_turns` caps the policy's turns in a conversation too. The user hears the last turn as well, for only they know
  whether it was the end; if it was not, there is no answer, and nothing is scored.
- The user's ledger rows are kept apart: they count neither in the trajectory's cost nor in its seconds or deadline.
"""

from typing import Protocol, runtime_checkable

from orchestra_jax.envs.base import Episode
from orchestra_jax.tools.user_turn import UserTurn


@runtime_checkable
class Conversation(Episode, Protocol):
    """An `Episode` with a user who answers.

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
