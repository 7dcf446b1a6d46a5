"""The evaluator, on the quickstart world with an engine that plays a script instead of a policy."""

import asyncio
import json
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestra_jax.config.choices import ToolFeature
from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.config.schema import ConfigError, EvaluationConfig, RewardConfig, RunConfig
from orchestra_jax.engines.base import Generation, SamplingParams
from orchestra_jax.envs.base import do_nothing
from orchestra_jax.envs.baselines import baseline
from orchestra_jax.envs.quickstart.demonstrations import BASELINES
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment, quickstart_chat
from orchestra_jax.envs.quickstart.world import QuickstartWorld
from orchestra_jax.evaluation.measures import preference_utility, summarize, tool_shares
from orchestra_jax.evaluation.runner import Evaluator
from orchestra_jax.evaluation.trajectory_files import TrajectoryFile
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import Price, PriceList
from orchestra_jax.processes import Processes
from orchestra_jax.processes.several import SeveralProcesses
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.rollout.speakers import turn_seed
from orchestra_jax.types import InfrastructureError, Status, Task

PRICES = PriceList("test", "2026-11-20", "test", {"orchestrator": Price()})
LIMITS = RolloutLimits(max_turns=4, max_calls=3, max_length=160, max_new_tokens=32)
REWARD = RewardConfig(tool_feature=ToolFeature.share)


class ParrotEngine:
    """Always says "Oslo"; notes the temperature and seed of every generation."""

    def __init__(self, chat: ChatFormat) -> None:
        self.token_ids = (*chat.encode("Oslo"), chat.stop_ids[0])
        self.asked: list[tuple[float, int | None]] = []

    async def generate(self, ids: Sequence[int], params: SamplingParams, *, session: object = None) -> Generation:
        self.asked.append((params.temperature, params.seed))
        return Generation(self.token_ids, (0.0,) * len(self.token_ids), "stop", 0)

    def open_session(self) -> int:
        return 0

    def close_session(self, session: object) -> None:
        pass


@pytest.fixture(scope="module")
def world() -> QuickstartWorld:
    return QuickstartWorld(0)


@pytest.fixture(scope="module")
def collector(world: QuickstartWorld) -> Iterator[Collector]:
    environment = Posed(RunConfig())
    yield Collector(
        environment, ChatFormat(quickstart_chat().tokenizer, compact_menu=True), LIMITS, PRICES, seconds_per_token=0.0
    )
    asyncio.run(environment.close())


@pytest.fixture
def parrot(collector: Collector) -> ParrotEngine:
    return ParrotEngine(collector.chat)


class Posed(QuickstartEnvironment):
    """The quickstart with all held-out tasks of its world, and pairs of preferences if `swap` is set."""

    swap = True

    def held_out(self, count: int) -> list[Task]:
        return [self.world.task("eval", index) for index in range(count)]

    def paired_preferences(self, count: int) -> dict[str, list[Task]]:
        kinds = ("accuracy", "local")
        posed = [self.world.swap_tasks(index, kinds) for index in range(3 if self.swap else 0)]
        return {kind: [tasks[k] for tasks in posed] for k, kind in enumerate(kinds)} if posed else {}


def make(collector: Collector, engine: Any, *rest: Any, count: int = 12, swap: bool = True, **settings) -> Evaluator:
    """`rest` are a directory and processes."""
    cfg = replace(RunConfig(), evaluation=EvaluationConfig(questions=count, **settings), reward=REWARD)
    collector.environment.swap = swap
    return Evaluator(cfg, collector, engine, Budget(), *rest)


