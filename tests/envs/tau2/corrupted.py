"""Corrupted golden trajectories of τ²-Bench, and what the public evaluator says of them.

`verdicts.json` has its verdicts as data. To make them anew, give this module the authors' repository (with its
packages on PYTHONPATH) and the data of `$ORCHESTRA_DATA/tau2`:

    PYTHONPATH=tau2-bench/src TAU2_DATA_DIR=tau2-bench/data python -m tests.envs.tau2.corrupted
"""

import argparse
import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra_jax.envs.tau2 import package
from orchestra_jax.envs.tau2.tasks import AGENT, ORIGINAL, WHEEL, Tau2Scenario, data_folder, scenarios
from orchestra_jax.types import ToolCall

FILE = Path(__file__).with_name("verdicts.json")
SOURCES = {"airline": ORIGINAL, "retail": ORIGINAL, "telecom": WHEEL, "banking": WHEEL}
EACH = 320  # trajectories a domain
Edit = list[Any]


def original() -> str | None:
    """Return the folder of the original data."""
    return f"{os.environ['ORCHESTRA_DATA']}/tau2" if "ORCHESTRA_DATA" in os.environ else None


def corrupted(scenario: Tau2Scenario, edits: Sequence[Edit]) -> tuple[list[tuple[str, ToolCall]], list[str]]:
    """Return the calls of both sides and the policy's words of a golden trajectory after edits.

    An edit names golden calls by their number: ["drop", 2], ["set", 2, argument, value], ["swap", 1, 2], ["again", 2]
    repeats one at the end, ["add", side, name, arguments] makes one more call, ["say", 0, text] says a fact otherwise.
    """
    calls: dict[int, tuple[str, ToolCall]] = {n: (each.who, each.call) for n, each in enumerate(scenario.actions)}
    order, said = list(calls), [f"It is {fact}." for fact in scenario.facts]
    for kind, *rest in edits:
        if kind == "drop":
            order.remove(rest[0])
        elif kind == "set":
            number, argument, value = rest
            who, call = calls[number]
            calls[number] = who, ToolCall(call.name, {**call.arguments, argument: value})
        elif kind == "swap":
            one, other = (order.index(number) for number in rest)
            order[one], order[other] = order[other], order[one]
        elif kind == "again":
            order.append(rest[0])
        elif kind == "add":
            calls[len(calls)] = rest[0], ToolCall(rest[1], rest[2])
            order.append(len(calls) - 1)
        elif kind == "say":
            said[rest[0]] = rest[1]
        else:
            raise ValueError(f"unknown edit {kind!r}")
    return [calls[number] for number in order], said


def draw(scenario: Tau2Scenario, others: Sequence[Tau2Scenario], rng: random.Random) -> list[Edit]:
    """Draw one or two edits of a task's golden trajectory; `others`: tasks that lend their calls."""
    edits: list[Edit] = []
    touched = set[int]()
    for _ in range(rng.choice((1, 1, 2))):
        left = [n for n in range(len(scenario.actions)) if n not in touched]
        kinds = ["add"] + ["drop", "again", "set", "set"] * bool(left) + ["swap"] * (len(left) > 1)
        kind = rng.choice(kinds + ["say", "say"] * bool(scenario.facts))
        if kind == "add":
            lender = rng.choice([other for other in others if other.actions])
            action = rng.choice(lender.actions)
            edits.append(["add", action.who, action.call.name, dict(action.call.arguments)])
        elif kind == "say":
            number = rng.randrange(len(scenario.facts))
            fact = scenario.facts[number]
            says = [
                "Goodbye.",
                f"It is 9{fact}.",
                f"It is {fact}9.",
                f"{fact.upper()}",
                f"It is {fact[:-1]}, {fact[-1]}",
            ]
            edits.append(["say", number, rng.choice(says)])
        elif kind == "swap":
            pair = rng.sample(left, 2)
            touched.update(pair)
            edits.append(["swap", *pair])
        else:
            number = rng.choice(left)
            touched.add(number)
            arguments = scenario.actions[number].call.arguments
            if kind == "set" and arguments:
                argument = rng.choice(sorted(arguments))
                edits.append(["set", number, argument, _other(arguments[argument], rng)])
            else:
                edits.append(["again" if kind == "again" else "drop", number])
    return edits


