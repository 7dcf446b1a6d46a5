"""ToolScale's tasks: read, fitted to the tools, replayed, and each that cannot be used is told."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.data.rows import SUFFIXES, BadRow, rows_of
from orchestra_jax.envs.database.conversations import DONE, GoldenTask
from orchestra_jax.envs.database.golden import Goal, solution
from orchestra_jax.envs.database.remote import RemoteWorld
from orchestra_jax.envs.toolscale.rows import ToolScaleUser, plain, read
from orchestra_jax.io import hub
from orchestra_jax.types import ToolCall, ToolSpec

ROWS = "nvidia/ToolScale"
_EVERY = 10  # one task of so many is held out
_FIRST_MS, _LAST_MS = 631_152_000_000, 4_102_444_800_000  # the years 1990 to 2100, which no id of a task reaches
_AT_ONCE = 4  # domains that are replayed beside one another


@dataclass
class SiftedTasks:
    """The rows by use.

    Attributes:
        usable: tasks by id, in the order of the rows.
        unusable: id of each other task -> why.
        broken: a sentence for each row that is no task.
    """

    usable: dict[str, GoldenTask] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)


def rows(path: str | Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a file, of every file of a folder, or of a data set's id on the hub.

    Raises:
        ConfigError: nothing can be read there; one sentence.
    """
    try:
        plain = Path(path).expanduser()
        files = [plain] if plain.is_file() else [file for file in sorted(hub.files_of(path)) if file.suffix in SUFFIXES]
        if not files:
            raise FileNotFoundError(f"there is no {', '.join(SUFFIXES)} file")
        for file in files:
            for _, _, read_row in rows_of(file):
                yield read_row()
    except (OSError, ValueError, ImportError) as error:
        kept = "" if isinstance(error, BadRow) else " of ToolScale's tasks"
        raise ConfigError(f"The rows{kept} cannot be read from {str(path)!r} (env.options.rows): {error}") from error


def read_all(path: str | Path, domains: Sequence[str] = ()) -> tuple[dict[str, tuple[ToolScaleUser, Goal]], list[str]]:
    """Return the tasks by id, of these domains or of all, and a sentence for each row that is none.

    Raises:
        ConfigError: nothing can be read there.
    """
    found, broken = dict[str, tuple[ToolScaleUser, Goal]](), list[str]()
    for row in rows(path):
        try:
            user, goal = read(row)
        except ValueError as error:
            broken.append(str(error))
            continue
        if domains and user.domain not in domains:
            continue
        if goal.id in found:
            broken.append(f"The ToolScale row {goal.id} occurs twice.")
            continue
        found[goal.id] = user, goal
    return found, broken


def sift(
    tasks: Mapping[str, tuple[ToolScaleUser, Goal]], worlds: Mapping[str, RemoteWorld], broken: Sequence[str] = ()
) -> SiftedTasks:
    """Replay the golden calls of every task; domains run beside one another, each in its own worker."""

    def one(domain: str) -> dict[str, GoldenTask | str]:
        mine = {name: each for name, each in tasks.items() if each[0].domain == domain}
        if domain not in worlds:
            return dict.fromkeys(mine, f"There is no domain {domain!r}.")
        return {name: _golden_task(user, goal, worlds[domain]) for name, (user, goal) in mine.items()}

    domains = list(dict.fromkeys(user.domain for user, _ in tasks.values()))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = {name: each for some in pool.map(one, domains) for name, each in some.items()}
    result = SiftedTasks(broken=list(broken))
    for name in tasks:
        each = found[name]
        if isinstance(each, str):
            result.unusable[name] = each
        else:
            result.usable[name] = each
    return result


def report(sifted: SiftedTasks, tasks: Mapping[str, tuple[ToolScaleUser, Goal]]) -> list[str]:
    """Return lines that tell by domain how many tasks replay, and why each of the others cannot be used."""
    lines = list[str]()
    total = Counter(user.domain for user, _ in tasks.values())
    kept = Counter(each.family for each in sifted.usable.values())
    for domain in sorted(total):
        lines.append(f"ToolScale, {domain}: {kept[domain]} of {total[domain]} tasks can be used.")
    lines.append(f"ToolScale: {len(sifted.usable)} of {len(tasks)} tasks can be used.")
    lines += [f"{name} is left out: {reason}" for name, reason in sifted.unusable.items()]
    return [*lines, *sifted.broken]


def held_out(name: str) -> bool:
    """Return whether a task is held out for evaluation; its id alone decides."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest()) % _EVERY == 0


def fitted(goal: Goal, specs: Mapping[str, ToolSpec]) -> Goal:
    """Return the goal with values of the kinds that the tools ask for.

    The data set's column may have made 2.0 of 2, and a date that a JSON file keeps as milliseconds of a date's text.
    """

    def fit(call: ToolCall) -> ToolCall:
        spec = specs.get(call.name)
        wanted = spec.parameters["properties"] if spec is not None else {}
        return ToolCall(call.name, {name: _fit(value, wanted.get(name, {})) for name, value in call.arguments.items()})

    return replace(goal, calls=[fit(call) for call in goal.calls])


def _fit(value: Any, wanted: Mapping[str, Any]) -> Any:
    forms = (wanted, *wanted.get("anyOf", ()))
    kinds = {each.get("type") for each in forms}
    if isinstance(value, list):
        items: Mapping[str, Any] = next((each["items"] for each in forms if "items" in each), {})
        return [_fit(each, items) for each in value]
    if isinstance(value, dict):
        fields: Mapping[str, Any] = next((each["properties"] for each in forms if "properties" in each), {})
        return {name: _fit(each, fields.get(name, {})) for name, each in value.items()}
    if not isinstance(value, int | float) or isinstance(value, bool) or "number" in kinds or value != value // 1:
        return value
    if "integer" in kinds:
        return int(value)
    if "string" in kinds and value % 1000 == 0 and _FIRST_MS <= value <= _LAST_MS:
        return plain(datetime.fromtimestamp(value // 1000, UTC).replace(tzinfo=None))
    return value


def _golden_task(user: ToolScaleUser, goal: Goal, world: RemoteWorld) -> GoldenTask | str:
    """Return the task with a user without a model, or why it cannot be used."""
    goal = fitted(goal, world.specs)
    after = solution(world, goal)
    if isinstance(after, str):
        return after
    plan: list[ToolCall | str] = [*goal.calls, "; ".join(goal.facts) or DONE]
    return GoldenTask(goal, world, after, user.words, user.domain, user.situation, plan)
