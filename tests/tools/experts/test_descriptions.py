"""Descriptions: what is asked, what is written and kept, what it costs, and what may never be in one."""

import asyncio
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import describe_tools
from orchestra_jax.data.sources import Question
from orchestra_jax.money import records
from orchestra_jax.money.budgets import Budget, Limits
from orchestra_jax.money.paid import MissingKey
from orchestra_jax.tools.experts import describing, descriptions
from orchestra_jax.tools.experts.describing import TRIES, DescriptionJob
from orchestra_jax.tools.experts.descriptions import flaw, load, sample
from orchestra_jax.tools.experts.evidence import WRITER_SYSTEM
from orchestra_jax.tools.experts.expert import Expert, read_experts
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import ToolSpec
from tests.tools.openai_stub import PRICES, status

HANGS_S = 300  # what takes so long will not come; starting a process can take a minute on a busy machine
ROOT = Path(__file__).resolve().parents[3]
FINE = (
    "Strong in mental arithmetic and weak in geography, where it guesses instead of saying so. Its replies are brief."
)
EXAMPLES = [
    Question("sum", "What is six times seven, if you think about it for a while?", ("42", "forty-two"), "arithmetic"),
    Question("big", "What is a thousand plus one?", ("1,001",), "arithmetic"),
    Question("city", "What is the capital of Kenya?", ("Nairobi",), "geography"),
    Question("lake", "Which lake is the largest of Africa?", ("Lake Victoria",), "geography"),
]
ANSWERS = {"sum": "42", "big": "1001", "city": "Mombasa", "lake": "Victoria"}


def is_writer(body) -> bool:
    return body["messages"][0]["content"] == WRITER_SYSTEM


def asked(body) -> str:
    """The id of the example that an expert was asked."""
    return next(each.id for each in EXAMPLES if each.question in body["messages"][-1]["content"])


def replies(*written: str):
    """Experts answer as in ANSWERS; writers say these in turn, the last one for ever."""
    waiting = list(written)

    def reply(body) -> str:
        if not is_writer(body):
            return f"<think>Hm.</think> I am sure: \\boxed{{{ANSWERS[asked(body)]}}}"
        text = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        return f"Here it is: <description>{text}</description>"

    return reply


@pytest.fixture
def stub(stub):
    stub.reply = replies(FINE)
    return stub


@pytest.fixture
def job(stub, tmp_path) -> DescriptionJob:
    """`small` is to be described by `big`."""

    def expert(name: str) -> Expert:
        return Expert(name, name, stub.url, max_tokens=50, retries=0)

    experts = [expert("small"), expert("big")]
    return DescriptionJob(
        experts=experts, subjects=["small"], writers=["big"], examples=EXAMPLES, prices=PRICES,
        calls=tmp_path / "calls.db",
    )  # fmt: skip


async def test_a_description_and_its_evidence(stub, job, tmp_path):
    file, seen = tmp_path / "menu.json", []
    budget = Budget()
    outcome = await describing.describe(job, file, budget, lambda done, total: seen.append((done, total)))
    assert (outcome.descriptions, outcome.problems) == ({"small": FINE}, {})
    assert load(file) == {"small": FINE}
    assert seen == [(done, 5) for done in range(1, 6)]
    entry = json.loads(file.read_text())["experts"]["small"]
    assert (entry["model"], entry["writer"], entry["price_list"]) == ("small", "big", PRICES.id)
    assert (entry["accuracy"], entry["accuracy_by_family"]) == (0.5, {"arithmetic": 1.0, "geography": 0.0})
    assert [(row["task"], row["answer"], row["right"]) for row in entry["tasks"]] == [
        ("sum", "42", True), ("big", "1001", True), ("city", "Mombasa", False), ("lake", "Victoria", False)
    ]  # fmt: skip
    bills = [bill for bill in stub.bills if bill.model == "small"]
    assert entry["mean_cost_usd"] == pytest.approx(sum(bill.usd for bill in bills) / 4)
    assert entry["mean_completion_tokens"] == sum(bill.completion for bill in bills) / 4
    assert budget.spent.usd == pytest.approx(sum(bill.usd for bill in stub.bills))
    # Neither questions nor references, or a published file would spoil the tasks.
    assert not any(text in file.read_text() for each in EXAMPLES for text in (each.question, "Nairobi", "forty-two"))
    check_spec(ToolSpec("expert-1", load(file)["small"], {"type": "object"}))


