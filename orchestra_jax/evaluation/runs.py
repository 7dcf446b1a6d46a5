"""Finished and unfinished runs side by side: a row for each with its settings and figures.

runs = load("multirun/quickstart/*")
runs.frame()                     # a pandas.DataFrame, where pandas is installed
runs.to_csv("runs.csv")
"""

import contextlib
import csv
import glob
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from orchestra_jax.config import record
from orchestra_jax.config.checks import flat
from orchestra_jax.evaluation.intervals import CONFIDENCE, Interval, Values

if TYPE_CHECKING:
    import pandas

SUMMARY, EVALUATION = "summary.json", "evaluation"  # of a run's folder
_OF_SUMMARY = ("name", "seed", "steps")  # what the config says too
Row = dict[str, Any]


class Runs(list[Row]):
    """Rows of runs, see `load`: plain dicts, which lack the columns that a run does not have.

    Attributes:
        settings: columns of settings, the seed aside.
        figures: columns of figures.
    """

    settings: Sequence[str] = ()
    figures: Sequence[str] = ()

    @property
    def columns(self) -> list[str]:
        """All columns, in the order of the rows."""
        return list(dict.fromkeys(key for row in self for key in row))

    def frame(self) -> "pandas.DataFrame":
        """Return the rows as a pandas.DataFrame.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("A frame needs pandas: pip install pandas, or use the rows or to_csv.") from None
        return pandas.DataFrame(list(self), columns=self.columns)

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return the rows as CSV with a header, and write it to `path` if given; missing and null values are empty."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, restval="", lineterminator="\n")
        writer.writeheader()
        for row in self:
            lists = {key: json.dumps(value) for key, value in row.items() if isinstance(value, list | dict)}
            writer.writerow(row | lists)
        if path is not None:
            Path(path).write_text(text.getvalue(), encoding="utf-8")
        return text.getvalue()


def load(*patterns: str | Path) -> Runs:
    """Return a row for each run's folder that a pattern such as "multirun/*" matches, sorted by path.

    Columns: `run` (the folder), `name`, `seed`, `steps`; of run.json `commit`, `dirty`, `host`, `started`, `ended`,
    `outcome` (of the last start that was not refused) and `starts`; every setting that was given to one of the runs or
    differs between them, with its value in each; every figure of summary.json by its path, such as `after.accuracy`,
    and those of experiments/evaluate.py below `evaluation.`. Folders that hold no run are left out.

    Raises:
        ConfigError: a run.json is no record.
        ValueError: a summary.json is no JSON object.
        FileNotFoundError: no pattern matches a run.
    """
    found = {Path(name) for pattern in patterns for name in glob.glob(str(pattern))}
    folders = sorted(path for path in found if path.is_dir())  # a sweep's multirun.yaml lies beside its runs
    runs = [(folder, kept) for folder in folders if (kept := _read(folder)) is not None]
    if not runs:
        raise FileNotFoundError(f"No run in {', '.join(map(str, patterns))}: a run's folder has run.json in it.")
    settings = _settings([kept["record"] for _, kept in runs])
    rows, found_figures = Runs(), dict[str, None]()
    for (folder, kept), own in zip(runs, settings, strict=True):
        figures = {key: value for key, value in _flat(kept["summary"]).items() if key not in _OF_SUMMARY}
        more = {f"{EVALUATION}.{key}": value for key, value in _flat(kept[EVALUATION]).items()}
        rows.append({"run": str(folder), **_facts(kept), **own, **figures, **more})
        found_figures |= dict.fromkeys([*figures, *more])
    rows.settings = ["steps", *dict.fromkeys(key for own in settings for key in own)]
    rows.figures = list(found_figures)
    return rows


def _read(folder: Path) -> dict[str, Any] | None:
    """Return the record and summaries in the folder of a run or of an evaluation alone; None: it is neither."""
    inner = folder / EVALUATION
    kept = {"record": record.read(folder) or record.read(inner) or {}, "summary": _json(folder / SUMMARY)}
    kept[EVALUATION] = _json(inner / SUMMARY)
    return kept if any(kept.values()) else None


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    found = None
    with contextlib.suppress(ValueError):
        found = json.loads(file.read_bytes())
    if not isinstance(found, dict):
        raise ValueError(f"{str(file)!r} is no JSON object: restore it, or run the evaluation again.")
    return found


def _facts(kept: Mapping[str, Any]) -> Row:
    """Return the columns that every run has."""
    found, summary = kept["record"], kept["summary"]
    config = found.get("config", {})
    row = {name: config.get(name, summary.get(name)) for name in _OF_SUMMARY}
    starts = found.get("starts", [])
    accepted = [start for start in starts if start.get("outcome") != "refused"]
    if accepted:
        last = accepted[-1]
        row |= {name: last.get(name) for name in ("commit", "dirty")} | {"host": last.get("machine", {}).get("host")}
        row |= {"started": accepted[0].get("date"), "ended": last.get("ended"), "outcome": last.get("outcome")}
    return row | {"starts": len(starts)}


def _settings(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return for each run the settings that were given to any of them, or in which they differ."""
    configs = [dict(flat(found.get("config", {}))) for found in records]
    given, groups = dict[str, None](), [dict[str, Any]() for _ in records]
    for found, own in zip(records, groups, strict=True):
        for override in (found.get("starts") or [{}])[0].get("overrides", []):
            key, _, value = override.lstrip("+~").partition("=")
            if any(key in config for config in configs):
                given[key] = None
            elif not any(f"{name}.".startswith(f"{key}.") for config in configs for name in config):
                own[key] = value  # the choice of a group that is no setting itself, such as an experiment
            else:
                own[f"{key}="] = value  # the choice of a group of settings: its name ends like the override
    known = [config for config in configs if config]
    differ = [
        key
        for key in dict.fromkeys(key for config in known for key in config)
        if any(config.get(key) != known[0].get(key) for config in known)
    ]
    shown = [key for key in dict.fromkeys([*given, *differ]) if key not in (*_OF_SUMMARY, "output_dir")]
    return [
        own | ({key: config.get(key) for key in shown} if config else {})
        for own, config in zip(groups, configs, strict=True)
    ]


