"""A report of evaluations side by side, as Markdown, CSV and one HTML page: from the kept trajectories alone.

The same files give the same bytes. What the paper published stands in rows of its own, marked as published.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.evaluation.results.measured import AFTER, BEFORE, Measured, measured
from orchestra_jax.evaluation.results.pages import templates
from orchestra_jax.evaluation.results.picture import picture
from orchestra_jax.evaluation.results.preference import key
from orchestra_jax.evaluation.results.table import Table, to_csv, to_markdown
from orchestra_jax.evaluation.results.tables import side_by_side, tables


def write_report(folders: Sequence[Path], out: Path, base: Path | None = None) -> list[Path]:
    """Writes report.md, report.csv and report.html, which holds everything itself.

    Args:
        base: folder of the policy whose run preferences are scored against; None: of a training run its policy before.

    Raises:
        ConfigError: a folder has no evaluation, or `base` none of the questions.
        ValueError: a file is damaged.
    """
    found = [one for folder in folders for one in measured(folder)]
    made: list[Table] = tables(found, _own_bases(found) if base is None else _bases(found, base))
    title = f"Evaluations of {', '.join(folder.name for folder in folders)}"
    labels = dict.fromkeys(one.label for one in found)
    pictures = {label: picture(label, side_by_side([one for one in found if one.label == label])) for label in labels}
    page: Any = templates().get_template("report.html.jinja")
    out.mkdir(parents=True, exist_ok=True)
    texts = {
        "report.md": to_markdown(title, made),
        "report.csv": to_csv(made),
        "report.html": page.render(title=title, tables=made, pictures=pictures),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8", errors="replace")
    return [out / name for name in texts]


def _own_bases(found: Sequence[Measured]) -> Mapping[str, Measured]:
    """Of a policy after training: the one before."""
    before = {(one.folder, one.benchmark): one for one in found if one.phase == BEFORE}
    after = [one for one in found if one.phase == AFTER]
    return {key(one): before[one.folder, one.benchmark] for one in after if (one.folder, one.benchmark) in before}


def _bases(found: Sequence[Measured], folder: Path) -> Mapping[str, Measured]:
    """Of every policy but the base itself: the run of `folder`, of a training run that before."""
    theirs: dict[tuple[str, str], Measured] = {}
    for phase in (BEFORE, "policy"):  # the latter first where there are both
        theirs |= {(one.source, one.benchmark): one for one in measured(folder) if one.phase == phase}
    bases = {key(one): theirs.get((one.source, one.benchmark)) for one in found}
    known = {own: start for own, start in bases.items() if start is not None and own != key(start)}
    if not any(start.items.keys() & one.items.keys() for one in found if (start := known.get(key(one)))):
        raise ConfigError(f"--base {str(folder)!r} was asked none of the same questions: evaluate it on them first.")
    return known
