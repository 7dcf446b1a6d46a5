"""The environment of databases: golden calls solve it, nothing else does, and episodes know nothing of each other."""

import asyncio
import json
import random
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.envs.baselines import baseline
from orchestra_jax.envs.conversation import Conversation
from orchestra_jax.envs.database.conversations import DONE, DatabaseEpisode
from orchestra_jax.envs.database.environment import SHIPPED, DatabaseEnvironment
from orchestra_jax.envs.database.session import LocalWorld
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.types import InfrastructureError, Status, Task, ToolCall, ToolResult, Trajectory
from tests.envs.played import collector
from tests.tools.openai_stub import StubOpenAI


def config(*more: str) -> RunConfig:
    return compose("+experiment=database", *more)


@pytest.fixture(scope="module")
def environment() -> DatabaseEnvironment:
    return DatabaseEnvironment(config())


async def play(environment: DatabaseEnvironment, name: str, count: int) -> list[Trajectory]:
    cfg, tasks = config(), environment.held_out(count)
    found = baseline(environment, name, tasks, 4)
    return await collector(environment, cfg).play(found.script, tasks, budget=Budget(), silent=True)


async def test_golden_calls_solve_every_task_and_other_baselines_what_they_must(environment: DatabaseEnvironment):
    solved = {
        name: [t.solved for t in await play(environment, name, 1000)] for name in ("golden", "do_nothing", "random")
    }
    assert len(solved["golden"]) == 180
    assert all(solved["golden"])
    assert not any(solved["do_nothing"])  # it talks to the end, and is scored
    assert sum(solved["random"]) < 0.2 * 180
    families = Counter(task.family for task in environment.held_out(30))
    assert families == {"clinic": 10, "library": 10, "shop": 10}


async def test_the_first_words_and_every_request_are_heard_in_their_order(environment: DatabaseEnvironment):
    task = next(task for task in environment.held_out(180) if len(requests(environment, task)) == 2)
    (found,) = await collector(environment, config()).play(
        environment.baselines()["golden"], [task], budget=Budget(), silent=True
    )
    first, second = requests(environment, task)
    assert (found.task.question, found.status) == (first, Status.COMPLETED)
    assert [turn.heard for turn in found.turns if not turn.calls] == [second, None]
    assert (found.cost_usd, found.latency_s) == (0.0, 0.0)  # tools of a domain are free and instant
    assert found.criteria == {"executed": "", "faithful": "", "complete": ""}


def requests(environment: DatabaseEnvironment, task: Task) -> list[str]:
    return [turn.user for turn in environment._rows[task.id].turns]


def a_task(environment: DatabaseEnvironment, tool: str) -> tuple[Task, DatabaseEpisode, ToolCall]:
    """A held-out task that one call of this tool solves."""
    for task in environment.held_out(180):
        (first, *more) = environment._golden[task.extra["task"]].goal.calls
        if first.name == tool and not more:
            return task, environment.reset(task, Budget()), first
    raise AssertionError(tool)


async def test_each_criterion_fails_alone(environment: DatabaseEnvironment):
    task, episode, call = a_task(environment, "renew_loan")
    said = f"It is due {task.answer[0]}."
    assert isinstance(episode, Conversation)

    result = await episode.step(call)
    assert result.text.startswith("due ")
    assert await episode.respond("I did it.") is None
    score = await episode.score("I did it.")
    assert (score.solved, score.criteria["faithful"]) == (False, f"Not said: '{task.answer[0]}'.")
    assert score.criteria["executed"] == score.criteria["complete"] == ""

    _, episode, call = a_task(environment, "renew_loan")
    await episode.step(call)
    await episode.step(ToolCall("pay_fines", {"member": "M11"}))  # nobody asked for it
    await episode.respond(said)
    score = await episode.score(said)
    assert score.criteria == {"executed": "Not as it should be: members M11.", "faithful": "", "complete": ""}

    task, episode, call = a_task(environment, "get_points")  # a guess, without looking
    await episode.respond(f"You have {task.answer[0]} points.")
    score = await episode.score("")
    (customer,) = call.arguments.values()
    assert score.criteria == {"executed": "", "faithful": "", "complete": f"Not operated on: customers {customer}."}


