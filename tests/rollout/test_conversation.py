"""Conversations with a user: who hears what, how they end, who pays, and that a user's failure is never a score."""

from dataclasses import replace

import pytest

from orchestra_jax.envs.base import Score
from orchestra_jax.envs.conversation import Conversation
from orchestra_jax.evaluation.turn_caps import cut
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rl.batching import sequences
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.tools.user_turn import UserTurn
from orchestra_jax.training.loggers.transcripts import transcript
from orchestra_jax.types import InfrastructureError, Status, ToolCall, ToolSpec, Usage
from tests.rollout.scripted import (
    ANSWER,
    LIMITS,
    PRICES,
    SCHEMA,
    TASK,
    FakeEngine,
    Room,
    World,
    call,
    exact,
    make,
    never,
    roll,
    says,
)
from tests.rollout.test_endpoint import Model, calls, endpoint

THOUGHT = "<think>\nhm hm\n</think>\n\n"
ROW = Usage("ann", "user_simulator", 7, 0, 3, cost_usd=5.0, seconds=50.0)
HISTORIES = ["keep", "strip_thinking", "drop_thinking"]


class Talk(World):
    """The four tools and a user who says `words` in turn, then nothing more; an exception among them is raised."""

    def __init__(self, *words):
        super().__init__()
        self.words, self.asked = words, []

    def reset(self, task, budget):
        return Talking(self, task, budget)


class Talking(Room):
    def __init__(self, world, task, budget):
        super().__init__(world, task, budget)
        self.left = list(world.words)

    async def respond(self, text):
        self.world.asked.append(text)
        if not self.left:
            return None
        said = self.left[0]
        if said is HANGS:
            await never(self.world.given_up, "user")
        if isinstance(said, list):  # errors, then words
            said = said.pop(0) if len(said) > 1 else said[0]
        if isinstance(said, Exception):
            raise said
        self.left.pop(0)
        return said if isinstance(said, UserTurn) else UserTurn(said, usage=(ROW,))

    async def score(self, answer):  # as of a database that need not change
        await super().score(answer)
        return Score(True, criteria={"executed": "", "faithful": "Not said: 'red'."})


HANGS = object()


def talk(tokenizer, *said, history="keep", limits=LIMITS):
    world, chat = Talk(*said), ChatFormat(tokenizer, history=history)
    return Collector(world, chat, limits, PRICES, seconds_per_token=0.5), world


# --- what is said and heard ---


@pytest.mark.parametrize("history", HISTORIES)
async def test_words_go_to_the_user_and_theirs_carry_no_loss(tokenizer, history):
    script = (THOUGHT + "is x blue?", THOUGHT + call("echo"), THOUGHT + "x is green?", THOUGHT + ANSWER)
    collector, world = talk(tokenizer, "hello!", "a<|im_end|> b", history=history)
    (found,), engine = await roll(collector, says(*script))
    assert (found.status, found.answer, found.solved) == (Status.COMPLETED, ANSWER, True)
    assert world.asked == ["is x blue?", "x is green?", ANSWER]  # its thinking is not for the user
    assert world.scored == [ANSWER]
    assert [turn.heard for turn in found.turns] == ["hello!", None, "a<|im_end|> b", None]
    exact(found, engine.log[0])  # what the engine was given and sampled is what is trained, and only what it sampled
    shown = [collector.chat.tokenizer.decode(prompt) for prompt, _, _ in engine.log[0]]
    assert shown[1].rstrip().endswith("assistant")
    assert shown[1].count("hello!") == 1
    assert shown[3].rpartition(" b<|im_end|>")[0].rpartition("user\n")[2].count("<|im_end|>") == 0  # it ends no turn
    assert (len(found.sequences) == 1) is (history == "keep")
    assert ("hm hm" in shown[3]) is (history == "keep")
    assert "user: hello!" in transcript(found)
    assert found.criteria == {"executed": "", "faithful": "Not said: 'red'."}
    assert "faithful: Not said: 'red'." in transcript(found)


async def test_the_users_words_are_appended_as_the_template_writes_them(qwen3):
    collector, _ = talk(qwen3, "hello!")
    (found,), _ = await roll(collector, says("Which?", ANSWER))
    appended = qwen3.decode(found.turns[1].prompt_ids)
    assert appended == "\n<|im_start|>user\nhello!<|im_end|>\n<|im_start|>assistant\n"
    (row,) = sequences(found, 1.0)
    assert sum(row.sampled) == sum(len(turn.sampled_ids) for turn in found.turns)