def test_evaluate_measures_both_temperatures_and_the_swap(collector, parrot):
    evaluator = make(collector, parrot)
    results = asyncio.run(evaluator.evaluate())
    assert results.keys() == {"held_out", "preference_swap"}
    found = results["held_out"]
    temperatures = [temperature for temperature, _ in parrot.asked]
    assert temperatures == [1.0] * 12 + [0.0] * 12 + [1.0] * 6
    assert {"accuracy", "valid_rate", "cost", "latency", "calls", "utility", "tool_shares"} <= found["greedy"].keys()
    assert found["valid_rate"] == 1.0
    assert found["calls"] == found["cost"] == 0.0
    assert found["accuracy"] == sum("Oslo" in task.answer for task in evaluator.benchmarks["held_out"]) / 12
    assert results["preference_swap"].keys() == {"accuracy", "local"}
    assert [part["local_share"] for part in results["preference_swap"].values()] == [None, None]
    for figures in (found, found["greedy"], *results["preference_swap"].values()):
        assert (figures["model_calls"], figures["strongest_share"], figures["own_share"]) == (0.0, None, None)


def test_a_world_that_names_a_rival_has_a_verdict(collector, parrot, monkeypatch):
    monkeypatch.setattr(Posed, "rival", ("strongest_expert", "Next: go on."))
    evaluator = make(collector, parrot)
    results = asyncio.run(evaluator.evaluate())
    for figures in (results["held_out"], results["held_out"]["greedy"]):
        told, last = figures["verdict"].splitlines()
        share = f"{100 * figures['accuracy']:.1f} % right at 0 cents; your best model alone ("
        assert told.startswith(f"On 12 questions that training has not seen, with their users' wishes: {share}")
        assert last == "Next: go on."
    assert "verdict" not in results["preference_swap"]["accuracy"]
    evaluator.engine = baseline(evaluator.collector.environment, "random", [], 3)  # type: ignore[assignment]
    assert "verdict" not in asyncio.run(evaluator.evaluate())["held_out"]