async def test_bad_calls_change_nothing(environment: DatabaseEnvironment):
    _, episode, _ = a_task(environment, "renew_loan")
    start = episode.session.state.hash()
    unknown, refused = await episode.step(ToolCall("steal", {})), await episode.step(ToolCall("renew_loan", {"x": 1}))
    assert unknown.refused
    assert refused.refused
    failed = await episode.step(ToolCall("renew_loan", {"loan": "L99"}))
    assert (failed.text, failed.is_error, failed.refused) == ("Error: There is no 'L99' in loans.", True, False)
    assert episode.session.state.hash() == start


async def test_a_thousand_interleaved_episodes_know_nothing_of_each_other(environment: DatabaseEnvironment):
    """Each ends in the state that it ends in alone, in whatever order their calls are made."""
    order, tasks = random.Random(0), [*environment.held_out(180), *next(environment.train_tasks(820))]
    alone = dict[str, str]()
    for task in tasks:
        session = environment._golden[task.extra["task"]].after
        alone[task.id] = session.state.hash()
    opened = [(task, environment.reset(task, Budget())) for task in tasks]
    left = [(episode, call) for task, episode in opened for call in environment._golden[task.extra["task"]].goal.calls]
    queues: dict[int, list[ToolCall]] = {}
    for episode, call in left:
        queues.setdefault(id(episode), []).append(call)
    by_id = {id(episode): episode for _, episode in opened}
    while queues:
        some = order.sample(sorted(queues), min(64, len(queues)))
        await asyncio.gather(*(by_id[number].step(queues[number].pop(0)) for number in some))
        queues = {number: calls for number, calls in queues.items() if calls}
    assert all(episode.session.state.hash() == alone[task.id] for task, episode in opened)
    assert all(environment.reset(task, Budget()).session.state.changed == frozenset() for task in tasks[:50])


async def test_experts_stand_beside_the_domains_tools_with_prices_and_preferences():
    more = ("warm_start.demonstrations=300", "rollout.limits.max_length=512", "env.options.worlds=[shop]")
    cfg = config("tools=simulated", "tools.names=[]", "data.preferences=true", *more)
    environment = DatabaseEnvironment(cfg)
    task = next(task for task in environment.held_out(50) if task.answer[0] != DONE)
    names = [spec.name for spec in task.tools]
    models = ["expert_small", "expert_medium", "expert_large"]
    assert names[-3:] == models
    assert environment.largest_menu() == 11
    assert [asked.name for asked in environment.experts(task)] == models
    posed = [task.preference for task in environment.held_out(60)]
    assert {preference.name for preference in posed} >= {"accuracy", "low_cost", "fast"}
    assert {name for preference in posed for name in preference.tools} <= set(models)

    def script(task: Task, observed):
        if not observed:
            return ToolCall("expert_large", {"question": task.question})
        return environment._golden[task.extra["task"]].play(observed[1:])

    (found,) = await collector(environment, cfg).play(script, [task], budget=Budget(), silent=True)
    assert (found.solved, found.cost_usd, found.latency_s) == (True, 0.06, 20.0)

    chat = environment.chat(cfg)  # a small policy that starts from random weights can read and say all of it
    words, shown = ChatFormat(chat.tokenizer, history="keep", compact_menu=True), environment.demonstrations()
    played = await collector(environment, cfg, words).play(shown.script, shown.tasks[::3], budget=Budget())
    assert {call.name for t in played for call in t.calls} >= {"expert_small", "expert_large", "get_order"}
    ids = [token for t in played for turn in t.turns for token in (*turn.prompt_ids, *turn.sampled_ids)]
    assert ids.count(chat.tokenizer.unk_token_id) < 1e-3 * len(ids)
    await environment.close()


def names_an_order(task: Task) -> bool:
    return re.search(r"\bO\d\d\b", task.question) is not None and not re.search(r"\b(send|go)\b", task.question)


