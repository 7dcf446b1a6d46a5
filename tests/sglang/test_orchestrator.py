"""A stock SGLang server with its tool parser as the orchestrator, beside our engine on the same weights, greedy.

Same calls, same answers, same score: not the same tokens. The server's chat endpoint writes `strict` and
`defer_loading` into each tool of the menu, so its prompts are a few tokens longer than ours. The policy here
(`talker`) is one that such tokens do not move.
"""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.engines.sglang.process import SGLangProcess
from orchestra_jax.models.checkpoint import safetensors
from orchestra_jax.rollout.parsing import OPEN
from orchestra_jax.training.evaluate import evaluate
from tests.sglang.conftest import CONFIG, PARAMS, START_SECONDS, engine_on
from tests.sglang.talker import RIGHT, WRONG, talking

pytestmark = pytest.mark.sglang
QUESTIONS = [f"How much is 7 + 7{' exactly' * (n // 3)}{'!' * (n % 3)}?" for n in range(6)]
PRICE = ("evaluation.endpoint.input=0.2", "evaluation.endpoint.output=0.2")


def evaluated(folder: Path, name: str, policy: str, *overrides: str) -> tuple[dict[str, Any], list[Any], list[str]]:
    """Figures of an evaluation; of each question the calls with their results, the answer and its score; the texts of
    the turns that made a call.
    """
    cfg = compose(
        "+benchmark=jsonl", f"data.path={folder}/questions.jsonl", f"output_dir={folder}/{name}", f"policy={policy}",
        "tools.names=[]", "tools.search.corpus=null", "rollout.history=strip_thinking", "rollout.limits.max_turns=4",
        "rollout.limits.max_length=2500", "rollout.limits.max_new_tokens=16", "rollout.widths=[1024]",
        "replay.mode=off", *overrides, name="evaluate",
    )  # fmt: skip
    experts = {name: {"skill": {"*": 0.5}, "price_usd": 0.01, "latency_s": 1.0} for name in ("expert-1", "expert-2")}
    evaluate(replace(cfg, tools=replace(cfg.tools, simulated=experts)))
    kept = folder / name / "evaluation"
    rows = map(json.loads, (kept / "trajectories" / "policy" / "held_out.t0.jsonl").read_text().splitlines())
    found, calling = [], []
    for row in sorted(rows, key=lambda row: row["id"]):
        turns = [turn for turns in row["sequences"] for turn in turns]
        texts = [[result["text"] for result in turn["results"]] for turn in turns]
        calls = [turn["calls"] for turn in turns]
        found.append((row["id"], row["status"], calls, texts, row["answer"], row["solved"]))
        calling += [turn["text"] for turn in turns if turn["calls"]]
    return json.loads((kept / "summary.json").read_text())["benchmarks"]["held_out"], found, calling


async def test_a_stock_server_with_its_parser_orchestrates_like_our_engine(
    victim: SGLangProcess, folder: Path, tmp_path: Path
):
    rows = [{"question": question, "answer": "14"} for question in QUESTIONS]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    params, policy = talking(PARAMS[0], folder), tmp_path / "policy"
    safetensors.save(policy, replace(CONFIG, max_position_embeddings=4096), params)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, policy / name)
    engine = engine_on([victim], tmp_path)
    async with asyncio.timeout(START_SECONDS):
        await engine.update_weights(params, 1)
        model = (f"{victim.url}/v1", "evaluation.endpoint.model=policy", *PRICE)
        stock, said, stripped = await asyncio.to_thread(evaluated, tmp_path, "theirs", *model)
        await engine.update_weights(PARAMS[0], 2)
        await engine.close()
    own, expected, sampled = await asyncio.to_thread(evaluated, tmp_path, "ours", str(policy))
    assert sorted(len(calls) for _, _, calls, *_ in expected) == [1, 1, 2, 2, 3, 3]
    assert said == expected
    # The server's parser found the calls, and not ours in the text that it left.
    assert len(stripped) == len(sampled) > 0
    assert not any(OPEN in text for text in stripped)
    assert all(OPEN in text for text in sampled)
    assert {answer for *_, answer, _ in said} == {RIGHT, WRONG}
    names = ("accuracy", "valid_rate", "calls", "refused", "failed")
    assert {name: stock[name] for name in names} == {name: own[name] for name in names}
    assert (own["accuracy"], own["failed"], own["refused"]) == (4 / 6, 0, 2 / 6)
