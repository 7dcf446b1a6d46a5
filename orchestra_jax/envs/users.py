"""Users of conversations that a language model plays, with tools of their own where the world gives them some.

The model that plays a user sees the user's calls and their results; the policy reads none of them. A failure is an
infrastructure failure, and costs nothing twice: asked again with the same words, the user goes on from the calls that
they made already.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.io.foreign_json import read_json
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.forecast import USER_TURNS, call_usd
from orchestra_jax.money.prices import PriceList
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.experts.forms import TEXT, reply_format
from orchestra_jax.tools.experts.roles import UserSimulator
from orchestra_jax.tools.schema import validate_arguments
from orchestra_jax.tools.user_turn import UserTurn
from orchestra_jax.types import InfrastructureError, ToolCall, ToolSpec, Usage

SCRIPTED = "scripted"  # env.options.user for a user without a model
GREETING = "Hello, I need your help."  # the first words of a user who tells the rest when asked
STOPS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")  # anywhere in the user's words they end everything
MOST_CALLS = 12  # most calls of a user before they say something
_TRIES = 2  # samples asked for until one of them can be read
_SAY = "say"
_TOOLS = (
    "\n\nYou have these tools, which only you can use, and nobody sees that you do:\n{tools}\n\nIn each step write "
    'one JSON object and nothing else: {{"action": "say" or the name of a tool, "arguments": "{{...}}", the arguments '
    'of the tool as a JSON text, "words": "what you say"}}. With "say" the arguments are "{{}}"; with a tool the words '
    'are "". '
    "What a tool gave is told to you in the next step."
)


class SimulatedUser:
    """One user in one conversation.

    Args:
        client: client of the model that plays the user.
        situation: description of the user, what they know and want.
        budget: budget of the trajectory; its parent pays, because the policy does not pay for its user.
        system: system message of the model; None: that of `UserSimulator` with the situation.
        tools: tools of the user.
        act: executes a call of the user and returns its text.
        opening: first words, which the user has said already.
    """

    def __init__(
        self,
        client: ExpertClient,
        situation: str,
        budget: Budget,
        *,
        system: str | None = None,
        tools: Sequence[ToolSpec] = (),
        act: Callable[[ToolCall], str] | None = None,
        opening: str = GREETING,
    ) -> None:
        self._name, self._budget = client.expert.name, budget.parent or budget
        self._tools, self._act = {spec.name: spec for spec in tools}, act
        action = {**TEXT, "enum": [_SAY, *self._tools]}
        self._step_format = reply_format("step", action=action, arguments=TEXT, words=TEXT)
        self._simulator = UserSimulator(client, situation, system)
        if tools:
            told = [json.dumps([spec.name, spec.description, dict(spec.parameters)]) for spec in tools]
            self._simulator.system += _TOOLS.format(tools="\n".join(told))
        self._past = [{"role": "user", "content": opening}]
        # The words that are being answered, and what the user did and paid for since they were heard.
        self._asked = ""
        self._steps: list[dict[str, str]] = []
        self._rows: tuple[Usage, ...] = ()

    async def reply(self, text: str) -> UserTurn:
        """Return what the user says to these words of the policy.

        Raises:
            InfrastructureError: the model failed, wrote what cannot be read, or made too many calls; nothing was said.
            BudgetExceeded: see `ExpertClient.chat`.
        """
        if text != self._asked:
            self._asked, self._steps, self._rows = text, [], ()
        said = [*self._past, {"role": "assistant", "content": text}]
        while True:
            call, words, done = await self._next([*said, *self._steps])
            if call is None:
                self._past, self._asked = [*said, *self._steps, {"role": "user", "content": words}], ""
                return UserTurn(words, done or any(stop in words for stop in STOPS), self._rows)
            if len(self._steps) >= 2 * MOST_CALLS:
                raise InfrastructureError(f"The user {self._name!r} made {MOST_CALLS} calls without a word.")
            result = self._result(call)  # nothing is awaited from here on: a call that was made is noted
            own = json.dumps({"action": call.name, "arguments": json.dumps(call.arguments), "words": ""})
            self._steps += [{"role": "user", "content": own}, {"role": "assistant", "content": result}]

    async def _next(self, conversation: Sequence[Mapping[str, str]]) -> tuple[ToolCall | None, str, bool]:
        """Return a call of the user, or their words and whether they end the conversation."""
        for sample in range(_TRIES):
            form = self._step_format if self._tools and not sample else None
            turn = await self._simulator.reply(conversation, budget=self._budget, sample=sample, response_format=form)
            self._rows += turn.usage
            if not self._tools:
                return None, turn.text, turn.done
            if (read := _read_step(turn.text, turn.done)) is not None:
                return *read, turn.done
        raise InfrastructureError(f"The user {self._name!r} wrote no step that can be read; use another model.")

    def _result(self, call: ToolCall) -> str:
        spec = self._tools.get(call.name)
        if spec is None:
            return f"There is no tool {call.name!r}; you have {', '.join(self._tools)}."
        if wrong := validate_arguments(spec, call.arguments):
            return wrong
        return f"{call.name} gave: {self._act(call) if self._act is not None else ''}"


def policy_names(cfg: WorldConfig) -> set[str]:
    """Return the names that the policy's model may have: those of its endpoint, or else of its weights."""
    policy = cfg.policy or ""
    if policy.startswith("baseline:"):
        return set()
    if policy.startswith(("http://", "https://")):
        found = [cfg.evaluation.endpoint.model, cfg.evaluation.endpoint.price]
    else:
        found = [policy or cfg.model.path]
    return {_last_part(name) for name in found if name}


def user_problems(cfg: WorldConfig, user: object) -> list[str]:
    """Return one sentence if `user` cannot be the one in `env.options.user`."""
    if not isinstance(user, str) or not user:
        return [f"env.options.user must be {SCRIPTED} or the name of a model, not {user!r}."]
    if user != SCRIPTED and _last_part(user) in policy_names(cfg):
        return [f"env.options.user={user} is the policy itself, which would talk with itself: take another model."]
    return []


def user_forecast(cfg: WorldConfig, user: str, prices: PriceList) -> str | None:
    """Return a sentence on the cost of a model that plays the user; None: there is none, or no list sells it."""
    if user not in prices.entries:
        return None
    plan, usd = cfg.plan, USER_TURNS * call_usd(cfg, prices, user)
    tokens = f"{plan.call_input} + {plan.call_output} tokens"
    return f"The user {user} costs about ${usd:.2g} a conversation of {USER_TURNS} turns of {tokens}."


def _last_part(name: str) -> str:
    return Path(name).name.lower()


def _read_step(text: str, done: bool) -> tuple[ToolCall | None, str] | None:
    """Return the call or the words of a step; None: neither can be read."""
    inner = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    if any(stop in inner for stop in STOPS) and not inner.startswith("{"):
        return None, inner
    try:
        step = read_json(inner.encode("utf-8", "replace"))
        action, words = step["action"], step.get("words", "")
        if action == _SAY:
            return (None, words) if isinstance(words, str) and (words.strip() or done) else None
        given = step.get("arguments") or {}
        arguments = read_json(given.encode("utf-8", "replace")) if isinstance(given, str) else given
    except (Unreadable, KeyError, TypeError, AttributeError):
        return (None, inner) if done else None
    return (ToolCall(action, arguments), "") if isinstance(action, str) and isinstance(arguments, dict) else None