async def test_the_writer_reads_the_grades_and_not_the_name(stub, job, tmp_path):
    await describing.describe(job, tmp_path / "menu.json", budget=Budget())
    request = next(body for body in stub.bodies if is_writer(body))["messages"][-1]["content"]
    for part in (
        "2 of 4 right in all",
        "'geography': 0 of 2",
        "Reference: Nairobi",
        "\\boxed{Mombasa}",
        "Grade: wrong",
    ):
        assert part in request
    assert "small" not in request
    assert "Hm." not in request


async def test_what_is_recorded_is_not_paid_for_again(stub, job, tmp_path):
    file = tmp_path / "menu.json"
    await describing.describe(job, file, budget=Budget())
    content = json.loads(file.read_text())
    content["experts"]["small"]["date"] = "2020-01-01"
    content["experts"]["other"] = {"description": "Of an earlier run."}
    file.write_text(json.dumps(content))
    count = len(stub.bodies)
    outcome = await describing.describe(job, file, budget=Budget())
    assert len(stub.bodies) == count
    assert outcome.descriptions == {"small": FINE}
    assert json.loads(file.read_text()) == content  # the date too


async def test_the_forecast(stub, job, tmp_path):
    """Every call at first; of a run that was cut short only what is missing; nothing at the end."""
    before = {line.name: line for line in await describing.forecast(job)}
    assert (before["small"].calls, before["big"].calls, before[describing.TOTAL].calls) == (4, 1, 5)
    assert stub.bodies == []
    stub.faults.extend([None, status(500)])
    budget = Budget()
    await describing.describe(replace(job, examples=EXAMPLES[:2]), tmp_path / "part.json", budget=budget)
    rest = {line.name: line for line in await describing.forecast(job)}
    assert (rest["small"].calls, rest["big"].calls) == (3, 1)
    spent = budget.spent.usd
    await describing.describe(job, tmp_path / "menu.json", budget=budget)
    took = budget.spent.usd - spent
    assert rest[describing.TOTAL].worst_usd >= took > 0
    assert rest[describing.TOTAL].usd == pytest.approx(sum(rest[name].usd for name in ("small", "big")))
    (total,) = await describing.forecast(job)
    assert (total.name, total.calls, total.usd, total.worst_usd) == (describing.TOTAL, 0, 0, 0)


@pytest.mark.parametrize("limit", [0.0, 0.0004, 0.002])
async def test_a_budget_stops_it_and_more_money_goes_on(stub, job, tmp_path, limit):
    file = tmp_path / "menu.json"
    budget = Budget(Limits(usd=limit))
    outcome = await describing.describe(job, file, budget=budget)
    assert budget.spent.usd <= limit
    assert list(outcome.problems) == ["small"]
    assert "raise it to go on" in outcome.problems["small"]
    assert not file.exists()
    paid = sum(bill.usd for bill in stub.bills)
    budget = Budget()
    await describing.describe(job, file, budget=budget)
    assert load(file) == {"small": FINE}
    assert len(stub.bills) == len({str(body["messages"]) for body in stub.bodies}) == 5  # none of them twice
    assert budget.spent.usd == pytest.approx(sum(bill.usd for bill in stub.bills) - paid)


async def test_a_dead_server_is_no_wrong_answer(stub, job, tmp_path):
    file = tmp_path / "menu.json"
    stub.faults.append(status(500))
    await describing.describe(job, file, budget=Budget())
    entry = json.loads(file.read_text())["experts"]["small"]
    failed = [row for row in entry["tasks"] if row["right"] is None]
    assert len(failed) == 1
    assert "500" in failed[0]["problem"]
    right = sum(row["right"] is True for row in entry["tasks"])
    assert entry["accuracy"] == pytest.approx(right / 3)
    await describing.describe(job, file, budget=Budget())  # asks it again
    assert all(row["right"] is not None for row in json.loads(file.read_text())["experts"]["small"]["tasks"])


async def test_one_expert_that_is_down_does_not_stop_the_others(stub, job, tmp_path):
    both = replace(job, subjects=["small", "big"], writers=["big", "small"])
    stub.chaos = lambda number: None if stub.bodies[number]["model"] == "small" or is_writer(stub.bodies[number]) else (
        status(503)
    )  # fmt: skip
    outcome = await describing.describe(both, tmp_path / "menu.json", budget=Budget())
    assert list(outcome.descriptions) == ["small"]
    assert "answered no task" in outcome.problems["big"]
    assert "503" in outcome.problems["big"]
    assert list(load(tmp_path / "menu.json")) == ["small"]


