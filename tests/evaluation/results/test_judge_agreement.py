"""A judge behind a real server on a labelled sample: figures counted by hand, nothing paid twice, bad rows named."""

import gzip
import json
import runpy
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.config.schema import (
    BudgetConfig,
    ConfigError,
    EvaluationConfig,
    PricingConfig,
    ReplayConfig,
    RunConfig,
)
from orchestra_jax.config.tools import ExpertServer, ToolsConfig
from orchestra_jax.evaluation.intervals import wilson
from orchestra_jax.evaluation.results.judge_agreement import measure, read_sample
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.io.shipped import CONF
from orchestra_jax.money import price_files
from orchestra_jax.money.bill import bill
from orchestra_jax.money.run_budget import Halted
from tests.tools.openai_stub import StubOpenAI, slow

JUDGE = "qwen3-32b"
# (answer, what is known, what the judge says); the last one makes it talk nonsense.
ROWS = [
    ("384400 km", True, "correct"), ("about so far", True, "correct"), ("the usual", True, "incorrect"),
    ("7 km", False, "incorrect"), ("9 km", False, "correct"), ("no idea", False, "incorrect"), ("", False, "incorrect"),
    ("far away", True, "who knows"),
]  # fmt: skip


def said(body: dict[str, Any]) -> str:
    """The verdict on the candidate, which is quoted last."""
    asked = body["messages"][-1]["content"]
    quoted = asked.partition("] candidate answer")[2]
    known = {answer: verdict for answer, _, verdict in ROWS}
    found = next((line[2:].strip() for line in quoted.splitlines() if line.startswith("| ")), "")
    return json.dumps({"reason": "so it is", "verdict": known[found]})


@pytest.fixture(scope="module")
def stub() -> Iterator[StubOpenAI]:
    server = StubOpenAI()
    server.reply = said
    with LoopThread() as loop:
        loop.run(server.__aenter__())
        yield server
        loop.run(server.__aexit__(None, None, None))


@pytest.fixture
def cfg(stub: StubOpenAI, tmp_path: Path) -> RunConfig:
    stub.bills.clear()
    rows = [
        {"question": f"How far is the moon, {n}?", "reference": ["384400 km", "1.3 light seconds"], "answer": answer}
        | {"correct": known}
        for n, (answer, known, _) in enumerate(ROWS)
    ]
    (tmp_path / "sample.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return replace(
        RunConfig(),
        tools=ToolsConfig(judge=JUDGE, server=ExpertServer(url=stub.url)),
        pricing=PricingConfig(name="paper"),
        replay=ReplayConfig("replay_or_record", str(tmp_path / "calls.db")),
        evaluation=EvaluationConfig(judge_sample=str(tmp_path / "sample.jsonl")),
    )


def dollars(stub: StubOpenAI) -> float:
    prices = price_files.load(CONF / "pricing" / "paper.yaml")
    return sum(prices.cost(JUDGE, prompt_tokens=b.prompt, completion_tokens=b.completion) for b in stub.bills)


def test_figures_are_those_counted_by_hand(cfg: RunConfig, stub: StubOpenAI, tmp_path: Path, capsys) -> None:
    measure(cfg, tmp_path / "evaluation")
    found = json.loads((tmp_path / "evaluation" / "judge.json").read_text())
    assert (found["model"], found["counted"], found["failed"]) == (JUDGE, 7, 1)

    def share(count: int, of: int) -> dict[str, Any]:
        return {"count": count, "of": of, "share": count / of, "wilson": list(wilson(count, of))}

    assert found["agreement"] == share(5, 7)
    # 3 are right and 3 are called right: by chance (3 * 3 + 4 * 4) / 49 of 35 / 49.
    assert found["kappa"] == pytest.approx((35 - 25) / (49 - 25))
    assert (found["false_accepts"], found["false_rejects"]) == (share(1, 4), share(1, 3))
    assert found["exact_match"] == share(5, 7)
    wrong = [(row["answer"], row["correct"], row["judge"]) for row in found["wrong"]]
    assert wrong == [("the usual", True, False), ("9 km", False, True)]
    assert found["wrong"][1]["place"].endswith("sample.jsonl', line 5")
    assert len(stub.bills) == 9  # the nonsense was asked for twice
    assert found["spent"]["usd"] == pytest.approx(dollars(stub))
    assert 0 < found["cost"] < found["spent"]["usd"]
    told = capsys.readouterr().out
    assert "agreement      5 of 7 answers: 71.4 %, 95 % interval 35.9 to 91.8 %" in told
    assert "line 5: '9 km' is wrong, the judge says right." in told
    measure(cfg, tmp_path / "evaluation")  # of the recorded ones none is asked again, of the failed one nothing is kept
    assert json.loads((tmp_path / "evaluation" / "judge.json").read_text())["agreement"] == found["agreement"]


