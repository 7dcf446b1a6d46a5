"""What 2,000 drawn instances of the paper's training menu offer: preferences, descriptions, latencies and prices."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import PricingConfig, RunConfig
from orchestra_jax.config.tools import ExpertServer, ToolsConfig
from orchestra_jax.data.preference_pairs import OWN
from orchestra_jax.money import price_files
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.price_book import PriceDraw, price_book
from orchestra_jax.money.replay import Replay
from orchestra_jax.tools.build import make_tools, tool_problems
from orchestra_jax.tools.catalogue import Catalogue, instance_seed
from orchestra_jax.tools.experts.cards import model_cards
from orchestra_jax.tools.experts.descriptions import flaw
from orchestra_jax.tools.experts.expert import Expert
from orchestra_jax.tools.experts.run_experts import run_experts
from tests.tools.openai_stub import StubOpenAI

CONF = Path(__file__).resolve().parents[2] / "conf"
FOR_OUTCOME = {"accuracy", "low_cost", "fast"}
COUNT = 2000


def shipped(name: str) -> dict[str, list[str]]:
    """Models by role of a file of conf/tools."""
    found = OmegaConf.to_container(OmegaConf.load(CONF / "tools" / f"{name}.yaml"))
    assert isinstance(found, dict)
    experts: dict[str, list[str]] = found["experts"]
    return experts


def hle(*overrides: str) -> RunConfig:
    return compose("+experiment=hle", *overrides)


@pytest.fixture(scope="module")
def cfg(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """`+experiment=hle`'s tools and prices; the calls are only replayed, so nothing is opened."""
    record = tmp_path_factory.mktemp("record") / "calls.db"
    Replay(record, "record").close()
    return hle("replay.mode=replay", f"replay.path={record}")


@pytest.fixture(scope="module")
def catalogue(cfg: RunConfig) -> Catalogue:
    return make_tools(cfg).catalogue


@pytest.fixture(scope="module")
def instances(catalogue: Catalogue) -> list:
    return [catalogue.instance(instance_seed(0, str(n), 0)) for n in range(COUNT)]


def test_preferences_are_for_tools_and_for_models(instances: list):
    followed = [{pairs[0].name for pairs, _ in OWN.fitting(instance.tools, "train")} for instance in instances]
    allowed = [bool(names - FOR_OUTCOME) for names in followed]
    assert np.mean(allowed) > 0.99  # .52 once
    weighted = []
    for seed, instance in enumerate(instances):
        weights = OWN.draw(instance.tools, np.random.default_rng(seed)).tools
        assert weights.keys() <= {spec.name for spec in instance.tools}
        weighted.append((bool(weights), any("/" in instance.record["tools"][name] for name in weights)))
    tools, models = np.mean(weighted, axis=0)
    assert tools > 0.55  # .22 once
    assert models > 0.5  # 0 once


def test_an_open_model_is_at_home_in_half_of_the_menus_in_all_its_roles(instances: list):
    hosted = defaultdict(list)
    for instance in instances:
        local = defaultdict(set)
        for spec in instance.tools:
            role, _, model = instance.record["tools"][spec.name].partition("/")
            if model:
                local[model].add(spec.local)
                assert ("Runs locally" in spec.description) == spec.local, role
        for model, found in local.items():
            assert len(found) == 1
            hosted[model].append(found.pop())
    for model, found in hosted.items():
        share = 0.5 if model_cards()[model].open_weights else 0.0
        assert abs(np.mean(found) - share) < 4 * (share / len(found)) ** 0.5 + 1e-9, model


def test_every_model_shows_its_latency_and_a_description_of_its_own(instances: list, catalogue: Catalogue):
    about = defaultdict(set)
    for instance in instances:
        for spec in instance.tools:
            model = instance.record["tools"][spec.name].partition("/")[2]
            if model:
                assert "Latency: about" in spec.description, model
                card = model_cards()[model]
                assert card.about in spec.description
                assert f"Made by {card.maker}" in spec.description
                about[card.about].add(model)
    assert len(about) == 13
    assert all(len(models) == 1 for models in about.values())


def test_every_price_varies_between_instances(instances: list, catalogue: Catalogue, cfg: RunConfig):
    prices = defaultdict(list)
    sold = {model for models in cfg.tools.experts.values() for model in models} | {"python", "web_search"}
    for instance in instances:
        drawn = catalogue.book.prices(PriceDraw(**instance.record["prices"])).entries
        for name in sold | {"orchestrator"}:
            price = drawn[name]
            prices[name].append(price.input + price.output + price.call + price.second)
    spread = {name: float(np.std(found) / np.mean(found)) for name, found in prices.items()}
    assert min(spread.values()) > 0.35, spread  # 0 once for seven of sixteen
    own = price_book(cfg).base.entries
    assert own["orchestrator"] == own["qwen3-8b"]


