"""The user's part of a conversation; loaded when a world has a user who answers."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from orchestra_jax.io.untrusted import valid_text
from orchestra_jax.tools.user_turn import UserTurn
from orchestra_jax.types import InfrastructureError, ToolResult


async def ask_user(player: Any, respond: Callable[[str], Awaitable[UserTurn | None]], text: str) -> str | None:
    """Return what the user says to the turn that `player`, an `EpisodePlayer`, just recorded; None: it is over."""
    said, _ = await player.wait("user", lambda _: respond(text), player.limits.user_deadline_s)
    if said is None:
        return None
    words = valid_text(said.text)
    player.ledger += said.usage
    if not said.done and not words.strip():  # asking again would change the episode
        raise InfrastructureError("the user said nothing")
    player.sequences[-1][-1] = replace(player.sequences[-1][-1], heard=words)
    player.observed.append(ToolResult(words))
    return None if said.done else words
