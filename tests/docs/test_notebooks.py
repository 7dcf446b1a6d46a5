"""The notebooks as they are committed: run, small, of no machine, and their kept results of at least three seeds."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
RESULTS = sorted((ROOT / "notebooks" / "results").glob("*.csv"))
MOST_BYTES = 200_000


def problems(cells: list[dict[str, Any]]) -> list[str]:
    """What a reader would stumble over."""
    outputs = [output for cell in cells for output in cell["outputs"]]
    found = [f"cell {cell['id']} was not run" for cell in cells if cell["execution_count"] is None]
    found += [f"an error: {output['ename']}" for output in outputs if output["output_type"] == "error"]
    found += [f"stderr: {output['text']}" for output in outputs if output.get("name") == "stderr"]
    texts = [json.dumps({**output, "data": {**output.get("data", {}), "image/png": ""}}) for output in outputs]
    return found + [f"a path: {path}" for text in texts for path in re.findall(r"/(?:tmp|home|work|root)/\S*", text)]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_as_it_ran(notebook: Path):
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert problems(cells) == []
    assert notebook.stat().st_size < MOST_BYTES
    assert f"notebooks/{notebook.name}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("results", RESULTS, ids=lambda path: path.stem)
def test_kept_results_are_of_three_seeds(results: Path):
    with results.open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["seed"] for row in rows} >= {"0", "1", "2"}
    assert all(value for row in rows for value in row.values())


def test_there_are_all_five_and_what_they_read():
    assert [notebook.name[:2] for notebook in NOTEBOOKS] == ["01", "02", "03", "04", "05"]
    named = "".join(notebook.read_text() for notebook in NOTEBOOKS)
    assert RESULTS
    assert all(f"results/{results.name}" in named for results in RESULTS)


def test_what_is_wrong_is_found():
    ran: dict[str, Any] = {"id": "a", "execution_count": 1, "outputs": []}
    assert problems([ran]) == []
    assert problems([{**ran, "execution_count": None}]) == ["cell a was not run"]
    text = {"output_type": "stream", "name": "stdout", "text": "saved in /tmp/x/y"}
    assert len(problems([{**ran, "outputs": [text]}])) == 1
    assert problems([{**ran, "outputs": [{"output_type": "error", "ename": "KeyError"}]}]) == ["an error: KeyError"]