def test_a_benchmark_of_ones_own_is_measured_beside_the_others(world, collector, parrot, monkeypatch, tmp_path):
    (tmp_path / "three.py").write_text("def tasks(environment, cfg):\n    return environment.held_out(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    evaluator = make(collector, parrot, benchmarks=["three:tasks", "held_out"])
    results = asyncio.run(evaluator.evaluate())
    assert list(results) == ["three:tasks", "held_out"]
    assert results["three:tasks"]["accuracy"] == sum("Oslo" in world.task("eval", n).answer for n in range(3)) / 3
    assert "greedy" in results["three:tasks"]
    assert "utility" not in results["three:tasks"]  # its scale is set by scripts on the held-out tasks


def test_no_question_is_no_evaluation_and_an_unknown_name_is_an_error(collector, parrot):
    evaluator = make(collector, parrot, count=0)
    assert asyncio.run(evaluator.evaluate()) == asyncio.run(evaluator.baselines()) == {}
    with pytest.raises(ConfigError, match=r"evaluation.benchmarks=heldout .*did you mean held_out"):
        make(collector, parrot, benchmarks=["heldout"])


@pytest.mark.parametrize("settings", [{"greedy": False}, {"temperature": 0.0}])
def test_greedy_is_measured_once_at_most(collector, parrot, settings):
    found = asyncio.run(make(collector, parrot, swap=False, **settings).evaluate())
    assert len(parrot.asked) == 12
    assert found.keys() == {"held_out"}
    assert "greedy" not in found["held_out"]


def test_evaluations_sample_alike_before_and_after(collector, parrot):
    evaluator = make(collector, parrot)
    first = asyncio.run(evaluator.evaluate())
    asked, parrot.asked = parrot.asked, []
    assert asyncio.run(evaluator.evaluate()) == first
    assert parrot.asked == asked
    assert len(set(asked[:12])) == 12  # every question with a seed of its own


def test_baselines_are_the_scripts_on_the_same_tasks_and_played_once(collector, parrot, monkeypatch):
    evaluator = make(collector, parrot, count=40)
    played = []
    play = collector.play

    async def counted(script, tasks, **options):
        played.append(script)
        return await play(script, tasks, **options)

    monkeypatch.setattr(collector, "play", counted)
    tasks = evaluator.benchmarks["held_out"]
    evaluator.benchmarks["other"] = {"easy": tasks[:2], "hard": tasks[2:5]}
    found = asyncio.run(evaluator.baselines())
    asyncio.run(evaluator.evaluate())
    # Doing nothing is measured on the held-out tasks and in both parts of the other benchmark, not on the swap.
    assert played == [*BASELINES.values(), *[do_nothing] * 3]
    runs = {name: asyncio.run(play(script, tasks, budget=Budget())) for name, script in BASELINES.items()}
    for name, run in runs.items():
        assert {key: found[name][key] for key in summarize(run)} == summarize(run)
        assert set(tool_shares(run)["all"]) <= {
            spec.name for task in evaluator.benchmarks["held_out"] for spec in task.tools
        }
    elsewhere = found.pop("do_nothing on other")
    for figures, count in ((found["do_nothing"], 40), (elsewhere, 5)):
        assert figures["counted"] == count
        assert figures["accuracy"] == figures["valid_rate"] == figures["cost"] == figures["latency"] == 0.0
    assert found["do_nothing"]["utility"] == 0.0
    best = max(found, key=lambda name: found[name]["utility"])
    assert best == "preference_oracle"
    assert all(0.0 <= figures["utility"] <= 1.0 + 1e-6 for figures in found.values())


@pytest.mark.parametrize("name", ["random_tool", "random", "cheapest_first", "expert/expert_small"])
def test_a_baseline_is_a_policy_that_goes_on_where_it_stopped(collector, parrot, tmp_path, monkeypatch, name):
    chosen = baseline(collector.environment, name, collector.environment.held_out(12), most=3)

    def evaluated() -> dict[str, Any]:
        evaluator = make(collector, chosen, tmp_path, swap=False)
        return asyncio.run(evaluator.evaluate("policy", f"baseline:{name}"))["held_out"]

    found = evaluated()
    assert "greedy" not in found  # a script has no temperature
    assert found["failed"] == 0
    if name in BASELINES:
        row = asyncio.run(make(collector, parrot, swap=False).baselines())[name]
        assert {key: found[key] for key in row} == row
    file = tmp_path / "policy" / "held_out.t1.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-3]))
    played = []
    play = collector.play

    async def counted(script, tasks, **options):
        played.append(len(tasks))
        return await play(script, tasks, **options)

    monkeypatch.setattr(collector, "play", counted)
    again = evaluated()
    assert played[0] == 3
    assert again == found
    assert sorted(file.read_text().splitlines(keepends=True)) == sorted(lines)


def test_utility_of_a_policy_is_on_the_baselines_scale(collector, parrot):
    evaluator = make(collector, parrot, swap=False)
    found = asyncio.run(evaluator.evaluate())["held_out"]
    # Free and instant, but a fixed word is hardly ever right; only right answers have utility.
    assert 0.0 <= found["utility"] <= found["accuracy"]
    assert np.isfinite(found["utility"])


def test_an_evaluation_leaves_its_trajectories_and_goes_on_from_them(world, collector, parrot, tmp_path):
    def evaluator() -> Evaluator:
        return make(collector, parrot, tmp_path)

    whole = asyncio.run(make(collector, parrot).evaluate())
    undisturbed, parrot.asked = parrot.asked, []
    generate = parrot.generate

    async def dies(ids, params, *, session=None):
        if len(parrot.asked) == 7:
            raise KeyError("the process ends here")
        return await generate(ids, params, session=session)

    parrot.generate = dies
    with pytest.raises(KeyError):
        asyncio.run(evaluator().evaluate("now", "these weights"))
    kept, before = tmp_path / "now" / "held_out.t1.jsonl", len(parrot.asked)
    with kept.open("a") as stream:
        stream.write(kept.read_text()[:50])  # a kill cuts the last line
    left = len(kept.read_text().splitlines()) - 1
    assert 0 < left <= before
    parrot.generate = generate

    def asked(policy: str | None) -> list[tuple[float, int | None]]:
        parrot.asked = []
        assert asyncio.run(evaluator().evaluate("now", policy)) == whole
        return parrot.asked

    assert asked("these weights") == undisturbed[left:]  # with the seeds of their places
    assert asked("these weights") == []
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert len(rows) == 12
    assert {row["id"] for row in rows} == {f"eval-{n}" for n in range(12)}
    assert {"question", "preference", "reference", "menu", "answer", "solved", "ledger"} <= rows[0].keys()
    for number, row in enumerate(sorted(rows, key=lambda row: row["group"])):
        task = world.task("eval", number)
        assert row["tools"] == [spec.name for spec in task.tools]
        wanted = task.preference
        assert row["weights"] == {
            "tools": wanted.tools, "outcome": wanted.outcome, "compute": wanted.compute, "latency": wanted.latency,
        }  # fmt: skip
        prices = {spec.name: {"call_usd": spec.price_usd} for spec in task.tools if spec.name.startswith("expert")}
        assert row["models"] == prices
    assert rows[0]["sequences"][0][0]["text"] == "Oslo"
    files = {path.name for path in kept.parent.iterdir()}
    assert files == {
        "held_out.t1.jsonl", "held_out.t0.jsonl", "preference_swap.accuracy.t1.jsonl", "preference_swap.local.t1.jsonl",
    }  # fmt: skip
    assert asked("other weights") == undisturbed
    assert asked(None) == undisturbed


def test_what_another_judge_decided_is_decided_anew(collector, parrot, tmp_path):
    def asked(judge: str) -> int:
        parrot.asked = []
        evaluator = make(collector, parrot, tmp_path, swap=False)
        evaluator.cfg = replace(evaluator.cfg, tools=replace(evaluator.cfg.tools, judge=judge))
        asyncio.run(evaluator.evaluate("now", "these weights"))
        return len(parrot.asked)

    found = [asked(judge) for judge in ("match", "match", "gpt-5", "gpt-5", "gpt-5-mini")]
    assert found == [24, 0, 24, 0, 24]


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line.replace(b"Oslo", b"Os\xfflo", 1),
        lambda line: line.replace(b'"group"', b'"grou"', 1),
        lambda line: b"[" * 100_000,
        lambda line: b"[]",
        lambda line: line.replace(b'"cost_usd": 0.0', b'"cost_usd": 1e999'),
        lambda line: line.replace(b'"solved": ', b'"solved": [1], "so": '),
        lambda line: line.replace(b'"member": 0', b'"member": -1'),
        lambda line: line.replace(b'"role": "orchestrator"', b'"role": null'),
    ],
)
def test_a_damaged_line_is_put_aside_with_a_sentence_and_asked_again(
    collector, parrot, tmp_path, capsys, damage: Callable[[bytes], bytes]
):
    def evaluate() -> dict[str, Any]:
        return asyncio.run(make(collector, parrot, tmp_path, swap=False).evaluate("now", "these weights"))

    whole, kept = evaluate(), tmp_path / "now" / "held_out.t1.jsonl"
    lines = kept.read_bytes().splitlines()
    bad = damage(lines[2])
    assert bad != lines[2]
    kept.write_bytes(b"\n".join([*lines[:2], bad, *lines[3:]]) + b"\n")
    capsys.readouterr()
    parrot.asked = []
    assert evaluate() == whole
    assert len(parrot.asked) == 1
    assert (tmp_path / "now" / "held_out.t1.jsonl.damaged").read_bytes() == bad + b"\n"
    told = f"1 damaged lines of '{kept}' are put aside in 'held_out.t1.jsonl.damaged'; what they held is asked again.\n"
    assert told in capsys.readouterr().err
    assert len(kept.read_bytes().splitlines()) == len(lines)


