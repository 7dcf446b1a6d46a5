"""A report of evaluations side by side, as Markdown, CSV and one HTML page: from the kept trajectories alone.

The same files give the same bytes. What the paper published stands in rows of its own, marked as published.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestra_jax.evaluation.pages.site import templates
from orchestra_jax.evaluation.reports.measured import measured
from orchestra_jax.evaluation.reports.picture import picture
from orchestra_jax.evaluation.reports.table import Table, to_csv, to_markdown
from orchestra_jax.evaluation.reports.tables import tables


def write_report(folders: Sequence[Path], out: Path) -> list[Path]:
    """Writes report.md, report.csv and report.html, which holds everything itself.

    Raises:
        ConfigError: a folder has no evaluation.
        ValueError: a file is damaged.
    """
    found = [one for folder in folders for one in measured(folder)]
    made: list[Table] = tables(found)
    title = f"Evaluations of {', '.join(folder.name for folder in folders)}"
    pictures = {label: picture(label, found) for label in dict.fromkeys(one.label for one in found)}
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
