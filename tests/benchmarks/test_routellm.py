"""The area under quality against the share of strong calls, and routers that learn it on made tables."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import routellm
from benchmarks.routellm import CHEAP, STRONG, area, chance, gains, measured, policy_scores, trained
from orchestra_jax.config import record
from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.envs.recorded.environment import RecordedEnvironment
from orchestra_jax.envs.recorded.table import RecordedAnswer, RecordedQuestion, Recording
from orchestra_jax.models import checkpoint
from orchestra_jax.models.decoder import forward, logits
from orchestra_jax.models.families import preset_config
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.rollout.parsing import render_call
from tests.models.trees import drawn_params

GAIN = np.array([1, 0, 0, -1, 1, 0, 1, 0])


def test_the_area_of_chance_is_a_half_and_of_equal_scores_too():
    assert area(np.zeros(8), GAIN, 0).apgr == pytest.approx(0.5)
    found = chance(np.repeat(GAIN, 50), 2000, np.random.default_rng(0))
    assert found.interval[0] < found.apgr == 0.5 < found.interval[1]
    assert sum(found.interval) / 2 == pytest.approx(0.5, abs=0.01)


def test_the_area_of_a_router_that_knows_the_gain():
    """Closed are 1/2, 1, 3/2 of the gap after each of three calls, then 3/2 up to the last, which loses a half."""
    found = area(GAIN.astype(float), GAIN, 0)
    # Equal scores go together: the curve is straight from 0 to 3/2 at 3/8, flat to 7/8, and falls to 1.
    assert found.apgr == pytest.approx((3 * 0.75 + 4 * 1.5 + 1.25) / 8)
    assert found.half == 3 / 8
    backwards = area(-GAIN.astype(float), GAIN, 0).apgr
    assert backwards == pytest.approx(1 - found.apgr)


def test_the_interval_holds_the_area_and_is_narrower_with_more_questions():
    rng = np.random.default_rng(1)
    gain = rng.choice([-1, 0, 0, 1, 1], size=4000)
    score = gain + rng.normal(size=4000)
    few, many = area(score[:200], gain[:200], 200), area(score, gain, 200)
    for found in (few, many):
        assert 0.5 < found.interval[0] < found.apgr < found.interval[1]
    assert np.diff(many.interval) < np.diff(few.interval) / 2


def test_without_a_gap_there_is_no_area():
    with pytest.raises(ValueError, match="not right more often"):
        area(np.zeros(2), np.array([1, -1]), 0)


def made(count: int = 300) -> Recording:
    """The cheap model fails on hard questions, and its outputs there are unsure; a third of the questions is hard."""
    asked = [
        RecordedQuestion(f"q{n}", "hard" if n % 3 == 0 else "easy", f"{'Prove' if n % 3 == 0 else 'Say'} {n}", (), 9)
        for n in range(count)
    ]
    answers = {
        STRONG: {each.id: RecordedAnswer("sure", True, 9, 9) for each in asked},
        CHEAP: {
            each.id: RecordedAnswer("perhaps so" if each.family == "hard" else "sure", each.family == "easy", 9, 9)
            for each in asked
        },
    }
    return Recording.of_answers(asked, answers)


def test_routers_learn_on_the_training_split_who_is_needed():
    pytest.importorskip("sklearn", reason="pip install 'orchestra-jax[router]'")
    table = made()
    found, test = measured(table, 0, True, 100)
    assert len(test.questions) == 60
    assert gains(test).sum() == 20
    routers = set(found) - {"random"}
    assert {"classical router", "gain of the subject", "cascade that reads the output"} < routers
    for name in routers:
        assert found[name].apgr == pytest.approx(5 / 6, abs=0.01), name  # all hard ones first: 1 - 1/3 / 2
    assert found["random"].interval[0] < 0.5 < found["random"].interval[1]


def test_a_test_question_whose_text_training_has_is_left_out():
    pytest.importorskip("sklearn", reason="pip install 'orchestra-jax[router]'")
    table = made(90)
    split = table.split(0)
    copied, source = split["test"][0], split["train"][0]
    twin = RecordedQuestion(copied, table.questions[copied].family, table.questions[source].question, (), 9)
    twins = {name: twin if name == copied else each for name, each in table.questions.items()}
    again = Recording(twins, *(getattr(table, name) for name in list(Recording.__dataclass_fields__)[1:]))
    _, test = measured(again, 0, False, 10)
    assert set(test.questions) == set(split["test"]) - {copied}


LAYER = "model.family=tests.training.micro:OneLayer"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A run of `+experiment=routellm` on a small table, with a policy of random weights."""
    table = tmp_path / "mmlu.csv"
    rows = [f"q{n},law,Which {n}?,{n % 2 == 0},{n % 3 > 0}" for n in range(30)]
    table.write_text("\n".join([f"id,family,question,{CHEAP},{STRONG}", *rows]) + "\n")
    monkeypatch.syspath_prepend(str(Path(routellm.__file__).parent))  # as for a script
    words = f"env.options.path={table}", f"output_dir={tmp_path / 'run'}", LAYER, "warm_start.demonstrations=8"
    cfg = compose("+experiment=routellm", *words)
    chat = make_chat(cfg)
    model = preset_config(cfg.model, vocab_size=len(chat.tokenizer))
    policy = tmp_path / "run" / "policy"
    checkpoint.save(policy, model, drawn_params(model), tokenizer=chat.tokenizer)
    return replace(cfg, model=replace(cfg.model, path=str(policy), tokenizer=str(policy)))


def test_the_score_of_a_policy_is_the_log_odds_of_naming_the_strong_model_first(run: RunConfig):
    environment, chat = RecordedEnvironment(run), make_chat(run)
    tasks = environment.held_out(99)
    table = environment.recording.of([task.extra["question"] for task in tasks])
    config, params = checkpoint.load(run.model.path)
    scores = policy_scores(run, table)
    assert len(set(scores.tolist())) == len(tasks) == 6

    @jax.jit
    def logprobs_of(params, tokens):
        hidden, _ = forward(params, config, tokens, jnp.arange(tokens.shape[1])[None])
        return jax.nn.log_softmax(logits(params, config, hidden)[0])

    for task, score in [*zip(tasks, scores, strict=True)][:2]:
        episode = environment.reset(task, Budget())
        prompt = chat.prompt_ids(episode.messages, episode.tools)
        calls = {each.name: chat.encode(render_call(each.call)) for each in environment.experts(task)}
        (begun,) = {ids[:1] for ids in calls.values()}  # a scaffold, then a name: a token each
        tokens = np.zeros((1, 256), np.int32)  # of one length: one program; nothing reads what follows it
        tokens[0, : len(prompt) + 1] = *prompt, *begun
        logprobs = logprobs_of(params, tokens)[len(prompt)]
        assert score == pytest.approx(float(logprobs[calls[STRONG][1]] - logprobs[calls[CHEAP][1]]), abs=1e-4)


def test_a_run_is_scored_on_its_own_table_and_split(run: RunConfig):
    folder, path = Path(run.output_dir), Path(run.env.options["path"])
    with pytest.raises(SystemExit, match="holds no run"):
        trained(folder, path, 0)
    record.RunRecord(folder, run, "train").begin()
    assert trained(folder, path.with_name("gsm8k.csv"), 0) is None
    with pytest.raises(SystemExit, match=r"the split of env.seed=0: add --seed 0"):
        trained(folder, path, 1)
    environment = RecordedEnvironment(run)
    scorer = trained(folder, path, 0)
    assert scorer is not None
    assert scorer(environment.recording.of(environment.splits["validation"])).shape == (6,)