async def test_a_model_does_not_describe_itself(stub, job, tmp_path):
    with pytest.raises(ValueError, match="describe itself"):
        replace(job, subjects=["small", "big"])
    both = replace(job, subjects=["small", "big"], writers=["big", "small"])
    await describing.describe(both, tmp_path / "menu.json", budget=Budget())
    entries = json.loads((tmp_path / "menu.json").read_text())["experts"]
    assert {name: entry["writer"] for name, entry in entries.items()} == {"small": "big", "big": "small"}


LEAKS = [
    ("It knows that 42 is the answer.", "the answer to a task"),
    ("It says Forty-Two at once.", "the answer to a task"),
    ("It gets 1001 right, and much else.", "the answer to a task"),
    ("It does not know that NAIROBI is a capital.", "the answer to a task"),
    ("Asked what is six times seven if you think, it is right.", "repeats a question"),
    ("The Small model is good at sums.", "names the model"),
    ("Good at sums for $1 each.", "a price"),
    ("", "no text"),
]


@pytest.mark.parametrize(("text", "reason"), LEAKS)
async def test_a_flawed_description_is_written_again(stub, job, tmp_path, text, reason):
    stub.reply = replies(text, FINE)
    outcome = await describing.describe(job, tmp_path / "menu.json", budget=Budget())
    assert outcome.descriptions == {"small": FINE}
    second = [body for body in stub.bodies if is_writer(body)][1]["messages"][-1]["content"]
    assert reason in second


async def test_a_writer_that_will_not_learn(stub, job, tmp_path):
    stub.reply = replies("Good at sums such as 42.")
    outcome = await describing.describe(job, tmp_path / "menu.json", budget=Budget())
    assert outcome.descriptions == {}
    assert "'42'" in outcome.problems["small"]
    assert not (tmp_path / "menu.json").exists()
    assert sum(map(is_writer, stub.bodies)) == TRIES
    assert (await describing.forecast(job))[-1].calls == 0  # that is known now, and costs nothing


def test_words_that_tell_nothing_are_no_leak(job):
    examples = [Question("a", "Which?", ("A",)), Question("b", "Is it?", ("no",)), Question("c", "In Morse?", ("-.-",))]
    assert flaw("A model with no weakness.", job.experts[0], examples) is None
    assert flaw("It says -.- at times.", job.experts[0], examples) is not None
    assert "151 words" in str(flaw("good " * 151, job.experts[0], EXAMPLES))
    assert flaw("At 142 or 4.2 it stops.", job.experts[0], EXAMPLES) is None  # parts of words are no answers


def test_sampling_takes_families_in_turns_whatever_the_order():
    rows = [
        Question(f"{family}{n}", "?", ("!",), family) for family, count in (("a", 50), ("b", 2)) for n in range(count)
    ]
    chosen = sample(rows, 6, seed=1)
    assert [each.family for each in chosen].count("b") == 2
    assert sample(rows[::-1], 6, seed=1) == chosen
    assert sample(rows, 6, seed=2) != chosen
    assert len(sample(rows, 1000)) == len(rows)