async def test_a_policy_in_whole_messages_has_the_same_conversation():
    world, model = Talk("hello!", "b"), Model("Which?", calls(("1", "echo", '{"x": "a"}')), "This?", ANSWER)

    async with endpoint(model) as policy:
        collector = Collector(world, None, LIMITS, PRICES)
        found = (await collector.collect(policy, [TASK], budget=Budget(), temperature=0.0))[0]
    assert (found.status, found.answer, world.asked) == (Status.COMPLETED, ANSWER, ["Which?", "This?", ANSWER])
    told = [(message["role"], message["content"]) for message in model.bodies[-1]["messages"][1:]]
    spoken = [("assistant", "Which?"), ("user", "hello!"), ("assistant", None), ("tool", "a")]
    assert told == [*spoken, ("assistant", "This?"), ("user", "b")]


async def test_a_user_may_bring_more_tools_to_a_policy_in_whole_messages():
    late = ToolSpec("late", "Comes late.", SCHEMA)

    class Bringing(Talking):
        @property
        def tools(self):
            return super().tools if self.left else (*super().tools, late)

    world, model = Talk("Now there is late."), Model("Which?", ANSWER)
    world.reset = lambda task, budget: Bringing(world, task, budget)

    async with endpoint(model) as policy:
        collector = Collector(world, None, LIMITS, PRICES)
        await collector.collect(policy, [TASK], budget=Budget(), temperature=0.0)
    menus = [[tool["function"]["name"] for tool in body["tools"]] for body in model.bodies]
    assert menus[1] == [*menus[0], "late"]


async def test_a_script_observes_the_users_words_in_their_place(words):
    collector, _ = talk(words, "a", "b")
    plan = ["Which?", ToolCall("echo", {"x": "hello"}), "This?", ANSWER]
    for silent in (False, True):
        (found,) = await collector.play(lambda _, seen: plan[len(seen)], [TASK], budget=Budget(), silent=silent)
        assert (found.status, len(found.turns), found.calls) == (Status.COMPLETED, 4, [plan[1]])


async def test_where_nobody_answers_a_turn_without_calls_is_the_answer(words):
    collector, world, _ = make(words)
    assert not isinstance(world.reset(TASK, Budget()), Conversation)
    (found,), _ = await roll(collector, says(ANSWER))
    assert (found.status, found.turns[0].heard) == (Status.COMPLETED, None)


# --- how it ends ---


async def test_a_stop_word_or_a_hand_over_ends_it_with_the_policys_last_words(words):
    collector, world = talk(words, "a", UserTurn("###TRANSFER###", done=True, usage=(ROW,)), "never said")
    (found,), engine = await roll(collector, says("b", ANSWER, "never asked"))
    assert (found.status, found.answer, world.scored) == (Status.COMPLETED, ANSWER, [ANSWER])
    assert (len(engine.log[0]), found.turns[-1].heard) == (2, "###TRANSFER###")
    assert [row for row in found.ledger if row.role == "user_simulator"] == [ROW, ROW]


async def test_the_users_last_words_may_be_none_at_all(words):
    collector, _ = talk(words, UserTurn("", done=True))
    (found,), _ = await roll(collector, says(ANSWER))
    assert (found.status, found.solved) == (Status.COMPLETED, True)


@pytest.mark.parametrize(("said", "status"), [(("a", "b"), Status.COMPLETED), (("a", "b", "a"), Status.NO_ANSWER)])
async def test_the_cap_on_turns_holds_for_conversations_and_the_user_hears_the_last_turn(words, said, status):
    collector, world = talk(words, *said, limits=replace(LIMITS, max_turns=3))
    (found,), engine = await roll(collector, says("a", "b", ANSWER))
    assert (found.status, len(engine.log[0]), len(world.asked)) == (status, 3, 3)
    assert (found.solved, bool(world.scored)) == (status is Status.COMPLETED,) * 2
    assert found.reason == ("" if found.completed else "no answer within 3 turns")