def _other(value: Any, rng: random.Random) -> Any:
    """Return another value of an argument, or the same one in another form."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice([value + 1, str(value), -value, float(value)])
    if isinstance(value, str):
        return rng.choice([value.lower(), value[:-1], f"{value} ", f"{value}0"])
    if isinstance(value, list) and value:
        return rng.choice([value[:-1], value[::-1], [*value, value[0]]])
    return rng.choice(["", None, []])


def drawn(domain: str, count: int = EACH) -> list[tuple[Tau2Scenario, list[Edit]]]:
    """Draw corrupted trajectories of a domain, the same ones each time."""
    found, rng = scenarios(domain, SOURCES[domain], original()), random.Random(domain)
    return [(found[n % len(found)], draw(found[n % len(found)], found, rng)) for n in range(count)]


class PublicEvaluator:
    """The authors' evaluator of one domain, on the rows that we read."""

    def __init__(self, domain: str) -> None:
        from tau2.data_model.tasks import Task  # type: ignore[import-not-found]
        from tau2.registry import registry  # type: ignore[import-not-found]

        self._domain = domain
        self._make = registry.get_env_constructor({"banking": "banking_knowledge"}.get(domain, domain))
        rows = package.read(data_folder(domain, SOURCES[domain], original()), "tasks.json")
        self._tasks = {f"{domain}-{row['id']}": Task.model_validate(row) for row in rows}

    def verdict(
        self, scenario: Tau2Scenario, calls: Sequence[tuple[str, ToolCall]], said: Sequence[str]
    ) -> tuple[str, list[int]]:
        """Return the initials of the criteria that hold, and the numbers of the calls that failed.

        "DC" is database and communicate; the others are action and env_assertion.
        """
        from tau2.data_model.message import AssistantMessage, UserMessage  # type: ignore[import-not-found]
        from tau2.data_model.message import ToolCall as Call
        from tau2.evaluator.evaluator_action import ActionEvaluator  # type: ignore[import-not-found]
        from tau2.evaluator.evaluator_communicate import CommunicateEvaluator  # type: ignore[import-not-found]
        from tau2.evaluator.evaluator_env import EnvironmentEvaluator  # type: ignore[import-not-found]

        task, settings = self._tasks[scenario.id], self._settings(scenario)
        world = self._make(**settings)
        start = task.initial_state
        world.set_state(
            initialization_data=start and start.initialization_data,
            initialization_actions=start and start.initialization_actions,
            message_history=[],
        )
        messages: list[Any] = [UserMessage(role="user", content="Please help me.")]
        failed = list[int]()
        for number, (who, call) in enumerate(calls):
            arguments = json.loads(json.dumps(call.arguments))
            asked = Call(id=str(number), name=call.name, arguments=arguments, requestor=who)
            kind = AssistantMessage if who == AGENT else UserMessage
            answer = world.get_response(asked)
            failed += [number] * answer.error
            messages += [kind(role=who, content=None, tool_calls=[asked]), answer]
        messages += [AssistantMessage(role=AGENT, content=text) for text in said]
        env = EnvironmentEvaluator.calculate_reward(self._make, task, messages, env_kwargs=settings)
        acts = ActionEvaluator.calculate_reward(task, messages)
        told = CommunicateEvaluator.calculate_reward(task, messages)
        holds = {
            "D": env.db_check is None or env.db_check.db_match,
            "C": told.reward,
            "A": acts.reward,
            "E": all(check.met for check in env.env_assertions or ()),
        }
        return "".join(name for name, held in holds.items() if held), failed

    def _settings(self, scenario: Tau2Scenario) -> Mapping[str, Any]:
        if self._domain != "banking":
            return {}
        return {"retrieval_variant": "grep_only", "read_log_allowlist": set(scenario.unlocked)}


def main() -> None:
    """Write the public evaluator's verdicts on what is drawn; some 20 minutes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("domains", nargs="*", default=list(SOURCES), help="those to make anew; all without any")
    found = json.loads(FILE.read_text("utf-8")) if FILE.is_file() else {}
    for domain in parser.parse_args().domains:
        public = PublicEvaluator(domain)
        found[domain] = [
            [scenario.id, edits, *public.verdict(scenario, *corrupted(scenario, edits))]
            for scenario, edits in drawn(domain)
        ]
        print(f"{domain}: {len(found[domain])} verdicts", flush=True)
        parts = [f'"{name}": [\n' + ",\n".join(map(json.dumps, found[name])) + "\n]" for name in sorted(found)]
        FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
