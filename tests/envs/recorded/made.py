"""A made table of recorded answers: two kinds of questions, three models of the price list and one of a user's own."""

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import (
    DataConfig,
    EnvConfig,
    EvaluationConfig,
    PricingConfig,
    RunConfig,
    WarmStartConfig,
)
from orchestra_jax.config.tools import EvaluationOffer, MenuRule, SandboxConfig, ToolsConfig

STRONG, CHEAP, UNSEEN, HOUSE = "claude-3-5-sonnet-20241022", "gpt-4o-mini-2024-07-18", "gemma-2-2b-it", "house/model 1"
MODELS = (STRONG, CHEAP, UNSEEN, HOUSE)
QUESTIONS = 40
CODE = "What is shown?\n\n[PYTHON]\ndef f(x):\n    return [x, 'a']\nassert f({}) == ??\n[/PYTHON]"


def is_right(model: str, number: int) -> bool:
    """The strong one misses every tenth, the cheap one every question about code and every seventh, ..."""
    missed = {STRONG: 10, CHEAP: 7, UNSEEN: 2, HOUSE: 3}[model]
    return number % missed != 1 and not (model == CHEAP and number % 4 == 0)


def made_rows() -> list[dict[str, Any]]:
    """Question `number` is about code where it is divisible by 4, and a sum elsewhere."""
    rows = []
    for number in range(QUESTIONS):
        code = number % 4 == 0
        answer = f"[{number}, 'a']" if code else str(number + 2)
        asked = CODE.format(number) if code else f"How much is {number} + 2?"
        for model in MODELS:
            said = answer if is_right(model, number) else f"{number} or so"
            rows.append(
                {
                    "id": f"q{number}", "family": "code" if code else "sum", "question": asked, "answer": answer,
                    "model": model, "output": f'{{"reasoning": "so", "answer": "{said}"}}',
                    "correct": is_right(model, number), "tokens": 10 + number, "prompt_tokens": 50,
                    **({"cost": 0.002, "latency": 3.0} if model == HOUSE else {}),
                }
            )  # fmt: skip
    return rows


def config(path: str, **options: Any) -> RunConfig:
    """A run on the table at `path`; the prices are of conf/pricing."""
    given: Mapping[str, Any] = {"path": path, "unseen": [UNSEEN], "unseen_prices": "recorded_swapped", **options}
    menu = MenuRule(aliases=True)
    return RunConfig(
        env=EnvConfig(name="recorded", options=dict(given)),
        data=DataConfig(preferences=True),
        pricing=replace(PricingConfig(), name="recorded"),
        tools=ToolsConfig(
            names=[],
            judge="match",
            menu=replace(menu, subset=True, fewest=2, most=3),
            evaluation=EvaluationOffer(own=True, menu=menu),
            sandbox=SandboxConfig(workers=1),
        ),
        evaluation=EvaluationConfig(preferences=False),
        warm_start=WarmStartConfig(demonstrations=4),
    )


def write(file: Path, rows: Iterable[Mapping[str, object]], header: list[str] | None = None) -> Path:
    """Write rows as the suffix says; `header` are other names for the columns of a file with separators."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    if file.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist([{name: row.get(name) for name in names} for row in rows]), file)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows))
    else:
        with file.open("w", newline="") as out:
            table = csv.writer(out, delimiter="\t" if file.suffix == ".tsv" else ",")
            table.writerow(header or names)
            table.writerows([row.get(name) for name in names] for row in rows)
    return file
