"""Read the bills that `money.journal` writes, one for each process of a run, and add them up."""

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.io.foreign_json import read_json

# Spending by model or tool: dollars as the text of a fraction, tokens, calls; as `Budget.get_state` gives it.
State = dict[str, list[Any]]
_FRACTION = re.compile(r"\d{1,1000}(/0*[1-9]\d{0,999})?", re.ASCII)


def bill(directory: Path) -> tuple[State, State]:
    """Read from the files of all processes what a run paid, and the worst cases of calls in flight at their end."""
    files = [directory / "spent.jsonl", *bills_of_others(directory, 1)]
    paid, in_flight = zip(*(read_bill(file) for file in files), strict=True)
    return added(paid), added(in_flight)


def bills_of_others(directory: Path, count: int) -> list[Path]:
    """Return the files of processes that the run had before it was restarted with `count` of them."""
    found = {int(file.stem.removeprefix("spent-")): file for file in directory.glob("spent-[0-9]*.jsonl")}
    return [file for index, file in sorted(found.items()) if index >= count]


def read_bill(file: Path) -> tuple[State, State]:
    """Read what was paid, and the worst cases of the calls that were in flight at the end of the file.

    Raises:
        ConfigError: a line is broken that is not the last.
    """
    paid, in_flight = read_lines(file)
    return added(paid), added(in_flight.values())


def read_lines(file: Path) -> tuple[list[State], dict[int, State]]:
    """Return what was paid, line by line, and every call that was in flight, by its number."""
    paid, in_flight = list[State](), dict[int, State]()
    *lines, _ = file.read_bytes().split(b"\n") if file.exists() else [b""]
    for number, text in enumerate(lines, 1):
        try:
            line = read_json(text)
            if "spent" in line:
                paid += [_checked(name, *amounts) for name, amounts in line["spent"].items()]
            elif "worst" in line:
                if line["call"] in in_flight:
                    raise ValueError("the call is under way already")
                usd, tokens = line["worst"]
                in_flight[line["call"]] = _checked(line["name"], usd, tokens, 1)
            else:
                del in_flight[line["call"]]
                if "paid" in line:
                    usd, tokens = line["paid"]
                    paid.append(_checked(line["name"], usd, tokens, 1))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{str(file)!r}, line {number}, is no line of the run's bill: restore the file, or delete it if what "
                "was spent until now need not count in budget.run_*."
            ) from error
    return paid, in_flight


def added(states: Iterable[Mapping[str, Sequence[Any]]]) -> State:
    """Add up what several budgets or calls spent, by name."""
    found: dict[str, tuple[Fraction, int, int]] = {}
    for state in states:
        for name, (usd, tokens, calls) in state.items():
            before = found.get(name, (Fraction(0), 0, 0))
            found[name] = before[0] + Fraction(usd), before[1] + int(tokens), before[2] + int(calls)
    return {name: [str(usd), tokens, calls] for name, (usd, tokens, calls) in found.items()}


def _checked(name: Any, usd: Any, tokens: Any, calls: Any) -> State:
    """Return the amounts of a line, checked; dollars are a number, or a text as in `State`.

    Raises:
        ValueError, TypeError: it has not.
    """
    for count in (tokens, calls):
        if type(count) is not int or count < 0:
            raise ValueError(f"a count is {count!r}")
    # Not what else a Fraction takes: "1e999999999" would fill the memory with its digits.
    number = _FRACTION.fullmatch(usd) is not None if isinstance(usd, str) else type(usd) in (int, float) and usd >= 0
    if not isinstance(name, str) or not number:
        raise TypeError(f"{name!r} cost {usd!r}")
    return {name: [usd, tokens, calls]}