def test_every_sample_of_a_question_is_asked_once_and_goes_on_from_what_is_there(world, collector, parrot, tmp_path):
    generate, chat = parrot.generate, collector.chat

    samples = {turn_seed(7, number, sample, 0, 0): (number, sample) for number in range(12) for sample in range(3)}

    async def some_say_so(ids, params, *, session=None):
        """The first sample of every question is right, the others are not."""
        await generate(ids, params, session=session)
        number, sample = samples[params.seed]
        words = (*chat.encode("Oslo" if sample else world.task("eval", number).answer[0]), chat.stop_ids[0])
        return Generation(words, (0.0,) * len(words), "stop", 0)

    def evaluate(samples: int, count: int = 12) -> dict:
        parrot.asked = []
        evaluator = make(collector, parrot, tmp_path, swap=False, count=count, samples=samples)
        return asyncio.run(evaluator.evaluate("now", "these weights"))["held_out"]

    parrot.generate = some_say_so
    found = evaluate(2)
    seeds = {seed for temperature, seed in parrot.asked if temperature}
    assert (len(parrot.asked), len(seeds)) == (3 * 12, 2 * 12)  # greedily once
    assert found["counted"] == 24
    assert (found["accuracy"], found["pass^k"], found["pass@k"]) == (0.5, {"1": 0.5, "2": 0.0}, {"1": 0.5, "2": 1.0})
    # Questions are all alike, however much their samples differ: another draw of questions gives the same.
    assert found["intervals"]["accuracy"] == {"bootstrap": (0.5, 0.5)}
    assert found["greedy"]["intervals"]["accuracy"].keys() == {"wilson", "bootstrap"}
    kept = tmp_path / "now" / "held_out.t1.jsonl"
    whole = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join(whole[:5] + whole[7:]) + whole[5][:40])
    assert evaluate(2) == found
    assert len(parrot.asked) == 2
    assert sorted(json.loads(line)["member"] for line in kept.read_text().splitlines()) == [0] * 12 + [1] * 12
    more = evaluate(3)
    assert len(parrot.asked) == 12
    # Fewer questions or samples for once cost nothing of what is there: all of it is found again.
    assert evaluate(2, count=5)["counted"] == 10
    assert len(kept.read_text().splitlines()) == 10
    evaluate(1, count=3)
    assert parrot.asked == []
    assert evaluate(3) == more
    assert parrot.asked == []
    assert {path.name for path in kept.parent.iterdir()} == {"held_out.t0.jsonl", "held_out.t1.jsonl"}


