"""τ²-Bench's conversations on a made package of its form: solved tasks, reports, tasks that are left out."""

import asyncio
import re
import sys

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.baselines import baseline
from orchestra_jax.envs.conversation import Conversation
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.envs.tau2 import package
from orchestra_jax.envs.tau2.environment import Tau2Environment
from orchestra_jax.envs.tau2.package import TOO_LONG, Patterns
from orchestra_jax.envs.tau2.scripted import named
from orchestra_jax.envs.tau2.tasks import AGENT
from orchestra_jax.evaluation.runner import Evaluator
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.types import InfrastructureError, Status, ToolCall
from tests.envs.played import FREE, plan, play, task_of
from tests.envs.tau2.conftest import cfg

GET, BONUS = ToolCall("get_user", {"user": "ann"}), ToolCall("add_bonus", {"user": "ann", "amount": 5})
HAND_OVER, ROAM = ToolCall("transfer_to_human_agents", {"summary": "much"}), ToolCall("enable_roaming", {})


def test_golden_calls_solve_every_task_and_doing_nothing_what_need_not_change(environment):
    tasks = environment.held_out(99)
    assert isinstance(environment.reset(tasks[0], Budget()), Conversation)
    for found in play(environment, environment.baselines()["golden"], tasks):
        assert (found.status, found.solved, found.cost_usd, found.latency_s) == (Status.COMPLETED, True, 0.0, 0.0)
    idle = play(environment, environment.baselines()["do_nothing"], tasks)
    assert [found.task.id for found in idle if found.solved] == ["airline-1"]
    assert {found.status for found in idle} == {Status.COMPLETED}
    assert all(turn.text == "Done." for found in idle for turn in found.turns)
    assert [turn.heard for turn in idle[0].turns][-1] == "###STOP###"


def test_every_turn_that_raises_is_no_score_where_nothing_need_change(environment):
    """The package's own loop gives 1.0 to a policy whose every turn raises."""
    task = task_of(environment, "airline-1")

    def raises(task, observed):
        raise InfrastructureError("the engine is dead")

    (found,) = play(environment, raises, [task])
    assert (found.status, found.solved, found.criteria) == (Status.FAILED, False, {})
    (silent,) = play(environment, plan(""), [task])  # a turn that says nothing is no answer, and not scored
    assert (silent.status, silent.solved) == (Status.NO_ANSWER, False)


@pytest.mark.parametrize(
    ("name", "actions", "wrong"),
    [
        ("airline-0", (BONUS, "It is 1,200."), {}),
        ("airline-0", (BONUS, BONUS, "1200"), {"db"}),
        ("airline-0", (BONUS, "It was 12 hundred."), {"communicate"}),
        ("airline-0", ("1200",), {"db"}),
        ("airline-2", ("Done.",), {"db"}),  # a golden call writes before it fails: so does the policy's
        ("airline-2", (ToolCall("add_bonus", {"user": "ann", "amount": -2}), "Done."), {}),
        ("airline-3", (HAND_OVER, "Done."), {"action"}),
        ("airline-3", (ToolCall(HAND_OVER.name, {"summary": ""}), "Done."), {}),
        ("airline-3", (ToolCall(HAND_OVER.name, {}), "Done."), {}),  # it fails, and yet it counts, as for the authors
        ("airline-3", ("Done.",), {"action"}),
        ("airline-4", ("7",), {}),
        ("airline-4", ("8",), {"communicate"}),  # instead of what only a judge could say
        ("telecom-broken", (ROAM, "Turn off airplane mode.", "Done."), {}),
        ("telecom-broken", (ROAM, "Done."), {"env_assertion", "action"}),
        ("telecom-broken", ("Turn off airplane mode.", "Done."), {"env_assertion", "action"}),
    ],
)  # fmt: skip
def test_what_is_wrong_by_criterion(environment, name, actions, wrong):
    (found,) = play(environment, plan(*actions), [task_of(environment, name)])
    official = {key: fault for key, fault in found.criteria.items() if key != "communicate_by_value"}
    assert {key for key, sentence in official.items() if sentence} == set(wrong)
    assert (found.status, found.solved) == (Status.COMPLETED, not wrong)