def test_evaluation_offers_the_papers_menu_at_the_papers_prices(cfg: RunConfig, catalogue: Catalogue):
    evaluation, paper = make_tools(cfg).evaluation, price_files.load(CONF / "pricing" / "paper.yaml")
    offered = {f"{role}/{model}" for role, models in shipped("paper_eval").items() for model in models}
    told = set()
    for seed in range(50):
        instance = evaluation.instance(seed)
        assert set(instance.record["tools"].values()) == offered | {"python", "local_search", "web_search"}
        told.add(frozenset(spec.description for spec in instance.tools))
        prices = evaluation.book.prices(PriceDraw(**instance.record["prices"]))
        for name in {model for models in shipped("paper_eval").values() for model in models} | {"qwen3-8b", "python"}:
            assert prices.entries[name] == paper.entries[name]
            assert prices.latencies.get(name) == paper.latencies.get(name)
    assert len(told) == 1
    assert {"query_writer/gpt-5", "generalist/deepseek-r1"} <= catalogue.entries.keys() - evaluation.entries.keys()


@pytest.mark.parametrize(
    ("tools", "prices"),
    [("unseen", "unseen"), ("paper_train", "unseen"), ("paper_eval", "deepinfra"), ("released", "paper_train"),
     ("offline", "paper"), ("simulated", "paper")],
)  # fmt: skip
def test_a_menu_goes_with_the_prices_of_an_experiment(tools: str, prices: str, cfg: RunConfig):
    composed = hle(f"tools={tools}", f"pricing.name={prices}", "replay.mode=replay", f"replay.path={cfg.replay.path}")
    assert tool_problems(composed) == []
    made = make_tools(composed)
    for offer in (made.catalogue, made.evaluation):
        assert offer.instance(0).tools


@pytest.mark.parametrize("name", ["paper_train", "paper_eval", "unseen", "released"])
def test_every_model_of_a_menu_has_a_card_fit_to_be_shown(name: str):
    cards = model_cards()
    for model in {model for models in shipped(name).values() for model in models}:
        assert flaw(cards[model].about, Expert(model, model, "http://127.0.0.1:9/v1"), []) is None
        Expert(model, model, "http://127.0.0.1:9/v1", **{"max_tokens": 2048, **cards[model].api})
    assert len({card.about for card in cards.values()}) == len(cards)


@pytest.mark.parametrize("model", ["gpt-5", "gpt-5-mini", "o3-mini", "qwen2.5-math-7b", "qwen3-32b", "llama-3.3-70b"])
@pytest.mark.parametrize("listed", [False, True])
async def test_every_request_is_one_that_its_model_takes(
    model: str, listed: bool, tmp_path: Path, cfg: RunConfig, stub: StubOpenAI
):
    stub.context = model_cards()[model].api["context_tokens"]
    if listed:
        (tmp_path / "experts.yaml").write_text(f"experts:\n  {model}: {{base_url: '{stub.url}'}}\n")
    tools = ToolsConfig(
        experts={"generalist": [model]},
        server=ExpertServer(url=None if listed else stub.url),
        experts_file=str(tmp_path / "experts.yaml") if listed else None,
        judge=model,
    )
    made = make_tools(RunConfig(tools=tools, pricing=PricingConfig(name="unseen")))
    assert made.judge is not None
    stub.reply = lambda body: '{"reason": "So it is.", "verdict": "correct"}'
    budget, entry = Budget(), made.catalogue.entries[f"generalist/{model}"]
    result = await entry.handler({"question": "How much is 6 times 7?"}, budget)
    assert not getattr(result, "is_error", False)
    assert (await made.judge.judge("6 * 7?", "42", ["42"], budget=budget)).correct
    await made.close()
    asked = [body.get("max_completion_tokens") or body["max_tokens"] for body in stub.bodies]
    assert asked == [model_cards()[model].api.get("max_tokens", 4096)] * 2
    if model.startswith(("gpt-5", "o3")):  # what it reasons is a part of the reply
        assert min(asked) >= 25000
        assert all("temperature" not in body for body in stub.bodies)


def test_what_the_config_says_of_a_server_wins_over_the_cards():
    tools = ToolsConfig(
        experts={"generalist": ["gpt-5"]}, server=ExpertServer(url="http://127.0.0.1:9/v1", max_tokens=512)
    )
    (expert,) = run_experts(RunConfig(tools=tools))
    assert (expert.max_tokens, expert.max_tokens_field, expert.temperature) == (512, "max_completion_tokens", None)