def _flat(node: Mapping[str, Any]) -> Row:
    """Return figures by their path; one that is not finite is null, as in strict JSON."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in flat(node)
        if value != {}
    }


def student(values: Values) -> Interval | None:
    """Return Student's interval of a mean over seeds, or None if there are fewer than two values."""
    found = np.asarray(values, np.float64)
    if len(found) < 2:
        return None
    half = special.stdtrit(len(found) - 1, (1 + CONFIDENCE) / 2) * found.std(ddof=1) / math.sqrt(len(found))
    return float(found.mean() - half), float(found.mean() + half)


def over_seeds(runs: Runs) -> Iterator[tuple[str, dict[str, tuple[float, float, float]]]]:
    """Yield what the seeds of one setting say together: a title, and by figure its mean and the ends of its interval.

    Runs with the same settings and different seeds belong together; of one seed the first counts. A figure needs a
    number of at least two seeds. Runs without any figure are left out.
    """
    groups: dict[str, dict[int, Row]] = {}
    for row in runs:
        if any(name in row for name in runs.figures):
            own = json.dumps([row.get(name) for name in runs.settings], default=str)
            groups.setdefault(own, {}).setdefault(row["seed"], row)
    several = [group for group in groups.values() if len(group) > 1]
    firsts = [next(iter(group.values())) for group in several]
    differ = [name for name in runs.settings if any(row.get(name) != firsts[0].get(name) for row in firsts)]
    for group, first in zip(several, firsts, strict=True):
        found = {}
        for name in runs.figures:
            values = [row.get(name) for row in group.values()]
            numbers = [float(each) for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
            if (interval := student(numbers)) is not None:
                found[name] = (float(np.mean(numbers)), *interval)
        told = "".join(f", {name}={first.get(name)}" for name in differ)
        yield f"Seeds {', '.join(map(str, sorted(group)))}{told}: mean, and Student's 95 % interval", found