@pytest.mark.parametrize(
    ("said", "official", "by_value"),
    [
        ("It is $1,200.00.", True, True),
        ("It was in 12000, or 98120023.", True, False),  # a part of a longer figure
        ("It is 1 200.", False, False),
        ("It is 1201.", False, False),
    ],
)
def test_facts_count_as_the_leaderboard_finds_them_and_by_value_beside_it(environment, said, official, by_value):
    (found,) = play(environment, plan(BONUS, said), [task_of(environment, "airline-0")])
    assert (found.solved, not found.criteria["communicate"]) == (official, official)
    assert (not found.criteria["communicate_by_value"]) == by_value


def test_an_argument_is_judged_by_the_tool_as_in_the_authors_code(environment):
    text = ToolCall("add_bonus", {"user": "ann", "amount": 5, "extras": [{"kind": "meal", "count": "2"}]})
    (found,) = play(environment, plan(text, "1200"), [task_of(environment, "airline-0")])
    assert found.solved
    wrong = [ToolCall("get_user", {"user": 3}), ToolCall("get_user", {}), ToolCall("get_user", {"who": "ann"})]
    (found,) = play(environment, plan(*wrong * 4, BONUS, "1200"), [task_of(environment, "airline-0")])
    assert found.criteria["errors"] == "12 calls failed."


UNLOCKED = "call_discoverable_agent_tool"


def unlocked(name, arguments):
    return ToolCall(UNLOCKED, {"agent_tool_name": name, "arguments": arguments})


LOOK, CREDIT = unlocked("get_balance_1", '{"account": "a"}'), unlocked("apply_credit_2", '{"account":"a","amount":5}')
REFUSED = unlocked("apply_credit_2", '{"account": "a", "amount": -1}')


@pytest.mark.parametrize(
    ("name", "calls", "solved"),
    [
        ("credit", [CREDIT], True),
        ("credit", [CREDIT, LOOK, LOOK], True),  # a look that the task does not name is not logged
        ("credit", [LOOK, CREDIT], True),
        ("credit", [LOOK], False),
        ("credit", [unlocked("apply_credit_2", '{"account": "a", "amount": 5.0}')], True),  # one number
        ("credit", [unlocked("get_balance_1", "no JSON"), CREDIT], True),
        ("checked", [LOOK, CREDIT], True),
        ("checked", [CREDIT], False),  # the task wants the look
        ("checked", [REFUSED, LOOK], False),
    ],
)  # fmt: skip
def test_the_bank_logs_an_unlocked_look_only_where_the_task_names_it(bank, name, calls, solved):
    (found,) = play(bank, plan(*calls, "Done."), [task_of(bank, f"banking-{name}")])
    assert (found.status, found.solved) == (Status.COMPLETED, solved)


def test_the_bank_lists_what_it_logged(bank):
    episode = bank.reset(task_of(bank, "banking-credit"), Budget())
    for each in (LOOK, REFUSED):  # a write is logged even if it is refused
        asyncio.run(episode.step(each))
    assert asyncio.run(episode.step(ToolCall("list_discoverable_agent_tools", {}))).text == "apply_credit_2"


def test_too_many_errors_end_a_task_unsolved(environment):
    unknown = ToolCall("get_user", {"user": "sue"})
    for errors, solved in ((9, True), (10, False)):
        (found,) = play(environment, plan(*[unknown] * errors, "Done."), [task_of(environment, "airline-1")])
        assert (found.solved, found.criteria["errors"]) == (solved, "" if solved else "10 calls failed.")


def test_what_is_left_out_and_what_fails_is_listed(environment):
    assert set(environment.unusable) == {"telecom-hopeless"}
    assert environment.unusable["telecom-hopeless"].endswith("Does not hold: assert_online.")
    assert environment.may_fail == {
        "airline-2": [
            "Golden call 1 (get_user) fails: Error: User sue not found",
            "Golden call 2 (add_bonus) fails: Error: User nobody not found",
        ]
    }


