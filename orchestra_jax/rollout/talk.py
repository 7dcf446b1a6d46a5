"""The user's part of a `Conversation`.

- If the user says None, or words that are `done` (a stop word, a hand-over), the conversation is over, and the policy's
  last words are its answer, which is scored.
- Other words open the policy's next turn. They are read, never sampled: they carry no loss.
- An empty turn is said to nobody: there is no answer. A malformed or cut turn ends the trajectory as anywhere.
- `max_turns` caps the policy's turns in a conversation too. The user hears the last turn as well, for only they know
  whether it was the end; if it was not, there is no answer, and nothing is scored.
- The user's ledger rows are kept apart: they count neither in the trajectory's cost nor in its seconds or deadline.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestra_jax.envs.conversation import Conversation
from orchestra_jax.io.untrusted import valid_text
from orchestra_jax.types import InfrastructureError, ToolResult

if TYPE_CHECKING:  # it loads this module
    from orchestra_jax.rollout.episode import EpisodePlayer


async def ask(player: "EpisodePlayer", episode: Conversation, text: str) -> str | None:
    """Return what the user says to the turn that the player has just recorded; None: nothing more.

    Raises:
        InfrastructureError: the user failed, was overdue or said nothing.
    """
    said, _ = await player.wait("user", lambda _: episode.respond(text), player.limits.user_deadline_s)
    if said is None:
        return None
    words = valid_text(said.text)
    player.ledger += said.usage
    if not said.done and not words.strip():  # asking again would change the episode
        raise InfrastructureError("the user said nothing")
    player.sequences[-1][-1] = replace(player.sequences[-1][-1], heard=words)
    player.observed.append(ToolResult(words))
    return None if said.done else words
