"""+benchmark=NAME: what the paper evaluates, and the flags of experiments/evaluate.py."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.compose import compose as run_config
from orchestra_jax.config.flags import DRY_RUN, LIMIT, PATH, as_settings
from orchestra_jax.config.schema import RunConfig

CONF = Path(__file__).resolve().parents[2] / "conf"
NAMES = sorted(file.stem for file in (CONF / "benchmark").iterdir())


@pytest.fixture(scope="module")
def composed() -> dict[str, RunConfig]:
    overrides = ["data.path=questions.jsonl", "output_dir=out"]
    return {name: compose(f"+benchmark={name}", *overrides, name="evaluate") for name in NAMES}


def test_every_benchmark_is_greedy_and_keeps_what_it_pays_for(composed: dict[str, RunConfig]):
    assert {
        "bfcl",
        "database",
        "frames",
        "general_thought",
        "gsm8k",
        "hle",
        "jsonl",
        "new_tools",
        "quickstart",
        "quickstart_unseen",
        "recorded",
        "tau2",
        "toolscale",
    } == composed.keys()
    for cfg in composed.values():
        assert (cfg.evaluation.temperature, cfg.evaluation.greedy) == (0.0, False)
        assert (cfg.replay.mode, cfg.replay.path) == ("replay_or_record", "out/evaluation/calls.db")


def test_the_papers_protocol(composed: dict[str, RunConfig]):
    for name in ("frames", "hle", "general_thought"):
        cfg = composed[name]
        assert (cfg.rollout.limits.max_turns, cfg.pricing.name) == (50, "paper")
        assert (cfg.tools.evaluated.menu.subset, cfg.data.preferences) == (False, False)
        assert cfg.pricing.randomise.lists == []
    for name in ("gsm8k", "jsonl"):
        assert composed[name].rollout.limits.max_turns == 50


def test_flags_stand_for_settings():
    words = ["--limit", "3", "a=--limit", "--dry-run", "--limit=4", "--cfg", "job", "--limit"]
    assert as_settings(words, (LIMIT, DRY_RUN)) == [
        "evaluation.limit=3", "a=--limit", "evaluation.dry_run=true", "evaluation.limit=4", "--cfg", "job",
        "evaluation.limit=",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["log.csv", "my logs/week (1), a=b.csv", "it's.csv", "a\\b\\'c.csv", "d\\"])
def test_a_table_is_named_by_its_path_as_it_stands(name: str):
    words = as_settings([f"path={name}", "+experiment=my_logs"], [PATH])
    assert words[1:] == ["+experiment=my_logs"]
    assert run_config(*words).env.options["path"] == name
    assert as_settings(["path='a b.csv'"], [PATH]) == ["env.options.path='a b.csv'"]  # quoted already


def test_a_table_of_ones_own_trains_as_the_public_answers_do_but_sooner():
    own, public = run_config("+experiment=my_logs"), run_config("+experiment=recorded")
    by_name, menu = replace(public.tools.menu, aliases=False), public.tools.evaluation.menu
    evaluation = replace(public.tools.evaluation, menu=replace(menu, aliases=False))
    assert own.tools == replace(public.tools, menu=by_name, evaluation=evaluation)
    narrow = replace(public.pricing.randomise, lists=[], low=0.5, high=2.0)  # of the list that pricing.name names
    assert (own.model, own.pricing) == (public.model, replace(public.pricing, randomise=narrow))
    assert own.reward == replace(public.reward, cost_power=1.0)
    few = {"tasks_per_step": 48, "group_size": 12, "filtered_rows": "count", "kl_final": 0.2}
    few |= {"micro_tokens": 384, "row_widths": [32, 96]}
    few |= {"loss": replace(public.algorithm.loss, kl_coef=0.02), "optimizer": own.algorithm.optimizer}
    assert own.algorithm == replace(public.algorithm, **few)
    assert (own.rollout, own.algorithm.optimizer.name) == (public.rollout, "muon")
    shorter = ("steps", "growing_steps", "batch_size", "demonstrations", "check_every")
    sooner = {key: getattr(own.warm_start, key) for key in shorter}
    sooner["optimizer"] = replace(public.warm_start.optimizer, warmup_steps=20)
    assert own.warm_start == replace(public.warm_start, **sooner)
    assert own.warm_start.steps < public.warm_start.steps
    assert (own.env.options["path"], own.env.options["evaluate"]) == (None, "both")
    assert own.env.options["wishes"].keys() == public.env.options["wishes"].keys()
    assert own.env.options["repeats"] is None  # kinds of the public answers, which no log of one's own has
