"""What is new in an evaluation, by its record and that of the training."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from orchestra_jax.evaluation.results.offering import UNSEEN_PRICES, UNSEEN_TOOLS, Offering, offering, training_config
from tests.composed import composed
from tests.evaluation.results.kept_files import config, evaluation

PLAIN = {"names": ["python", "local_search"], "experts": {}}
PYTHON = {"names": ["python"], "experts": {}}


def hle(*overrides: str) -> dict:
    made = composed("+benchmark=hle", "data.eval_path=x", *overrides, name="evaluate")
    return {group: OmegaConf.to_container(made[group], resolve=True) for group in ("tools", "pricing")}


@pytest.mark.parametrize(
    ("overrides", "unseen"),
    [
        ([], ()),
        (["tools=unseen", "pricing.name=unseen"], (UNSEEN_TOOLS,)),  # a model that is new has no price that is known
        (["pricing.name=deepinfra"], (UNSEEN_PRICES,)),
        (["pricing.name=paper_train"], ()),
        (["pricing.name=fireworks"], ()),
        (["tools=offline"], ()),
    ],
)
def test_without_a_record_of_training_the_papers_counts(overrides: list[str], unseen: tuple[str, ...]) -> None:
    assert offering(hle(*overrides), None).unseen == unseen


def test_what_training_offered_is_known_and_nothing_else() -> None:
    def unseen(now: dict, before: dict) -> tuple[str, ...]:
        return offering(now, before).unseen

    gpt = {"names": [], "experts": {"generalist": ["gpt-5"]}}
    assert unseen(config(tools=PYTHON), config(tools=PLAIN)) == ()
    assert unseen(config(tools=PLAIN), config(tools=PYTHON)) == (UNSEEN_TOOLS,)
    in_evaluation = {**PYTHON, "evaluation": {**PLAIN, "own": True}}
    assert unseen(config(tools=in_evaluation), config(tools=in_evaluation)) == (UNSEEN_TOOLS,)
    other_role = {"names": [], "experts": {"math": ["gpt-5"]}}
    assert unseen(config(tools=other_role), config(tools=gpt)) == ()
    assert unseen(config(tools=gpt, prices="somebodys"), config(tools=gpt)) == (UNSEEN_PRICES,)

    def drawn(low: float, high: float) -> dict:
        made = config(tools={"names": [], "experts": {"generalist": ["qwen3-32b"]}}, prices="bedrock")
        return {**made, "pricing": {**made["pricing"], "randomise": {"lists": [], "low": low, "high": high}}}

    # Amazon asks .15 and .6, Novita AI .1 and .45, SambaNova and Cerebras .4 and .8.
    novita = config(tools=drawn(1, 1)["tools"], prices="novita")
    assert unseen(novita, drawn(0.1, 10.0)) == (UNSEEN_PRICES,)
    assert unseen(drawn(1.0, 1.0), drawn(0.5, 2.0)) == ()
    assert unseen(drawn(0.5, 2.0), drawn(1.0, 1.0)) == ()  # evaluation shows the list as it is
    several = {"name": "paper_train", "randomise": {"lists": ["groq", "cerebras"], "low": 1.0, "high": 1.0}}
    sambanova = config(tools=drawn(1, 1)["tools"], prices="sambanova")
    assert unseen(sambanova, {**sambanova, "pricing": several}) == ()
    assert unseen(novita, {**novita, "pricing": several}) == (UNSEEN_PRICES,)
    # What no list that is drawn sells costs what pricing.name asks.
    rare = config(tools={"names": [], "experts": {"generalist": ["claude-opus-4.1"]}}, prices="unseen")
    assert unseen(rare, {**rare, "pricing": several | {"name": "unseen"}}) == ()


def test_the_training_is_that_of_the_run_that_left_the_policy(tmp_path: Path) -> None:
    evaluation(tmp_path / "trained", {}, config(tools=PYTHON), kind="train")
    parents = [{"setting": "model.path", "path": str(tmp_path / "trained/policy"), "run": str(tmp_path / "trained")}]
    assert (training_config({"kind": "evaluate", "parents": parents}) or {})["tools"] == PYTHON
    evaluation(tmp_path / "base", {}, config(tools=PLAIN), kind="train")
    under = {"setting": "model.path", "path": "x", "run": str(tmp_path / "base")}
    adapters = {"setting": "adapters", "path": "y", "run": str(tmp_path / "trained")}
    assert (training_config({"kind": "evaluate", "parents": [under, adapters]}) or {})["tools"] == PYTHON
    assert training_config({"kind": "evaluate", "parents": [{"setting": "policy", "path": "http://x"}]}) is None
    assert training_config({}) is None


def test_words_say_what_is_on_offer() -> None:
    none = offering({**config(), "tools": {"names": ["python"], "menu": {"form": "none"}}}, None)
    offers = [none, offering(config(tools=PLAIN), None), offering(config(), None), offering({}, None)]
    assert [offer.words for offer in offers] == ["no tools", "basic tools", "tools and models", "tools not on record"]
    assert offers[1] == Offering(("python", "local_search"), "paper")
    simulated = {**PLAIN, "simulated": {"expert_small": {}}, "evaluation": {**PYTHON, "own": True}}
    assert offering(config(tools=simulated), None).tools == ("python", "expert_small")
    assert offering(config(tools=simulated), None).words == "tools and models"
    assert offering(config(tools=simulated), config(tools=simulated)).unseen == ()
    released = {**config()["tools"], "menu": {"form": "released", "subset": True}}
    assert offering(config(tools=released), None).words == "tools and models, the released form and random subsets"