async def test_a_missing_key_is_told_before_anything_is_sent(stub, job, tmp_path, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    keyed = replace(job, experts=[job.experts[0], replace(job.experts[1], api_key_env="NO_SUCH_KEY")])
    with pytest.raises(MissingKey, match="NO_SUCH_KEY"):
        await describing.describe(keyed, tmp_path / "menu.json", budget=Budget())
    assert stub.bodies == []
    await describing.describe(job, tmp_path / "menu.json", budget=Budget())
    await describing.describe(keyed, tmp_path / "menu.json", budget=Budget())  # all is recorded: no key is needed


def test_files_that_are_none_of_ours(tmp_path):
    file = tmp_path / "menu.json"
    with pytest.raises(FileNotFoundError, match="experiments"):
        load(file)
    for content in ("", "[]", "{", '{"version": 2, "experts": {}}', '{"version": 1, "experts": {"a": {}}}'):
        file.write_text(content)
        with pytest.raises(ValueError, match="no file of descriptions"):
            load(file)
    descriptions.save(file, {"a": {"description": "Göd \ud800"}})  # half a surrogate pair is no UTF-8
    assert load(file) == {"a": "Göd \ud800"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "experts: {a: {base_url: http://h/v1, colour: red}}",
            r"^experts.yaml: experts.a has the unknown field colour: "
            r"an expert has name, model, base_url, api_key_env, .*, extra\.$",
        ),
        (
            "experts: {a: {base_url: http://h/v1, temprature: 1}}",
            r"^experts.yaml: experts.a has the unknown field temprature: did you mean temperature\?$",
        ),
        (
            "defaults: {url: http://h/v1}\nexperts: {a: {}}",
            r"^experts.yaml: defaults has the unknown field url: .*base_url",
        ),
        ("experts: {a: {}}", r"^experts.yaml: experts.a has no base_url, the address of its server: add it\.$"),
        ("experts: {a: {base_url: h}}", "must be a URL"),
        ("experts:\n  a: {}\n  a: {}", r"^experts.yaml: line 3 is no YAML: the key a is there for the second time\.$"),
        ("experts:\n  a: {base_url: h", r"^experts.yaml: line 3 is no YAML: did not find expected ',' or '}'\.$"),
        ("models: {}", "has the key experts"),
    ],
)
def test_files_of_experts_that_are_wrong(tmp_path, content, message):
    (tmp_path / "experts.yaml").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_experts(tmp_path / "experts.yaml")


# --- the command ---


@pytest.fixture
def command(stub, tmp_path):
    """Its arguments: a file of tasks and one of experts at the stub."""
    rows = [{"id": e.id, "question": e.question, "answer": list(e.answer), "family": e.family} for e in EXAMPLES]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "experts.yaml").write_text(
        f"defaults: {{base_url: {stub.url}, max_tokens: 50, retries: 0}}\n"
        "experts: {qwen3-32b: {model: small}, gpt-5: {model: big, temperature: null}}\n"
    )
    return [
        str(tmp_path / "tasks.jsonl"), str(tmp_path / "menu.json"), "--experts", str(tmp_path / "experts.yaml"),
        "--prices", str(ROOT / "conf" / "pricing" / "paper_train.yaml"), "--writer", "gpt-5", "--only", "qwen3-32b",
    ]  # fmt: skip


def ends(arguments: list[str]) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        describe_tools.main(arguments)
    return end.value.code


async def test_the_command(stub, command, tmp_path, capsys):
    async def call(*more: str) -> tuple[int | str | None, str]:
        code = await asyncio.to_thread(ends, [*command, *more])  # it has an event loop of its own
        shown = capsys.readouterr()
        return code, shown.err or shown.out

    command[1] = str(tmp_path / "new" / "menu.json")
    code, output = await call("--dry-run")
    assert (code, stub.bodies) == (0, []), output
    assert "4 calls" in output
    assert not (tmp_path / "new").exists()
    command[1] = str(tmp_path / "menu.json")
    code, output = await call("--max-usd", "0.000001")
    assert code == 1
    assert "No description of qwen3-32b: With the next call" in output
    code, output = await call()
    assert code == 0, output
    assert "1 descriptions in" in output
    assert load(tmp_path / "menu.json") == {"qwen3-32b": FINE}
    assert await call("--only", "gpt-6") == (2, "There is no expert 'gpt-6'; known are gpt-5, qwen3-32b.\n")


async def test_a_killed_run_goes_on(stub, command, tmp_path):
    """Killed while a request hangs: what was answered before is not asked again."""
    answered = asyncio.Event()

    def bill(_) -> None:
        if len(stub.bills) == 3:
            stub.gate.clear()  # the third waits
            answered.set()

    stub.on_bill = bill
    text = (tmp_path / "experts.yaml").read_text().replace("retries: 0", "retries: 0, concurrency: 1")
    (tmp_path / "experts.yaml").write_text(text)
    script = str(ROOT / "experiments" / "describe_tools.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, script, *command, stdout=subprocess.DEVNULL, cwd=ROOT
    )
    async with asyncio.timeout(HANGS_S):
        await answered.wait()
        # The third request may be on its way before the second answer is recorded.
        while sum(calls for calls, _ in records.stats(tmp_path / "menu.calls.db").values()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    stub.on_bill = lambda bill: None
    stub.gate.set()
    before = [asked(body) for body in stub.bodies]
    assert len(before) == 3
    assert await asyncio.to_thread(ends, command) == 0
    after = [asked(body) for body in stub.bodies[3:] if not is_writer(body)]
    assert len(after) == 2
    assert set(before[:2]).isdisjoint(after)