def test_a_budget_stops_it_and_a_higher_one_goes_on(cfg: RunConfig, stub: StubOpenAI, tmp_path: Path) -> None:
    sample = Path(str(cfg.evaluation.judge_sample))
    sample.write_text("".join(line + "\n" for line in sample.read_text().splitlines()[:7]))
    few = replace(cfg, budget=BudgetConfig(run_calls=3))
    with pytest.raises(
        Halted, match=r"its budget is 3; raise it to go on\. The same command goes on; no verdict is paid"
    ):
        measure(few, tmp_path / "evaluation")
    assert len(stub.bills) == 3
    assert not (tmp_path / "evaluation" / "judge.json").exists()
    measure(cfg, tmp_path / "evaluation")
    assert len(stub.bills) == 7
    found = json.loads((tmp_path / "evaluation" / "judge.json").read_text())
    assert found["spent"]["usd"] == pytest.approx(dollars(stub))
    replayed = replace(cfg, replay=ReplayConfig("replay", str(cfg.replay.path)))
    measure(replayed, tmp_path / "again")
    again = json.loads((tmp_path / "again" / "judge.json").read_text())
    assert {**again, "spent": None} == {**found, "spent": None}
    assert (len(stub.bills), again["spent"]["usd"]) == (7, 0)
    with pytest.raises(Halted, match=r"raise it to go on\.$"):  # nothing is recorded: it begins anew
        measure(replace(few, replay=ReplayConfig()), tmp_path / "off")


def test_an_answer_that_came_too_late_is_in_the_books(cfg: RunConfig, stub: StubOpenAI, tmp_path: Path) -> None:
    stub.faults.append(slow(1.0))
    server = replace(cfg.tools.server, timeout_s=0.3, retries=0)
    measure(replace(cfg, tools=replace(cfg.tools, server=server)), tmp_path / "evaluation")
    found = json.loads((tmp_path / "evaluation" / "judge.json").read_text())
    assert found["spent"]["usd"] == pytest.approx(dollars(stub))
    paid, in_flight = bill(tmp_path / "evaluation")
    assert float(Fraction(paid[JUDGE][0])) == pytest.approx(dollars(stub))
    assert in_flight == {}


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ('{"question": "q", "reference": "r", "answer": "a"}', "line 1: no 'correct'"),
        ('{"question": "q", "reference": "r", "answer": "a", "correct": "yes"}', "'correct' must be true or false"),
        ('{"question": "", "reference": "r", "answer": "a", "correct": 1}', "'question' is empty"),
        ('{"question": "q", "reference": [], "answer": "a", "correct": 1}', "'reference' must be a text or a number"),
        ('{"question": "q", "reference": "r", "answer": ["a"], "correct": 1', "not valid JSON"),
        ("", "has no row"),
    ],
)
def test_a_bad_row_is_one_sentence(row: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "sample.jsonl").write_text(row + "\n")
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_sample(tmp_path / "sample.jsonl")
    assert "\n" not in str(caught.value)


def test_who_cannot_be_asked_is_told(cfg: RunConfig, tmp_path: Path) -> None:
    for wrong, sentence in (
        (replace(cfg, tools=ToolsConfig()), "tools.judge=match asks nobody"),
        (replace(cfg, tools=ToolsConfig(judge=JUDGE)), "no server for 'qwen3-32b'"),
        (replace(cfg, tools=ToolsConfig(judge="nobody", server=cfg.tools.server)), "'nobody'"),
        (replace(cfg, tools=ToolsConfig(judge=JUDGE, server=ExpertServer(url="http://127.0.0.1:9/v1"))), "No server"),
        (replace(cfg, evaluation=EvaluationConfig()), "There is no sample: give --sample FILE"),
        (replace(cfg, evaluation=EvaluationConfig(judge_sample="/no.jsonl")), "There is no sample at '/no.jsonl'"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            measure(wrong, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_dry_run_asks_nobody(cfg: RunConfig, stub: StubOpenAI, tmp_path: Path, capsys) -> None:
    measure(replace(cfg, evaluation=replace(cfg.evaluation, dry_run=True)), tmp_path / "nothing")
    assert capsys.readouterr().out.startswith(f"8 verdicts of {JUDGE} cost about $0.02 ")
    assert (len(stub.bills), (tmp_path / "nothing").exists()) == (0, False)


def test_a_sample_is_drawn_from_recorded_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "recorded" / "zeroeval"
    (folder / "outputs").mkdir(parents=True)
    asked = [{"id": f"gsm/{n}", "set": "gsm", "question": f"How many, {n}?", "answer": str(n)} for n in range(8)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    outputs = ['{"answer": "0"}', "it is 1", '{"answer": 2}', '{"answer": "three"}', *['{"answer": "9"}'] * 4]
    with gzip.open(folder / "outputs" / "m.jsonl.gz", "wt") as stream:
        for n, output in enumerate(outputs):
            stream.write(json.dumps({"id": f"gsm/{n}", "output": output, "correct": n < 4}) + "\n")
    monkeypatch.setenv("ORCHESTRA_DATA", str(tmp_path))
    file = tmp_path / "labelled.jsonl"
    for words, count in ((["--rows", "6"], 6), (["--hard"], 2)):
        monkeypatch.setattr(sys, "argv", ["labelled_sample.py", str(file), "--models", "1", *words])
        runpy.run_module("benchmarks.labelled_sample", run_name="__main__")
        sample = read_sample(file)
        assert len(sample) == count
        assert sum(row.correct for row in sample) == (3 if count == 6 else 2)
    assert {row.answer for row in sample} == {"it is 1", "three"}
    assert capsys.readouterr().out.endswith(f"2 answers, 2 of them right, in {file}\n")
