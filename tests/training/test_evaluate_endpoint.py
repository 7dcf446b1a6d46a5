"""A model behind an endpoint, evaluated over HTTP: killed three times, it loses, doubles and pays twice for nothing.

One process imports everything once and forks an evaluation for every command that it gets.
"""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.money.bill import bill

ROOT = Path(__file__).resolve().parents[2]
DRIVER = """
import json, os, sys
import openai, openai.resources.chat  # here, not once in every child
from hydra import compose, initialize_config_dir
from orchestra_jax.config import cli
from orchestra_jax.config.checks import load
from orchestra_jax.training.evaluate import evaluate
from orchestra_jax.training.forecast import dry_run_evaluation
from tests.training.filling_disk import fill

cli.register()
for line in sys.stdin:
    folder, room, *overrides = json.loads(line)
    child = os.fork()
    if not child:
        if room is not None:
            fill(room)
        log = os.open(folder + ".log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1), os.dup2(log, 2)
        try:
            with initialize_config_dir(os.path.abspath("conf"), version_base="1.3"):
                cfg = load(compose("evaluate", overrides), folder)
            (dry_run_evaluation if cfg.evaluation.dry_run else evaluate)(cfg)
            code = 0
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
        os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
QUESTIONS, BROKEN, REFUSED = 8, 3, 5  # how many, the one whose call is no JSON, and the one that is always refused
WAIT_S = 120.0


class Provider(ThreadingHTTPServer):
    """Answers chat completions of a policy that asks an expert and then answers, and of the expert.

    Attributes:
        answered: how often each request was answered, and so billed.
        allowed: answers until all further requests wait, for ever or until `drop`.
    """

    daemon_threads = True
    request_queue_size = 128  # the default of 5 resets connections, which a client may not take for unbilled

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answered: Counter[str] = Counter()
        self.allowed, self.dropped, self.change = float("inf"), 0, threading.Condition()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"

    def admit(self, key: str) -> bool:
        """Whether the request is answered; waits while no more answers are allowed."""
        with self.change:
            dropped = self.dropped
            self.change.wait_for(lambda: self.answered.total() < self.allowed or self.dropped > dropped, WAIT_S)
            if self.dropped > dropped:
                return False
            self.answered[key] += 1
            return True

    def drop(self, allowed: float) -> None:
        with self.change:
            self.dropped += 1
            self.allowed = allowed
            self.change.notify_all()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Provider

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = re.search(r"What is (\d+)", json.dumps(body["messages"]))
        number = int(asked[1])
        if number == REFUSED or body["model"] == "none":
            return self.send(403, {"error": {"message": "not you"}})
        if self.server.admit(json.dumps(body, sort_keys=True)):
            usage = {"prompt_tokens": 1000, "completion_tokens": 100}
            message = self.message(body, number)
            choice = {"message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
            self.send(200, {"choices": [choice], "usage": usage})
        return None

    @staticmethod
    def message(body: dict[str, Any], number: int) -> dict[str, Any]:
        if body["model"] == "gpt-5-mini":
            return {"content": f"It is {2 * number}."}
        if body["model"] == "qwen3-32b":
            return {
                "content": json.dumps({"reason": "So it is.", "verdict": "correct" if number == 2 else "incorrect"})
            }
        if "tools" not in body:
            return {"content": f"\\boxed{{{2 * number}}}"}
        if body["messages"][-1]["role"] == "tool":
            return {"content": f"\\boxed{{{2 * number if number % 2 else 'nothing'}}}"}
        tool = body["tools"][0]["function"]
        asked = dict.fromkeys(tool["parameters"]["required"], f"What is {number} + {number}?")
        text = json.dumps(asked) if number != BROKEN else "{"
        return {"tool_calls": [{"id": f"q{number}", "function": {"name": tool["name"], "arguments": text}}]}

    def send(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.drop(0)
        server.shutdown()


class Evaluations:
    """Evaluations of the provider's model, each in a process of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        lines = [json.dumps({"question": f"What is {n} + {n}?", "answer": str(2 * n)}) for n in range(QUESTIONS)]
        (folder / "questions.jsonl").write_text("\n".join(lines) + "\n")
        self.overrides = (
            "+benchmark=jsonl", f"data.path={folder}/questions.jsonl", f"policy={url}", "pricing.name=paper",
            "evaluation.endpoint.model=gpt-5", "evaluation.endpoint.retries=0", "rollout.limits.retries=0",
            "tools.names=[]", "+tools.experts.generalist=[gpt-5-mini]", f"tools.server.url={url}",
            "tools.judge=qwen3-32b", "tools.search.corpus=null", "evaluation.endpoint.concurrency=2",
            "compilation_cache=null",
        )  # fmt: skip
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        env = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary)}
        self.driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER], cwd=ROOT, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def start(self, folder: Path, *overrides: str, room: int | None = None) -> int:
        """Start an evaluation, on a disk that has room for so many answers."""
        self.driver.stdin.write(json.dumps([str(folder), room, *self.overrides, *overrides]) + "\n")
        self.driver.stdin.flush()
        return int(self.said())

    def said(self) -> str:
        return self.driver.stdout.readline()

    def whole(self, folder: Path, *overrides: str) -> str:
        """What an evaluation that ends well prints."""
        self.start(folder, *overrides)
        code, text = int(self.said()), Path(f"{folder}.log").read_text()
        assert code == 0, text
        return text

    def killed(self, folder: Path, provider: Provider, allowed: int) -> None:
        """An evaluation that is killed once so many answers were given in all and every one of them is on the disk."""
        provider.allowed = allowed
        process = self.start(folder)
        wait(lambda: provider.answered.total() == allowed == recorded(folder))
        os.kill(process, signal.SIGKILL)
        assert int(self.said()) == -signal.SIGKILL
        provider.drop(allowed)


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[Evaluations]:
    found = Evaluations(tmp_path_factory.mktemp("questions"), provider.url)
    yield found
    found.driver.communicate(timeout=WAIT_S)


def wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def recorded(folder: Path) -> int:
    try:
        with sqlite3.connect(f"file:{folder}/evaluation/calls.db?mode=ro", uri=True) as database:
            return database.execute("SELECT count(*) FROM calls").fetchone()[0]
    except sqlite3.OperationalError:  # not there yet
        return 0


def timeless(node: Any) -> Any:
    """Figures and trajectories without what a clock measured."""
    if isinstance(node, dict):
        return {key: timeless(value) for key, value in node.items() if key not in ("latency", "latency_s", "seconds")}
    return [timeless(item) for item in node] if isinstance(node, list) else node


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "evaluation" / "summary.json").read_text())


def items(folder: Path) -> list[Any]:
    lines = (folder / "evaluation" / "trajectories" / "policy" / "held_out.t0.jsonl").read_text().splitlines()
    return sorted((timeless(json.loads(line)) for line in lines), key=lambda item: item["id"])


def test_killed_three_times_it_ends_like_the_one_that_was_not(tmp_path: Path, provider: Provider, evaluations):
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    provider.answered, provider.allowed = Counter(), float("inf")
    assert "$" in evaluations.whole(whole).splitlines()[0]  # what it will cost is said first
    once, provider.answered = provider.answered, Counter()
    assert once.total() == 3 * (QUESTIONS - 2) + 1 + 4  # the judge is asked about four
    assert set(once.values()) == {1}

    for answers in (2, 9, 14):
        evaluations.killed(torn, provider, answers)
    provider.allowed = float("inf")
    evaluations.whole(torn)
    assert provider.answered == once  # every request was answered, and billed, once in all
    spent = bill(torn / "evaluation")
    evaluations.whole(torn)
    assert provider.answered == once
    assert bill(torn / "evaluation") == spent
    assert items(torn) == items(whole)
    assert len(items(torn)) == QUESTIONS
    ours, theirs = summary(torn), summary(whole)
    assert timeless(ours["benchmarks"]) == timeless(theirs["benchmarks"])
    # What was in flight at a kill counts at its worst in the budget: nobody knows whether it was billed.
    for name, one in theirs["spent"]["by_name"].items():
        assert all(ours["spent"]["by_name"][name][unit] >= one[unit] for unit in ("usd", "tokens", "calls"))
    extra = ours["spent"]["by_name"]["orchestrator"]["calls"] - theirs["spent"]["by_name"]["orchestrator"]["calls"]
    assert extra <= 3 * 2  # three kills, two requests at once: those that waited for a place never left
    starts = json.loads((torn / "evaluation" / "run.json").read_text())["starts"]
    assert [start["outcome"] for start in starts] == [None, None, None, "done", "done"]

    figures = theirs["benchmarks"]["held_out"]
    assert (figures["failed"], figures["counted"]) == (1, QUESTIONS - 1)
    # 1 and 7, and 2 as the judge says: 3 is malformed, 5 refused, the other even numbers are wrong.
    assert (figures["accuracy"], figures["exact_match"]) == (3 / 7, 2 / 7)
    (other,) = map(json.loads, (torn / "evaluation" / "disagreements.jsonl").read_text().splitlines())
    assert (other["benchmark"], other["question"], other["judge"]) == ("held_out", "What is 2 + 2?", True)
    assert theirs["judge"]["model"] == "qwen3-32b"
    assert figures["judge_cost"] * 7 == pytest.approx(4 * 1100 * 0.8 / 1e6)
    assert figures["valid_rate"] == 6 / 7
    own, expert = (1000 * 1.25 + 100 * 10) / 1e6, (1000 * 0.25 + 100 * 2) / 1e6
    assert figures["cost"] * (QUESTIONS - 1) == pytest.approx(13 * own + 6 * expert)
    assert theirs["spent"]["by_name"]["orchestrator"]["usd"] == pytest.approx(13 * own)
    low, high = figures["intervals"]["accuracy"]["wilson"]
    assert low < figures["accuracy"] < high
    log = Path(f"{whole}.log").read_text()
    assert f"held_out: accuracy 42.9 %, 95 % interval {100 * low:.1f} to {100 * high:.1f} %." in log
    assert f"held_out: 1 of {QUESTIONS} failed for infrastructure reasons and are in no figure. Most often: " in log
    assert figures["failure"].endswith("(1 of 1).")
    assert figures["failure"] in log.replace("\n", " ")


