"""Descriptions and preferences in one command: within one budget over all starts, and taken by the run."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from orchestra_jax.config.experiment import unprepared
from orchestra_jax.data.preference_pairs import drawn_from
from orchestra_jax.io.shipped import CONF
from orchestra_jax.money import price_files
from orchestra_jax.preparation.written import DESCRIPTIONS, NAMES, PREFERENCES, Writing, write
from orchestra_jax.synthesis.wordings import TARGETS
from orchestra_jax.tools.experts.descriptions import load
from orchestra_jax.tools.experts.evidence import WRITER_SYSTEM
from tests.composed import composed
from tests.synthesis.server import serving
from tests.synthesis.test_preferences import proposal

ROOT = Path(__file__).resolve().parents[2]
FINE = "Strong in mental arithmetic and weak in geography, where it guesses. Its replies are brief."


def reply(body) -> str:
    """Answer as a scripted expert, writer of descriptions, or writer and reader of preferences."""
    if "response_format" in body:
        return proposal(body)
    if body["messages"][0]["content"] == WRITER_SYSTEM:
        return f"<description>{FINE}</description>"
    return "I am sure: \\boxed{1}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with prepared questions, whose name needs quotes in a setting."""
    tmp_path = tmp_path / "Zoë's data (1), a=b"
    rows = [{"question_id": n, "question": f"What is {n} less {n - 1}?", "reference_answer": "1"} for n in range(20)]
    (tmp_path / "general_thought").mkdir(parents=True)
    (tmp_path / "general_thought/questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def writing(folder: Path, url: str, max_usd: float = 5.0) -> Writing:
    common = {"base_url": url, "retries": 0, "max_tokens": 200, "context_tokens": 8000}
    own = {"gpt-5": {"model": "big", "api_key_env": None}, "qwen3-32b": {"model": "small"}}
    experts = {"defaults": common, "experts": own}
    (folder / "experts.yaml").write_text(json.dumps(experts))
    return Writing(folder / "experts.yaml", "qwen3-32b", "gpt-5", max_usd, requests=len(TARGETS), tasks=4)


def paid(stub) -> float:
    """Return the dollars for all answers of the server, at the prices in force."""
    prices, names = price_files.load(CONF / "pricing/paper_train.yaml"), {"big": "gpt-5", "small": "qwen3-32b"}
    return sum(
        prices.cost(
            names[bill.model],
            prompt_tokens=bill.prompt,
            cached_tokens=bill.cached,
            completion_tokens=bill.completion,
        )
        for bill in stub.bills
    )


def test_both_are_written_and_the_run_takes_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRA_DATA", str(folder))
    assert {sentence.split("--only ")[1].split(";")[0] for sentence in unprepared(composed("+experiment=hle"))} >= set(
        NAMES
    )
    said = list[str]()
    with serving(reply) as stub:
        job = writing(folder, stub.url)
        assert write(NAMES, folder, job, dry_run=True, say=said.append) == []
        assert stub.bodies == []
        assert said[0].startswith("Descriptions of 2 experts: 10 calls, about $")
        assert write(NAMES, folder, job, say=said.append) == []
        asked = len(stub.bodies)
        assert write(NAMES, folder, job, say=said.append) == []
        assert len(stub.bodies) == asked  # nothing is asked twice
    cfg = composed("+experiment=hle")
    assert load(cfg.tools.descriptions) == {"gpt-5": FINE, "qwen3-32b": FINE}
    assert cfg.data.preferences_file == str(folder / PREFERENCES / "preferences.jsonl")
    drawn_from(cfg.data.preferences_file)
    assert not [sentence for sentence in unprepared(cfg) if any(f"--only {name}" in sentence for name in NAMES)]


def test_one_budget_holds_for_both_and_for_all_starts(folder: Path) -> None:
    with serving(reply) as stub:
        assert write((DESCRIPTIONS,), folder, writing(folder, stub.url), say=lambda text: None) == []
        spent = paid(stub)
        most = spent + 0.02
        for _ in range(3):
            (problem,) = write(NAMES, folder, writing(folder, stub.url, most), say=lambda text: None)
            assert "budget" in problem
            assert paid(stub) <= most
        assert paid(stub) > spent
        assert write(NAMES, folder, writing(folder, stub.url), say=lambda text: None) == []
    assert (folder / PREFERENCES / "preferences.jsonl").is_file()


def test_the_command_asks_for_what_it_needs(folder: Path, monkeypatch, capsys) -> None:
    main = runpy.run_path(str(ROOT / "experiments/prepare.py"))["main"]

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["prepare.py", "paper", str(folder), *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), capsys.readouterr().err

    status, said = run("--only", "descriptions")
    assert status == 2
    assert "Preferences and descriptions are written by models: name them with --experts FILE" in said
    (folder / "general_thought/questions.jsonl").unlink()
    (folder / "general_thought").rmdir()
    job = writing(folder, "http://127.0.0.1:9/v1")
    status, said = run("--only", "descriptions", "--experts", str(job.experts), "--max-usd", "1")
    assert status == 1
    assert "Experts are tried on training questions" in said