def test_demonstrations_teach_the_format_and_not_the_choice():
    environment = DatabaseEnvironment(config("warm_start.demonstrations=400", "env.options.worlds=[shop]"))
    found, chat = environment.demonstrations(), environment.chat(config())
    words = ChatFormat(chat.tokenizer, history="keep", compact_menu=True)
    tasks = [found.tasks[number] for number in range(0, len(found.tasks), 2)]
    played = asyncio.run(collector(environment, config(), words).play(found.script, tasks, budget=Budget()))
    assert {t.status for t in played} == {Status.COMPLETED}
    # A request that names an order alone: every tool that needs no more is as likely, whatever the request.
    first = Counter(found.script(task, []).name for task in found.tasks if names_an_order(task))
    assert first.keys() == {"get_order", "cancel_order", "return_order", "hand_over"}
    assert min(first.values()) > 0.5 * max(first.values())
    assert sum(t.solved for t in played) < 0.25 * len(played)
    trained, gate = {task.id for task in found.tasks}, {task.id for task in found.gate}
    assert not trained & gate
    ids = [token for t in played for turn in t.turns for token in (*turn.prompt_ids, *turn.sampled_ids)]
    assert ids.count(chat.tokenizer.unk_token_id) < 1e-3 * len(ids)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("env.options.worlds=[nowhere]", "nowhere is neither a folder with a world.json nor one of clinic, library"),
        ("env.options.worlds=shop", "must be a list of worlds"),
        ("+env.options.world=shop", "env.options of database worlds are worlds, user, "),
        ("env.options.rules=1", "env.options.rules must be true or false"),
        ("env.options.user=3", "env.options.user must be scripted or the name of a model, not 3"),
        ("tools=simulated tools.names=[pithon]", "tools.names=pithon"),
        ("env.options.facts=judge", "env.options.facts=judge needs a judge: set tools.judge"),
        ("env.options.facts=guess", "env.options.facts must be value or judge, not 'guess'."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(more: str, told: str):
    assert any(told in sentence for sentence in DatabaseEnvironment.problems(config(*more.split())))


@pytest.mark.parametrize("trusted", ["true", "false"])
async def test_another_folder_runs_in_the_sandbox_unless_it_is_trusted(tmp_path: Path, trusted: str):
    folder = shutil.copytree(SHIPPED / "shop", tmp_path / "bakery")
    tasks = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
    few = [task for task in tasks if len(task["turns"]) == 2][:3] + [task for task in tasks if task["split"] == "eval"][
        :3
    ]
    code = (folder / "tools.py").read_text().replace('return "handed over"', 'return {}["nobody"]')
    (folder / "tools.py").write_text(code)
    few.append({**few[0], "id": "stale", "turns": [{"user": "?", "calls": [{"name": "fly", "arguments": {}}]}]})
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in few))
    environment = DatabaseEnvironment(config(f"env.options.worlds=[{folder}]", f"+env.options.trusted={trusted}"))
    assert isinstance(environment._worlds[0], LocalWorld) is (trusted == "true")
    assert environment.unusable == {"stale": "Golden call 1 (fly) failed: Unknown tool 'fly'."}
    played = await collector(environment, config()).play(
        environment.baselines()["golden"], environment.held_out(10), budget=Budget(), silent=True
    )
    assert [t.solved for t in played] == [True] * 3
    hands_over = environment.reset(environment.held_out(1)[0], Budget()).step(ToolCall("hand_over", {}))
    with pytest.raises(KeyError if trusted == "true" else InfrastructureError, match="nobody"):
        await hands_over
    await environment.close()


def test_a_world_of_two_tools_is_demonstrated(environment: DatabaseEnvironment):
    found = environment.demonstrations()
    for task in (replace(task, tools=task.tools[:2]) for task in found.tasks[:100]):
        said = list[ToolResult]()
        while len(said) < 9:
            said.append(ToolResult("Done."))
            assert found.script(task, said) is not None