def test_the_scripted_user(environment):
    (found,) = play(
        environment,
        plan("What shows the status bar?", "Restart it.", "Try toggle_airplane_mode", "And the Status-Bar?", "Good."),
        [task_of(environment, "telecom-broken")],
    )
    heard = [turn.heard.splitlines()[0] for turn in found.turns]
    assert heard[0].startswith("check_status_bar: bar airplane=True")
    assert heard[1].startswith("Yes")
    assert heard[2] == "toggle_airplane_mode: airplane mode False"
    assert heard[3].startswith("check_status_bar: bar airplane=False")
    assert [text[:3] for text in heard[4:]] == ["Yes", "Yes", "###"]
    (left,) = play(environment, plan(HAND_OVER, "Somebody will call you."), [task_of(environment, "airline-0")])
    assert [turn.heard for turn in left.turns] == [None, "###TRANSFER###"]
    given = ToolCall("call_discoverable_user_tool", {"discoverable_tool_name": "get_last_digits_12"})
    assert named(given, {"get", "last", "digits", "12"})
    assert not named(given, {"last", "digits"})


def test_the_row_of_doing_nothing_speaks_as_nobody_hears_silence(environment):
    cfg = compose("+benchmark=tau2", "policy=baseline:golden")
    assert (cfg.env.name, cfg.env.options["evaluate"], cfg.tools.menu.form) == ("tau2", "all", "none")
    collector = Collector(environment, None, cfg.rollout.limits, FREE)
    tasks = environment.held_out(99)
    golden = baseline(environment, "golden", tasks, 9)
    evaluator = Evaluator(cfg, collector, golden, Budget())
    rows = asyncio.run(evaluator.baselines())
    assert (rows["do_nothing"]["accuracy"], rows["do_nothing"]["valid_rate"], rows["do_nothing"]["cost"]) == (
        1 / 6,
        1,
        0,
    )
    assert (rows["golden"]["accuracy"], rows["golden"]["criteria/db"]) == (1.0, 1.0)
    silent = [baseline(environment, name, tasks, 9).silent for name in ("golden", "do_nothing", "random")]
    assert silent == [False, True, True]


def test_experts_stand_beside_the_tools_of_a_domain(package):
    cfg = compose("+benchmark=tau2", "tools=simulated", "tools.names=[]", "env.options.domains=[airline]",
                  "data.preferences=true")  # fmt: skip
    environment = Tau2Environment(cfg)
    (task,) = environment.held_out(1)
    domain, models = (
        {"get_user", "add_bonus", "seats_left", "transfer_to_human_agents"},
        {"expert_small", "expert_large"},
    )
    assert domain | models <= {spec.name for spec in task.tools}
    assert not domain & task.preference.tools.keys()
    assert environment.largest_menu() == len(task.tools)
    asked = next(each.call for each in environment.experts(task) if each.name == "expert_large")
    collector = Collector(environment, None, cfg.rollout.limits, FREE)
    script = plan(asked, BONUS, "It is 1200.")
    (found,) = asyncio.run(collector.play(script, [task], budget=Budget()))
    assert found.solved
    assert found.cost_usd > 0
    assert {row.name: row.cost_usd for row in found.ledger}["add_bonus"] == 0.0


def test_what_the_policy_reads(environment):
    task = task_of(environment, "airline-0")
    episode = environment.reset(task, Budget())
    system, user = episode.messages
    assert "<policy>\nBe an airline.\n</policy>" in system["content"]
    assert "You want 0." in user["content"]
    assert "You are ann." in user["content"]
    specs = {spec.name: spec for spec in episode.tools}
    assert specs["get_user"].description == "Reads a user.\nAll of it."
    assert specs["get_user"].parameters["properties"]["user"]["description"] == "Whom, by id."
    extras = specs["add_bonus"].parameters["properties"]["extras"]
    assert extras["items"]["properties"]["kind"]["enum"] == ["meal", "bag"]  # and no "or any dict"
    result = asyncio.run(episode.step(ToolCall("get_user", {"user": 3})))
    assert (result.text, result.is_error, result.refused) == ("Error: User 3 not found", True, False)
    result = asyncio.run(episode.step(ToolCall("get_user", {"user": "sue"})))
    assert (result.text, result.is_error, result.refused) == ("Error: User sue not found", True, False)


