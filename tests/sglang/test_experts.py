"""Every expert role on a real SGLang server: its OpenAI endpoint, its usage against the tokenizer's own count."""

import pytest
from transformers import AutoTokenizer

from orchestra_jax.config.roles import Role
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import Price, PriceList
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.experts.expert import Expert
from orchestra_jax.tools.experts.judge import Judge
from orchestra_jax.tools.experts.roles import UserSimulator, expert_tool
from orchestra_jax.types import InfrastructureError
from tests.sglang.conftest import TALKING_LENGTH

pytestmark = pytest.mark.sglang
PRICES = PriceList("p", "d", "s", {"tiny": Price(input=1.0, output=2.0)})
NEW_TOKENS = 12


class Watched(ExpertClient):
    """Keeps what was asked and answered."""

    seen: list

    async def chat(self, messages, **options):
        completion = await super().chat(messages, **options)
        self.seen.append((messages, completion))
        return completion


async def test_every_role_and_every_token(victim, folder):
    expert = Expert(
        "tiny", "tiny", f"{victim.url}/v1", context_tokens=2000, max_tokens=NEW_TOKENS, temperature=1.0,
        tokenizer=str(folder), extra={"ignore_eos": True},
    )  # fmt: skip
    client = Watched(expert, PRICES)
    client.seen = []
    budget = Budget()
    for spec, handle in (
        expert_tool(Role.query_writer, client),
        expert_tool(Role.code_writer, client),
        expert_tool(Role.math, client),
        expert_tool(Role.generalist, client),
    ):
        await handle(
            {**dict.fromkeys(spec.parameters["required"], "Pourquoi l'été? 北京"), "context": "x" * 50}, budget
        )
    await UserSimulator(client, "You are Ann.").reply([{"role": "assistant", "content": "Hello."}], budget=budget)
    with pytest.raises(InfrastructureError, match="no verdict in 2 samples"):  # random weights judge nothing
        await Judge(client).judge("q", "a", ["b"], budget=budget)
    await expert_tool(Role.generalist, client)[1](
        {"question": "Why?", "context": "long " * 2000}, budget
    )  # cut to the context
    await client.close()

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert [completion.usage[0].role for _, completion in client.seen] == ["tool"] * 4 + ["user_simulator"] + [
        "judge"
    ] * 2 + ["tool"]
    for messages, completion in client.seen[:-1]:
        (row,) = completion.usage
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert row.prompt_tokens == len(tokenizer(text, add_special_tokens=False)["input_ids"])
        assert row.prompt_tokens <= client.counter.most(messages)
        assert (row.completion_tokens, completion.finish_reason, row.estimated) == (NEW_TOKENS, "length", False)
    (cut,) = client.seen[-1][1].usage
    assert 1800 < cut.prompt_tokens <= 2000 - NEW_TOKENS
    rows = [row for _, completion in client.seen for row in completion.usage]
    assert budget.spent.calls == len(rows) == 8
    assert budget.spent.tokens == sum(row.prompt_tokens + row.completion_tokens for row in rows)
    assert budget.spent.usd == pytest.approx(sum(row.cost_usd for row in rows), rel=1e-12)


async def test_a_context_that_is_said_too_long(victim, folder):
    """The server's own words for it are understood, and the prompt is cut until it fits."""
    expert = Expert(
        "tiny", "tiny", f"{victim.url}/v1", context_tokens=9000, max_tokens=NEW_TOKENS, tokenizer=str(folder)
    )
    client = ExpertClient(expert, PRICES, backoff_s=0.01)
    budget = Budget()
    (row,) = (await client.chat([{"role": "user", "content": "abc " * 1700}], budget=budget)).usage
    await client.close()
    assert 2500 < row.prompt_tokens < TALKING_LENGTH
    assert budget.spent.calls == 1
