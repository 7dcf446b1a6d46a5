"""The chat of a small policy on recorded answers: what it reads of a menu, and nothing of questions it is judged on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.config.schema import ConfigError, ModelConfig
from orchestra_jax.envs.recorded.environment import RecordedEnvironment
from orchestra_jax.envs.recorded.offer import all_prices, shown_price, tool_name
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.rollout.parsing import parse_tool_calls, render_call
from orchestra_jax.types import ToolCall
from tests.envs.recorded.made import config, made_rows, write

WISHES = {"none": {"compute": 0.5}, "accuracy": {"compute": 0.1}, "low_cost": {"compute": 1.0}}


def own(table: Path, **options):
    return replace(config(str(table), **options), model=ModelConfig(random_init=True, tokenizer="environment"))


def test_a_prompt_has_the_question_the_wish_and_one_line_for_each_tool(table: Path, capsys):
    cfg = own(table, wishes=WISHES)
    chat = make_chat(cfg)
    assert capsys.readouterr().out == ""  # the environment tells what was read, once
    environment = RecordedEnvironment(cfg)
    task = next(environment.train_tasks(1))[0]
    episode = environment.reset(task, Budget())
    lines = chat.render(episode.messages, episode.tools).split("\n")
    menu = [spec.name if spec.name == "python" else f"{spec.description}:{spec.name}" for spec in task.tools]
    assert [line.removesuffix("<|im_end|>") for line in lines[-len(task.tools) :]] == menu
    assert task.preference.instruction in "\n".join(lines)
    assert "\n".join(lines).startswith(f"<|im_start|>{task.question}")
    ids = chat.prompt_ids(episode.messages, episode.tools)
    assert chat.spelled(ids) == chat.render(episode.messages, episode.tools)


def test_pieces_come_from_training_questions_alone(tmp_path: Path):
    rows = made_rows()
    table = write(tmp_path / "t.jsonl", rows)
    judged = {name for split in ("validation", "test") for name in RecordedEnvironment(own(table)).splits[split]}
    before = make_chat(own(table)).tokenizer.backend_tokenizer.to_str()
    for row in rows:
        if row["id"] in judged:
            row["question"] = f"{row['question']} {'Zanzibar ' * 20}"
    assert make_chat(own(write(table, rows))).tokenizer.backend_tokenizer.to_str() == before
    for row in rows:
        row["question"] += " Zanzibar" * 20
    assert (
        " Zanzibar".replace(" ", "Ġ")
        in json.loads(make_chat(own(write(table, rows))).tokenizer.backend_tokenizer.to_str())["model"]["vocab"]
    )


def test_a_call_is_read_back_as_it_was_written(table: Path):
    chat = make_chat(own(table))
    call = ToolCall("K", {})
    ids = chat.encode(render_call(call))
    assert len(ids) == 3
    assert parse_tool_calls(chat.decode(ids)) == [call]
    assert len(chat.encode(render_call(ToolCall("relay", {})))) == 1
    tool = chat.observation_ids(['<tool_call>\n{"name": "relay", "arguments": {}}\n</tool_call>'])
    assert chat.encode(render_call(ToolCall("relay", {})))[0] not in tool  # a tool cannot call


def test_every_model_is_one_token_in_the_menu_and_in_its_call(table: Path):
    cfg = own(table)
    cfg = replace(cfg, tools=replace(cfg.tools, menu=replace(cfg.tools.menu, aliases=False)))
    chat, task = make_chat(cfg), next(RecordedEnvironment(cfg).train_tasks(1))[0]
    models = [spec.name for spec in task.tools if spec.name not in ("python", "relay")]
    assert {tool_name(model) for model in RecordedEnvironment(cfg).recording.models} >= set(models)
    for name in ("python", *models):
        ids = chat.encode(render_call(ToolCall(name, {})))
        assert len(ids) == 3
        assert ids[1] in chat.encode(f"\n{name}\n")


def test_a_price_of_a_menu_is_one_token(table: Path):
    chat = make_chat(own(table))
    assert len(set(all_prices())) == len(all_prices()) == 1 + 24 * 8 + 1
    for price in all_prices():
        assert [chat.decode([token]) for token in chat.encode(f"87/96 {price} 3s")][-2:] == [f" {price}", " 3s"]


@pytest.mark.parametrize(
    ("usd", "shown"),
    [
        (0, "$0"),
        (1e-6, "$1"),
        (1.04e-6, "$1"),
        (1.06e-6, "$1.1"),
        (0.0028, "$2900"),
        (0.00268, "$2600"),
        (2e-7, "$0.2"),
    ],
)
def test_a_price_is_shown_by_the_nearest_of_24_steps_a_decade(usd: float, shown: str):
    assert shown_price(usd) == shown
    assert shown in all_prices()


def test_a_question_is_posed_under_several_wishes_with_one_menu(table: Path):
    cfg = own(table, wishes=WISHES)
    cfg = replace(cfg, data=replace(cfg.data, preferences_per_question=3))
    batch = next(RecordedEnvironment(cfg).train_tasks(6))
    for first in (0, 3):
        posed = batch[first : first + 3]
        assert {task.preference.name for task in posed} == set(WISHES)
        assert len({(task.id, str(task.tools), json.dumps(task.extra)) for task in posed}) == 1
    assert batch[0].id != batch[3].id


def test_more_wishes_than_there_are_are_refused_in_a_sentence(table: Path):
    cfg = own(table, wishes=WISHES)
    for data in (
        replace(cfg.data, preferences_per_question=4),
        replace(cfg.data, preferences_per_question=2, preferences=False),
    ):
        with pytest.raises(ConfigError, match=r"preferences_per_question=\d poses .* lower it, or add wishes"):
            RecordedEnvironment(replace(cfg, data=data))