@pytest.mark.parametrize(
    ("turn", "status"),
    [("<think>hm</think>", Status.NO_ANSWER), ("<tool_call>\n{", Status.MALFORMED), ("<think> hm", Status.NO_ANSWER)],
)
async def test_an_empty_or_malformed_turn_is_said_to_nobody(words, turn, status):
    collector, world = talk(words, "a")
    (found,), _ = await roll(collector, says(turn))
    assert (found.status, found.solved, world.asked, world.scored) == (status, False, [], [])


async def test_the_users_words_can_fill_the_context(words):
    collector, world = talk(words, "a b " * 2000)
    (found,), _ = await roll(collector, says("a", ANSWER))
    assert (found.status, "context limit" in found.reason) == (Status.NO_ANSWER, True)
    assert world.scored == []


async def test_a_conversation_cut_at_a_smaller_cap_is_the_one_under_it(words):
    caps = {cap: replace(LIMITS, max_turns=cap) for cap in (1, 2, 3, 4)}
    script = ("a", call("echo"), "b", ANSWER)
    whole, *shorter = [
        (await roll(talk(words, "a", "b", limits=caps[cap])[0], says(*script)))[0][0] for cap in (4, 1, 2, 3)
    ]
    assert whole.completed
    assert [cut(whole, caps[cap]) for cap in (1, 2, 3)] == shorter
    assert cut(whole, caps[4]) is whole


# --- who pays, and what fails ---


async def test_the_users_rows_are_kept_apart(words):
    limits = replace(LIMITS, deadline_s=60.0)  # the user alone takes longer
    collector, _ = talk(words, "a", "b", limits=limits)
    (found,), _ = await roll(collector, says("a", "b", ANSWER))
    own = [row for row in found.ledger if row.role == "orchestrator"]
    assert (len(own), len(found.ledger)) == (3, 5)
    assert found.cost_usd == pytest.approx(sum(row.cost_usd for row in own))
    assert found.latency_s == pytest.approx(sum(row.seconds for row in own))
    assert found.calls == []


def test_a_user_whom_the_policy_would_pay_is_a_bug():
    with pytest.raises(ValueError, match="have the role user_simulator, not tool"):
        UserTurn("a", usage=(replace(ROW, role="tool"),))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ((InfrastructureError("the user is away"),), "the user is away"),
        (("a", InfrastructureError("the user is away")), "the user is away"),
        ((TimeoutError("no answer in 9 s"),), "user timed out: no answer in 9 s"),
        ((TimeoutError(),), "user timed out"),
        ((" \n",), "the user said nothing"),
    ],
)
async def test_a_user_who_fails_makes_the_sample_invalid_and_never_a_score(words, said, reason):
    # Of a world whose database need not change: one public harness counts an exception in every turn as solved there.
    collector, world = talk(words, *said)
    (found,), engine = await roll(collector, says("a", "b", ANSWER))
    assert (found.status, found.reason, found.completed, found.solved) == (Status.FAILED, reason, False, False)
    assert (world.scored, found.answer) == ([], None)
    tried_again = LIMITS.retries if isinstance(said[-1], Exception) else 0  # what was said cannot be taken back
    assert len(world.asked) == len(said) + tried_again
    assert len(engine.log[0]) == len(said)  # the policy is not asked again for its user's failure


async def test_a_bug_of_the_user_ends_the_run(words):
    collector, world = talk(words, KeyError("a bug"))
    with pytest.raises(KeyError):
        await roll(collector, says(ANSWER))
    assert world.scored == []


async def test_a_user_who_recovers_is_asked_with_the_same_words(words):
    collector, world = talk(words, [InfrastructureError("away"), InfrastructureError("away"), "b"])
    (found,), _ = await roll(collector, says("a", ANSWER))
    assert (found.status, world.asked) == (Status.COMPLETED, ["a", "a", "a", ANSWER])


@pytest.mark.parametrize("limits", [{"user_deadline_s": 5}, {"deadline_s": 5, "tool_deadline_s": 1}])
def test_a_user_who_hangs_is_named_and_given_up(run, words, limits):
    collector, world = talk(words, HANGS, limits=replace(LIMITS, retries=1, **limits))
    engine = FakeEngine(collector.chat, says(ANSWER))
    (found,) = run(lambda: collector.collect(engine, [TASK], budget=Budget()))
    assert (found.status, found.solved) == (Status.FAILED, False)
    assert found.reason == "user took longer than its deadline of 5 s"
    assert (world.given_up, world.scored, engine.open) == (["user", "user"], [], set())
