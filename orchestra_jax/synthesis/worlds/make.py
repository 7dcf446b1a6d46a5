"""A world from the name of its domain: all stages in their order, then the folder that `envs.database` reads."""

import contextlib
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.config.synthesis import SynthesisConfig
from orchestra_jax.envs.database.folder import FORMAT, save_tasks
from orchestra_jax.envs.database.remote import RemoteWorld
from orchestra_jax.evaluation.results.rendering import templates
from orchestra_jax.io.whole import whole_folder, write_whole
from orchestra_jax.synthesis.card import CARD, README, card, save_card
from orchestra_jax.synthesis.cast import Cast
from orchestra_jax.synthesis.stages import Row, Stages
from orchestra_jax.synthesis.worlds import content, filters, functions, tasks

INDEX, SHOWN = "index.html", 10  # the page of tasks, and how many it shows


async def make(
    cfg: WorldConfig, settings: SynthesisConfig, folder: Path, stages: Stages, cast: Cast
) -> tuple[str, bool]:
    """Write a world into `folder`/DOMAIN; return a sentence on it, and whether it has any task.

    The card is written in any case: if nothing is left, it tells at which stage and why.
    """
    isolation = str(cfg.tools.sandbox.isolation)
    if isolation == "none":
        raise ConfigError("tools.sandbox.isolation=none would give a model's code your rights: set it to auto.")
    subjects, schema, entries = await content.make(stages, settings, cast)
    tools, policy = await functions.make(stages, settings, cast, schema, entries, isolation)
    domain = tasks.WrittenDomain(schema, entries, tools, subjects, policy)
    sound, kept = list[Row](), list[Row]()
    written = await tasks.make(stages, settings, cast, domain) if tools else []
    if written:
        with _opened(cfg, schema, entries, tools, policy) as world:
            sound, slow = await filters.replay_all(stages, written, world)
        tools = [tool for tool in tools if tool["name"] not in slow]
    if sound:
        with _opened(cfg, schema, entries, tools, policy) as world:
            kept = await filters.solve_all(stages, settings, cast, sound, world)
    figures = {
        "domain": settings.domain,
        "tables": dict(Counter(row["table"] for row in entries)),
        "tools": dict(Counter(row["kind"] for row in tools)),
        "tasks": dict(Counter(row["split"] for row in kept)),
        "evolved": sum(row["parent"] is not None for row in kept),
        "difficulty": filters.difficulty(kept),
        "near_duplicates": sum(stage.reasons.get("near-duplicate", 0) for stage in stages.done),
    }
    found = card(settings, cfg, stages.done, figures)
    save_card(folder, found, settings.domain, schema.get("about", ""), in_words(found))
    if not kept:
        empty = next((stage.name for stage in stages.done if not stage.rows), stages.done[-1].name)
        return f"No world came of it: nothing is left after the stage {empty}; {folder / README} says why.", False
    target = folder / settings.domain
    _save(target, settings.domain, schema, entries, tools, policy, kept)
    for name in (CARD, README):
        shutil.copyfile(folder / name, target / name)
    _write_page(folder / "pages", settings.domain, policy, tools, kept)
    return (
        f"A world of {len(tools)} tools, {len(entries)} entries and {len(kept)} tasks is in {target}; look at ten "
        f"of its tasks in {folder / 'pages' / INDEX}.",
        True,
    )


def _opened(
    cfg: WorldConfig, schema: Row, entries: Sequence[Row], tools: Sequence[Row], policy: str
) -> "contextlib.closing[RemoteWorld]":
    """Start the world so far in the sandbox."""
    sandbox = cfg.tools.sandbox
    return contextlib.closing(functions.remote(schema, entries, tools, policy, str(sandbox.isolation), sandbox.workers))


def in_words(found: Row) -> list[str]:
    """Return the figures of a world's card in words."""

    def counts(name: str) -> str:
        return ", ".join(f"{key} {count}" for key, count in found[name].items()) or "none"

    return [
        f"Entries by table: {counts('tables')}. Tools by kind: {counts('tools')}. Tasks by split: {counts('tasks')}, "
        f"{found['evolved']} of them evolved. Near-duplicates removed: {found['near_duplicates']}.",
        "Tasks by attempts of the solver that succeed: "
        + (", ".join(f"{share}: {count}" for share, count in found["difficulty"].items()) or "none")
        + ".",
    ]


def _save(
    target: Path, name: str, schema: Row, entries: Sequence[Row], tools: Sequence[Row], policy: str, kept: Sequence[Row]
) -> None:
    """Write the folder whole: a kill leaves the old one, none, or the new one."""
    head = {"format": FORMAT, "name": name, "about": schema["about"], "now": schema["now"]}
    described = {"tables": schema["tables"], "references": schema["references"]}
    database = content.tables(schema, entries)
    with whole_folder(target.absolute(), overwrite=True) as part:
        for file, value in (("world.json", head), ("schema.json", described), ("database.json", database)):
            (part / file).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (part / "policy.md").write_text(policy.strip() + "\n", encoding="utf-8")
        (part / "tools.py").write_text(functions.source(tools), encoding="utf-8")
        save_tasks(part, [filters.task_row(row) for row in kept])


def _write_page(folder: Path, name: str, policy: str, tools: Sequence[Row], tasks: Sequence[Row]) -> None:
    """Write a page with ten tasks of all degrees of difficulty, the rules and the tools."""
    folder.mkdir(parents=True, exist_ok=True)
    ordered = sorted(tasks, key=lambda row: (row["attempts"]["solved"], row["id"]))
    step = max(1.0, len(ordered) / SHOWN)
    shown = [ordered[int(place * step)] for place in range(min(SHOWN, len(ordered)))]
    template = templates(__package__).get_template("world.html.jinja")
    text = template.render(
        name=name,
        policy=policy,
        tools=tools,
        tasks=[{**row, "turns": _turns(row)} for row in shown],
        count=len(tasks),
    )
    write_whole(folder / INDEX, text)


def _turns(row: Row) -> list[Row]:
    """Return the turns, each call with its outcome."""
    outcomes = iter(row["outcomes"])
    return [{**turn, "calls": [{**call, "outcome": next(outcomes)} for call in turn["calls"]]} for turn in row["turns"]]