def test_a_used_up_budget_is_one_sentence_and_the_rest_is_asked_later(tmp_path: Path, provider, evaluations):
    provider.answered, provider.allowed, folder = Counter(), float("inf"), tmp_path / "poor"
    evaluations.start(folder, "budget.run_usd=0.035")
    assert evaluations.said() == "3\n"
    assert "raise it to go on" in Path(f"{folder}.log").read_text().splitlines()[-1]
    asked = provider.answered.total()
    evaluations.whole(folder)
    assert 0 < asked < provider.answered.total() == 3 * (QUESTIONS - 2) + 1 + 4
    assert set(provider.answered.values()) == {1}


def test_a_disk_that_is_full_meanwhile_makes_no_question_paid_twice(tmp_path: Path, provider, evaluations):
    """Forty questions are forty requests, over the stop and what comes after it."""
    lines = [json.dumps({"question": f"What is {n} + {n}?", "answer": str(2 * n)}) for n in range(100, 140)]
    (tmp_path / "forty.jsonl").write_text("\n".join(lines) + "\n")
    simple = (
        f"data.path={tmp_path}/forty.jsonl", "tools.menu.form=none", "tools.experts={}", "tools.judge=match",
        "evaluation.endpoint.concurrency=8",
    )  # fmt: skip
    provider.answered, provider.allowed, folder = Counter(), float("inf"), tmp_path / "full"
    evaluations.start(folder, *simple, room=12)
    assert evaluations.said() in ("3\n", "5\n")  # the record of calls or the trajectories meet the full disk first
    (kept,) = evaluations.temporary.glob("calls.db.unsaved.*.jsonl")
    told = f"Answers that were paid for are kept in {str(kept)!r}: the same command takes them up."
    assert told in Path(f"{folder}.log").read_text()
    assert 12 < provider.answered.total() < 40
    evaluations.whole(folder, *simple)
    assert not kept.exists()
    assert sorted(provider.answered.values()) == [1] * 40
    spent = json.loads((folder / "evaluation" / "summary.json").read_text())["spent"]
    assert spent["calls"] == 40
    assert spent["usd"] == pytest.approx(40 * (1000 * 1.25 + 100 * 10) / 1e6)


@pytest.mark.slow
def test_a_model_that_never_answers_has_no_accuracy_and_a_forecast_asks_nobody(tmp_path: Path, provider, evaluations):
    answered = provider.answered.copy()
    text = evaluations.whole(tmp_path / "none", "evaluation.endpoint.model=none", "evaluation.endpoint.price=gpt-5")
    figures = summary(tmp_path / "none")["benchmarks"]["held_out"]
    assert (figures["failed"], figures["counted"]) == (QUESTIONS, 0)
    assert figures["accuracy"] is figures["valid_rate"] is figures["cost"] is figures["cost_per_correct"] is None
    assert figures["intervals"]["accuracy"] == {"wilson": None, "bootstrap": None}
    assert "Nothing is known of it." in text
    dry = evaluations.whole(
        tmp_path / "dry", "evaluation.dry_run=true", "evaluation.limit=2", "plan.calls=1", "plan.tokens=1000",
        "policy=http://127.0.0.1:9/v1",
    )  # fmt: skip
    assert not (tmp_path / "dry" / "evaluation").exists()
    # 2 turns read 500 + 1000 - 250 tokens and write 250; the expert reads 2000 and writes 1000.
    own, expert, judge = (1250 * 1.25 + 250 * 10) / 1e6, (2000 * 0.25 + 1000 * 2) / 1e6, 3000 * 0.8 / 1e6
    assert f"2 trajectories of held_out (2) cost about ${2 * (own + expert + judge):.2f}:" in dry
    assert provider.answered == answered
