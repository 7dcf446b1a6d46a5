"""Preferences and experts' descriptions that models write, within one budget, as the paper has them (§3.1, §3.3)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestra_jax.config.compose import compose
from orchestra_jax.config.flags import Flag, as_settings
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.data.sources import load_tasks
from orchestra_jax.io.shipped import CONF
from orchestra_jax.money import price_files
from orchestra_jax.money.run_budget import Halted, RunBudget
from orchestra_jax.synthesis.synthesize import synthesize
from orchestra_jax.tools.experts import describing, descriptions
from orchestra_jax.tools.experts.expert import read_experts

DESCRIPTIONS, PREFERENCES = "descriptions", "preferences"  # folders, each with a file of that name
NAMES = (DESCRIPTIONS, PREFERENCES)
REQUESTS = 1000  # of preferences; each asks for three wordings
_PATHS = (
    Flag("--folder", "output_dir", "", "FOLDER", quoted=True),
    Flag("--experts", "tools.experts_file", "", "FILE", quoted=True),
)
_PRICES = CONF / "pricing" / "paper_train.yaml"


@dataclass(frozen=True)
class Writing:
    """The models that write, and what they may cost.

    Attributes:
        experts: YAML file of the experts; all of them are described.
        writer: name of the one that writes descriptions, and preferences with their vectors.
        checker: name of the one that reads each preference without its vector, and describes the writer.
        max_usd: most dollars of both together, over all starts of the command.
        requests: of preferences.
        tasks: that every expert tries before it is described.
    """

    experts: Path
    writer: str
    checker: str
    max_usd: float
    requests: int = REQUESTS
    tasks: int = 10


def write(
    names: tuple[str, ...], folder: Path, writing: Writing, dry_run: bool = False, say: Callable[[str], None] = print
) -> list[str]:
    """Write descriptions first, which cost less, then preferences with what is left; return what is missing.

    A command that was stopped goes on, and pays for no call twice.

    Args:
        names: some of NAMES.
        folder: where `prepare` put the questions; the tasks are training questions of GeneralThought.
        dry_run: only tell what it will cost.
    """
    problems, spent = list[str](), 0.0
    try:
        if DESCRIPTIONS in names:
            found, spent = asyncio.run(_describe(folder, writing, dry_run, say))
            problems += found
        if PREFERENCES in names and not problems and not _write_preferences(folder, writing, spent, dry_run):
            problems.append("no wording of a preference passed its reading; look at card.json")
    except (OSError, ValueError, LookupError, ImportError, Halted) as error:  # a ConfigError is a ValueError
        problems.append(str(error))
    return problems


async def _describe(
    folder: Path, writing: Writing, dry_run: bool, say: Callable[[str], None]
) -> tuple[list[str], float]:
    """Return a sentence for each expert without a description, and the dollars spent in all starts."""
    questions = folder / "general_thought"
    if not questions.is_dir():
        raise ConfigError(f"Experts are tried on training questions: make {str(questions)!r} first.")
    experts = read_experts(writing.experts)
    own = folder / DESCRIPTIONS
    own.mkdir(parents=True, exist_ok=True)
    job = describing.DescriptionJob(
        experts=experts,
        subjects=[one.name for one in experts],
        writers=list(dict.fromkeys((writing.writer, writing.checker))),
        examples=descriptions.sample(load_tasks(questions, "general_thought"), writing.tasks, 0),
        prices=price_files.load(_PRICES),
        calls=own / "calls.db",
    )
    cost = (await describing.forecast(job))[-1]
    dollars = f"about ${cost.usd:.2f}, at most ${cost.worst_usd:.2f}"
    say(f"Descriptions of {len(experts)} experts: {cost.calls:.0f} calls, {dollars}.")
    money = RunBudget(compose(f"budget.run_usd={writing.max_usd}").budget, own)
    try:
        if dry_run:
            return [], money.spent.usd
        done = await describing.describe(job, own / f"{DESCRIPTIONS}.json", money.run)
    finally:
        money.close()
    say(f"{len(done.descriptions)} descriptions are in {own}; ${money.spent.usd:.4f} were spent on them.")
    return [f"no description of {name}: {problem}" for name, problem in done.problems.items()], money.spent.usd


def _write_preferences(folder: Path, writing: Writing, spent: float, dry_run: bool) -> bool:
    """Make the file of preferences with what is left of the budget; return whether it has any."""
    cfg = compose(
        "synthesis.make=preferences",
        "pricing.name=paper_train",
        *as_settings([f"--folder={folder / PREFERENCES}", f"--experts={writing.experts}"], _PATHS),
        *(f"synthesis.models.{role}={writing.writer}" for role in ("writer", "programmer", "solver")),
        *(f"synthesis.models.{role}={writing.checker}" for role in ("checker", "evolver")),
        f"synthesis.preferences={writing.requests}",
        f"budget.run_usd={max(writing.max_usd - spent, 0.0)}",
        f"evaluation.dry_run={str(dry_run).lower()}",
        name="synthesis",
    )
    (folder / PREFERENCES).mkdir(parents=True, exist_ok=True)
    return synthesize(cfg, cfg.synthesis)