def test_an_error_without_a_text_says_its_kind(environment, monkeypatch: pytest.MonkeyPatch):
    task = task_of(environment, "airline-0")

    async def silent(user: str) -> str:
        raise KeyError

    monkeypatch.setitem(environment._domains["airline"].functions[AGENT], "get_user", silent)
    result = asyncio.run(environment.reset(task, Budget()).step(ToolCall("get_user", {"user": "ann"})))
    assert result.text == "Error: KeyError"


async def test_interleaved_episodes_share_nothing(environment):
    tasks = [task_of(environment, name) for name in ("airline-0", "telecom-broken")]
    episodes = [environment.reset(task, Budget()) for task in tasks for _ in range(20)]
    texts = []
    for _ in range(3):
        for episode in episodes[:20]:
            await episode.step(BONUS)
        texts.append({(await episode.step(GET)).text for episode in episodes[:20]})
        texts.append({(await episode.respond("airplane mode")).text.splitlines()[0] for episode in episodes[20:]})
    assert [len(each) for each in texts] == [1] * 6
    assert '"bonus":15.0' in texts[4].pop()
    fresh = await environment.reset(tasks[0], Budget()).step(GET)
    assert '"bonus":0.0' in fresh.text


def test_nothing_of_inspect_stays(environment):
    assert not [name for name in sys.modules if name.startswith("inspect_evals.tau2") and name.endswith("tools")]
    assert "inspect_ai" not in sys.modules or hasattr(sys.modules["inspect_ai"], "__version__")


def test_splits(package):
    environment = make_environment(cfg())
    assert [task.id for task in environment.held_out(99)] == ["airline-1", "airline-2", "airline-4"]
    assert {task.id for task in environment._training} == {"airline-0", "airline-3"}
    assert environment.largest_menu() == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"domains": ["hotel"]}, "must be some of airline, retail, telecom, banking, not \\['hotel'\\]"),
        ({"source": "original", "domains": ["telecom"]}, "The original data are of airline and retail"),
        ({"source": "paper"}, "must be wheel or original, not paper"),
        ({"source": "original", "original": "/nowhere"}, "no original data of airline in /nowhere"),
        ({"evaluate": "some"}, "must be held_out or all, not some"),
        ({"user": None}, "must be scripted or the name of a model, not None"),
        ({"users": 2}, "are domains, .*, not users"),
    ],
)
def test_settings_that_cannot_be(package, options, said):
    with pytest.raises(ConfigError, match=said):
        Tau2Environment(cfg(**options))


def test_without_the_package(monkeypatch):
    monkeypatch.setattr("orchestra_jax.envs.tau2.package.folder", lambda: None)
    (problem,) = Tau2Environment.problems(cfg())
    assert "pip install --no-deps inspect-evals" in problem


TEXT = "Close a credit card. Closing fees: 12 dollars, 7 cents [see A-1]."


@pytest.mark.parametrize("pattern", ["close.*card", "fee|DOLLARS", r"\d+ (dollars|cents)", r"\[see", "clos(e|ing)"])
def test_a_search_finds_what_re_finds(pattern):
    assert Patterns.compile(pattern, Patterns.IGNORECASE).findall(TEXT) == re.findall(pattern, TEXT, re.IGNORECASE)


def test_a_pattern_that_is_none_is_told_as_re_tells_it():
    with pytest.raises(Patterns.error):
        Patterns.compile("(", Patterns.IGNORECASE)


def test_a_pattern_that_would_take_forever_is_an_error(monkeypatch):
    monkeypatch.setattr(package, "MOST_S", 0.0)
    with pytest.raises(TimeoutError, match=TOO_LONG):
        Patterns.compile("(x|x)+y(?!y)|(x+x+)+z").findall("x" * 5000)