class InThread(SeveralProcesses):
    """One of several processes that are threads: what they exchange goes through `table`."""

    def __init__(self, index: int, table: dict[int, bytes], meeting: threading.Barrier) -> None:
        super().__init__(index, meeting.parties)
        self._table, self._meeting = table, meeting

    def gather(self, value: Any) -> list[Any]:
        self._table[self.index] = pickle.dumps(value)
        self._meeting.wait(120)
        found = [pickle.loads(self._table[index]) for index in range(self.count)]
        self._meeting.wait(120)
        return found


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_two_processes_share_the_samples_and_have_the_figures_of_one(world, collector, parrot, tmp_path, temperature):
    """Samples differ in what they say and whether it is right: one at another's place would be seen."""
    seeds = {turn_seed(7, number, sample, 0, 0): (number, sample) for number in range(7) for sample in range(2)}

    async def by_seed(ids, params, *, session=None):
        number, sample = seeds[params.seed]
        word = "Oslo" if (2 * number + sample) % 3 else world.task("eval", number).answer[0]
        said = (*collector.chat.encode(word), collector.chat.stop_ids[0])
        parrot.asked.append((params.temperature, params.seed))
        return Generation(said, (0.0,) * len(said), "stop", 0)

    def evaluate(folder: Path, processes: Processes | None = None) -> dict[str, Any]:
        environment = QuickstartEnvironment(RunConfig())  # as each process has: a sandbox belongs to one event loop
        own = Collector(environment, collector.chat, LIMITS, PRICES, seconds_per_token=0.0)
        rest = {"count": 7, "swap": False, "samples": 2, "temperature": temperature}
        evaluator = make(own, parrot, folder, processes, **rest)

        async def evaluated() -> dict[str, Any]:
            try:
                return (await evaluator.evaluate("now", "these weights"))["held_out"]
            finally:
                await environment.close()

        return asyncio.run(evaluated())

    def by(count: int) -> list[dict[str, Any]]:
        table, meeting = dict[int, bytes](), threading.Barrier(count)
        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(lambda n: evaluate(tmp_path / "two", InThread(n, table, meeting)), range(count)))

    parrot.generate = by_seed
    alone, asked = evaluate(tmp_path / "one"), sorted(parrot.asked)
    assert 0 < alone["pass@k"]["2"] < 1
    parrot.asked = []
    assert by(2) == [alone, alone]
    assert sorted(parrot.asked) == asked
    assert len(asked) == 7 * 2 + 7
    kept = tmp_path / "two" / "now"
    name = f"held_out.t{temperature:g}"
    assert {path.name for path in kept.iterdir()} == {
        f"{name}.jsonl", f"{name}.p1.jsonl", "held_out.t0.jsonl", "held_out.t0.p1.jsonl",
    }  # fmt: skip
    rows = [json.loads(line) for file in kept.glob(f"{name}*.jsonl") for line in file.read_text().splitlines()]
    assert sorted((row["group"], row["member"]) for row in rows) == [(n, k) for n in range(7) for k in range(2)]
    parrot.asked = []
    for count in (2, 5, 3, 1, 2):  # of processes, when it goes on
        assert by(count) == [alone] * count
        assert parrot.asked == []
    assert len(list(kept.iterdir())) == 4  # of two processes
    file = kept / f"{name}.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-3]) + "{")
    (kept / f".{name}.p1.jsonl.rest").write_text("")
    assert [evaluate(tmp_path / "two")] * 2 == by(2) == [alone] * 2
    assert len(parrot.asked) == 3


def test_a_policy_that_always_raises_is_neither_right_nor_wrong(collector, parrot):
    async def raises(ids, params, *, session=None):
        raise InfrastructureError("no server answers")

    parrot.generate = raises
    found = asyncio.run(make(collector, parrot, swap=False, greedy=False).evaluate())["held_out"]
    assert (found["failed"], found["counted"]) == (12.0, 0.0)
    assert all(found[figure] is None for figure in ("accuracy", "valid_rate", "cost", "cost_per_correct", "utility"))


def test_utility_is_of_the_questions_that_did_not_fail(collector, parrot):
    async def measured(fails: int) -> dict:
        evaluator, collect = make(collector, parrot, swap=False, greedy=False), collector.collect
        tasks = evaluator.benchmarks["held_out"]
        oracle = await collector.play(BASELINES["preference_oracle"], tasks, budget=Budget())
        failed = [replace(t, status=Status.FAILED, solved=False) for t in oracle[:fails]]

        async def collected(*_, **__):
            return [*failed, *oracle[fails:]]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(collector, "collect", collected)
            assert collector.collect != collect
            found = (await evaluator.evaluate())["held_out"]
        utilities = preference_utility([oracle], list((await evaluator._runs()).values()), REWARD.tool_feature)[0]
        return {"found": found["utility"], "by hand": float(np.mean(utilities[fails:]))}

    for fails in (0, 5):
        figures = asyncio.run(measured(fails))
        assert figures["found"] == figures["by hand"] > 0


def test_what_failed_is_evaluated_again_and_the_rest_comes_back_whole(world, collector, parrot, tmp_path):
    tasks = [world.task("eval", index) for index in range(4)]
    script = next(iter(BASELINES.values()))
    played = asyncio.run(collector.play(script, tasks, budget=Budget()))
    kept = TrajectoryFile(tmp_path / "some.jsonl", "weights", tasks)
    for trajectory in (played[2], replace(played[0], status=Status.FAILED, reason="a dead server"), played[3]):
        kept.add(trajectory)
    found = TrajectoryFile(tmp_path / "some.jsonl", "weights", tasks).found
    assert found.keys() == {(2, 0), (3, 0)}
    assert any(t.calls for t in found.values())
    for (number, _), trajectory in found.items():
        assert summarize([trajectory]) == summarize([played[number]])
        assert tool_shares([trajectory]) == tool_shares([played[number]])
        assert trajectory.ledger == played[number].ledger
    reworded = [replace(task, question="Another?") for task in tasks]
    assert TrajectoryFile(tmp_path / "some.jsonl", "weights", reworded).found == {}