@pytest.mark.parametrize(("count", "gate"), [(40, 20), (3, 1), (1, 1)])
def test_a_small_world_has_demonstrations_too(tmp_path: Path, count: int, gate: int):
    folder = shutil.copytree(SHIPPED / "shop", tmp_path / "bakery")
    tasks = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
    short = [task for task in tasks if len(task["turns"]) == 1 and task["split"] == "train"]
    few = [task for task in short if re.search(r"\bO\d\d\b", task["turns"][0]["user"])][:count]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in few))
    settings = (f"env.options.worlds=[{folder}]", "+env.options.trusted=true", "warm_start.demonstrations=50")
    found = DatabaseEnvironment(config(*settings)).demonstrations()
    assert (len(found.tasks), len(found.gate)) == (50, gate)
    assert bool({task.id for task in found.tasks} & {task.id for task in found.gate}) is (count == 1)


def test_a_folder_whose_tools_do_not_load_is_told(tmp_path: Path):
    folder = shutil.copytree(SHIPPED / "shop", tmp_path / "bakery")
    (folder / "tools.py").write_text("import nothing_there")
    with pytest.raises(ConfigError, match=r"tools\.py.*nothing_there"):
        DatabaseEnvironment(config(f"env.options.worlds=[{folder}]"))
    (folder / "tasks.jsonl").write_text("nothing")
    with pytest.raises(ConfigError, match=r"tasks\.jsonl, line 1 is no task"):
        DatabaseEnvironment(config(f"env.options.worlds=[{folder}]"))


async def test_a_model_plays_the_user_and_is_no_cost_of_the_policys(stub: StubOpenAI):
    left = ["Thanks, that is all I want to know. ###STOP###"]
    stub.reply = lambda body: left[0]
    cfg = config("env.options.user=gpt-5-mini", f"tools.server.url={stub.url}", "pricing.name=paper")
    environment = DatabaseEnvironment(cfg)
    task = next(task for task in environment.held_out(10) if len(requests(environment, task)) == 1)
    (found,) = await collector(environment, cfg).play(
        environment.baselines()["golden"], [task], budget=Budget(), silent=True
    )
    await environment.close()
    assert (found.solved, found.cost_usd, found.latency_s) == (True, 0.0, 0.0)
    assert found.turns[-1].heard == "Thanks, that is all I want to know. ###STOP###".replace("###STOP###", "").strip()
    (row,) = (row for row in found.ledger if row.role == "user_simulator")
    assert row.cost_usd > 0
    system, *_, said = stub.bodies[0]["messages"]
    assert task.question in system["content"]
    assert said["content"] == found.answer


async def test_a_judge_finds_facts_and_what_denies_them(stub: StubOpenAI):
    """By value "not X" says X, and another wording does not; the judge decides, and is asked of facts alone."""
    cfg = config(
        "env.options.facts=judge", "tools.judge=gpt-5-mini", f"tools.server.url={stub.url}", "pricing.name=paper"
    )
    environment, verdicts = DatabaseEnvironment(cfg), []
    stub.reply = lambda body: json.dumps({"reason": "", "verdict": verdicts.pop(0)})
    task = next(task for task in environment.held_out(99) if environment._golden[task.id].goal.facts)
    golden, facts = environment.baselines()["golden"], environment._golden[task.id].goal.facts
    played = collector(environment, cfg)
    for verdict in ("correct", "incorrect"):
        verdicts += [verdict] * len(facts)
        (found,) = await played.play(golden, [task], budget=Budget(), silent=True)
        wrong = "" if verdict == "correct" else f"Not said: {', '.join(map(repr, facts))}."
        assert (found.solved, found.criteria["faithful"]) == (not wrong, wrong)
    asked = len(stub.bodies)
    (idle,) = await played.play(environment.baselines()["do_nothing"], [task], budget=Budget(), silent=True)
    await environment.close()
    assert (found.cost_usd, asked, len(stub.bodies)) == (0.0, 2 * len(facts), asked)  # idle: other criteria decide
    assert not idle.solved
    shown = stub.bodies[0]["messages"][1]["content"]
    assert f"| customer: {task.question.splitlines()[0]}" in shown
    assert facts[0] in shown
    assert sum(row.cost_usd for row in found.ledger if row.role == "judge") > 0
