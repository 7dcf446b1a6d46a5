"""A turn of the user whom a conversation is with, as an environment returns it."""

from dataclasses import dataclass

from orchestra_jax.types import USER_ROLE, Usage


@dataclass(frozen=True, slots=True)
class UserTurn:
    """A turn of a conversation's user.

    Raises:
        ValueError: a row of `usage` has another role than "user_simulator": the policy would pay for its user.
    """

    text: str  # their words; the policy reads them unless they end the conversation
    done: bool = False  # the conversation is over: the user wrote a stop word, or was handed over to somebody else
    usage: tuple[Usage, ...] = ()  # of the model that plays the user

    def __post_init__(self) -> None:
        if roles := {row.role for row in self.usage} - {USER_ROLE}:
            raise ValueError(f"The rows of a user have the role {USER_ROLE}, not {', '.join(sorted(roles))}.")
