"""The paper's experts by role (appendix D): query and code writers, maths models, generalists, user simulator.

A tool role is a row of ROLES; any client of `experts` can take any role. The judge is in `judge`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from orchestra_jax.config.roles import Role
from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.tools.answers import marked_answer, without_thinking
from orchestra_jax.tools.executor import ToolHandler, as_result
from orchestra_jax.tools.user_turn import UserTurn
from orchestra_jax.types import USER_ROLE, InfrastructureError, ToolResult, ToolSpec

if TYPE_CHECKING:
    from orchestra_jax.tools.experts.client import Completion, ExpertClient

NO_CODE = "The model wrote no Python code."
NO_QUERY = "The model wrote no search query."
_CONTEXT = {
    "type": "string",
    "description": "What is known so far and may help: facts found, results of other tools, constraints.",
}
_FENCE, _LANGUAGE = "```", re.compile(r"[ \t]*([\w+-]*)")
_NO_NAME = re.compile(r"[^\w-]", re.ASCII)
_QUERY_CHARS = 400  # what search services take
USER_SYSTEM = (
    "You play the user in a conversation with a support agent. Your situation and what you want are below. Write "
    "only what this user would say next, in the first person and in a sentence or two. Tell facts only when they "
    "are needed or asked for, and invent none that are not given. When all that you want is done, or it is clear "
    "that it cannot be done, write {stop} and nothing else.\n\nYour situation:\n{situation}"
)
STOP = "###STOP###"


@dataclass(frozen=True, kw_only=True)
class ExpertRole:
    """A role of an expert.

    Attributes:
        argument, meaning: its argument beside "context", and the text about it for the policy.
        follows: argument of the tool that takes what the model wrote ("query", "code"); None: the reply is the result.
        prefix: beginning of the names of its choices in the paper's released form.
        use: "search" | "reason" | "answer": its function in that form, for which the price list gives latencies.
    """

    system: str
    description: str
    argument: str
    meaning: str
    follows: str | None = None
    prefix: str
    use: str


ROLES: dict[str, ExpertRole] = {
    Role.query_writer: ExpertRole(
        system="You write queries for a search engine. Read the question and what is already known, decide which "
        "single missing fact would help most, and write one short query that would find it. Put the query, and nothing "
        "else, between <answer> and </answer>.",
        description="A language model that writes a search query for a question, runs the search and returns what it "
        "found.",
        argument="question",
        meaning="What has to be found out.",
        follows="query",
        prefix="search",
        use="search",
    ),
    Role.code_writer: ExpertRole(
        system="You solve tasks by writing Python. Write one complete script in a single ```python block. It runs "
        "once, in a fresh interpreter without network and without input; whatever it prints is the result, so print "
        "every value that matters, with a label.",
        description="A language model that writes Python code for a task, runs it and returns the code and its output.",
        argument="task",
        meaning="What the code has to compute, with all data that it needs.",
        follows="code",
        prefix="reasoner",
        use="reason",
    ),
    Role.math: ExpertRole(
        system="You are a careful mathematician. Work through the problem step by step, check the result, and give the "
        "final answer in \\boxed{}.",
        description="A language model for mathematics that solves a problem step by step.",
        argument="problem",
        meaning="The whole problem.",
        prefix="answer-math",
        use="answer",
    ),
    Role.generalist: ExpertRole(
        system="Answer the question as well as you can. Use the context where it is relevant and your own knowledge "
        "elsewhere, reason briefly, and give the final answer, as short as it can be, in \\boxed{}.",
        description="A language model that answers questions of any field.",
        argument="question",
        meaning="The whole question.",
        prefix="answer",
        use="answer",
    ),
}


def expert_tool(
    role: str,
    client: "ExpertClient",
    follow: ToolHandler | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    local: bool = False,
    traits: tuple[str, ...] = (),
) -> tuple[ToolSpec, ToolHandler]:
    """Make a tool of a model in a role of ROLES; `answers.extract_answer` finds the answer in a reply.

    Args:
        follow: handler of the search that a query writer uses, or of what runs a code writer's code; the result is the
            query or code with what came of it. None: the query or code alone.
        name: of the tool, in which "-" stands for what a tool's name may not hold; the expert's own by default.
        description: what the policy reads; that of the role by default.
    """
    kind = ROLES[role]
    parameters = {
        "type": "object",
        "properties": {kind.argument: {"type": "string", "description": kind.meaning}, "context": _CONTEXT},
        "required": [kind.argument],
    }
    spec = ToolSpec(
        name=_NO_NAME.sub("-", name or client.expert.name),
        description=description or kind.description,
        parameters=parameters,
        local=local,
        traits=traits,
    )

    # What the model wrote for calls whose search or run failed: such a call is made again, and the model is not paid
    # again. Its rows are those that the error has not told.
    begun: WeakKeyDictionary[Budget, dict[str, Completion]] = WeakKeyDictionary()

    async def ask(arguments: Mapping[str, Any], budget: Budget) -> "Completion":
        # The question comes last: of a long prompt the context is cut.
        context = f"Context:\n{arguments['context']}\n\n" if arguments.get("context") else ""
        user = f"{context}{kind.argument.capitalize()}: {arguments[kind.argument]}"
        return await client.chat(messages(kind.system, user), budget=budget)

    async def handle(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        call, before = json.dumps(arguments, sort_keys=True), begun.setdefault(budget, {})
        completion = before.pop(call, None) or await ask(arguments, budget)
        text, rows = without_thinking(completion.text), completion.usage
        if kind.follows is None:
            note = "\n[the reply was cut at the model's token limit]" if completion.finish_reason == "length" else ""
            return ToolResult((text or "The model gave no answer.") + note, rows, is_error=not text)
        written = _query(text) if kind.follows == "query" else python_block(text)
        if not written:
            return ToolResult(NO_QUERY if kind.follows == "query" else NO_CODE, rows, is_error=True, refused=True)
        shown = written if kind.follows == "query" else f"```python\n{written}\n```"
        if follow is None:
            return ToolResult(shown, rows)
        try:
            result = as_result(await follow({kind.follows: written}, budget))
        except BaseException as error:
            if told := isinstance(error, InfrastructureError | BudgetExceeded):
                error.usage = rows + error.usage
            before[call] = replace(completion, usage=()) if told else completion
            raise
        text = f"Query: {shown}\n{result.text}" if kind.follows == "query" else f"{shown}\nOutput:\n{result.text}"
        return replace(result, text=text, usage=rows + result.usage)

    return spec, handle


class UserSimulator:
    """Plays the user of a conversation.

    Args:
        situation: who the user is, what they know and want.
        system: what the model is told; by default `USER_SYSTEM` with the situation.
    """

    def __init__(self, client: "ExpertClient", situation: str, system: str | None = None) -> None:
        self._client = client
        self.system = USER_SYSTEM.format(stop=STOP, situation=situation) if system is None else system

    async def reply(
        self,
        conversation: Sequence[Mapping[str, str]],
        *,
        budget: Budget,
        sample: int = 0,
        response_format: Mapping[str, Any] | None = None,
    ) -> UserTurn:
        """Write the user's next words.

        Args:
            conversation: {"role": "user" | "assistant", "content"} so far; may be empty, then the user opens.
                Messages of other roles (the agent's own system message, tools) are not the user's to see.
            budget, sample, response_format, and what is raised: see `ExpertClient.chat`.
        """
        swapped = {"assistant": "user", "user": "assistant"}
        told = [message for message in conversation if message["role"] in swapped]
        seen = [{"role": swapped[message["role"]], "content": message["content"]} for message in told]
        if not seen or seen[0]["role"] != "user":  # templates want the user's side first
            seen.insert(0, {"role": "user", "content": "Hello, how can I help you?"})
        system = {"role": "system", "content": self.system}
        completion = await self._client.chat(
            [system, *seen], budget=budget, role=USER_ROLE, sample=sample, response_format=response_format
        )
        text = without_thinking(completion.text)
        return UserTurn(text.replace(STOP, "").strip(), STOP in text, completion.usage)


def python_block(text: str) -> str | None:
    """Return the last fenced block that is Python or names no language, closed or not; None without one."""
    last, start = "", text.find(_FENCE)
    while start >= 0 and (line_end := text.find("\n", start)) >= 0:
        language = _LANGUAGE.match(text, start + len(_FENCE), line_end)
        end = text.find(_FENCE, line_end)
        body = text[line_end + 1 : end if end >= 0 else len(text)]
        if language is not None and language[1].lower() in ("", "py", "python"):
            last = body.strip("\n")
        start = text.find(_FENCE, end + len(_FENCE)) if end >= 0 else -1
    return last or None


def messages(system: str, user: str) -> list[dict[str, str]]:
    """Return a conversation of two messages."""
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _query(text: str) -> str:
    """Return the marked query, else a reply of one line: a page of prose is no query."""
    marked = marked_answer(text)
    query = (text if "\n" not in text else "") if marked is None else marked
    return query.strip().strip('"')[:_QUERY_CHARS]
