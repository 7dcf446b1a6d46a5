"""The commands `ask` and `chat`: answers on standard output, everything else on standard error."""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestra_jax.config.exit_status import HALTED, INTERRUPTED, USAGE_ERROR
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.base import Message
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.serving.answers import Answer, CallStep, tell, told
from orchestra_jax.serving.opened import checked_settings, open_checked
from orchestra_jax.tools.entries import OUT_OF_BUDGET
from orchestra_jax.training.stopping import end_now, handling
from orchestra_jax.types import OutOfTime, ReplayMiss

if TYPE_CHECKING:
    from orchestra_jax.serving.orchestrator import Orchestrator

_NO_ANSWER = 1
_HELP = "Lines: a question; /wish WORDS (nothing: no wish); /new forgets the conversation; Ctrl-D ends."


def ask(policy: str, settings: Sequence[str], question: str, limits: Mapping[str, Any]) -> int:
    """Print the answer to one question and a table of its calls; return the status to exit with."""

    def work(orchestrator: "Orchestrator") -> int:
        found = _streamed(orchestrator, question, limits)
        print(found.trace, file=sys.stderr)
        if _lacks_money(found):
            return HALTED
        return 0 if found.answer is not None else _NO_ANSWER

    return _opened(policy, settings, work)


def chat(policy: str, settings: Sequence[str], limits: Mapping[str, Any]) -> int:
    """Answer lines of standard input until it ends; return the status to exit with."""

    def work(orchestrator: "Orchestrator") -> int:
        named = "".join(f"{wish}, " for wish in orchestrator.wishes)
        tell(f"{_HELP}\nWishes: {named and named + 'or '}a sentence of your own.")
        history, wish, spent = list[Message](), limits["wish"], 0.0
        while (line := _read_line()) is not None:
            command, _, words = line.partition(" ")
            if command == "/wish":
                wish = words.strip() or None
            elif command == "/new":
                history.clear()
            elif command.startswith("/"):
                tell(_HELP)
            elif line:
                try:
                    found = _streamed(orchestrator, line, {**limits, "wish": wish, "history": history})
                except ValueError as error:
                    tell(str(error))
                    continue
                spent += found.cost_usd
                tell(f"{found.trace}; ${spent:.4f} in all")
                if found.answer is not None:
                    history += [{"role": "user", "content": line}, {"role": "assistant", "content": found.answer}]
        return 0

    return _opened(policy, settings, work)


def _opened(policy: str, settings: Sequence[str], work: "Callable[[Orchestrator], int]") -> int:
    """Do the work with an open policy; what a user can mend is one sentence."""
    try:
        with handling(end_now):
            checked = checked_settings(policy, settings)
            from orchestra_jax.serving.orchestrator import Orchestrator  # only now: a mistake needs no JAX

            with Orchestrator(open_checked(checked)) as orchestrator:
                return work(orchestrator)
    except KeyboardInterrupt:
        tell("Stopped; everything is closed.")
        return INTERRUPTED
    except (BudgetExceeded, OutOfTime, ReplayMiss) as error:
        tell(str(error))
        return HALTED
    except (ConfigError, ValueError) as error:
        tell(str(error))
        return USAGE_ERROR


def _streamed(orchestrator: "Orchestrator", question: str, options: Mapping[str, Any]) -> Answer:
    """Tell each call as it comes, and print the answer, unless every call was refused for money."""
    for step in orchestrator.stream(question, **options):
        if isinstance(step, CallStep) and sys.stderr.isatty():
            sys.stderr.write(told(step))
            sys.stderr.flush()
        elif isinstance(step, Answer):
            if step.answer is None:
                tell(f"There is no answer: {step.reason.rstrip('.')}.")
            elif _lacks_money(step):
                tell("No call was made: each costs more than is left of --max-usd or of a budget; raise it.")
                tell(f"Without one the policy says: {step.answer}")
            else:
                print(step.answer, flush=True)
            return step
    raise AssertionError("A stream ends with an answer.")


def _lacks_money(found: Answer) -> bool:
    """Return whether money kept the policy from every call that it wanted to make."""
    return bool(found.calls) and all(step.refused and step.result == OUT_OF_BUDGET for step in found.calls)


def _read_line() -> str | None:
    with contextlib.suppress(EOFError):
        return input("> " if sys.stdin.isatty() else "").strip()
    return None
