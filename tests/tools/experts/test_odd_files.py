"""Files of experts, prices and descriptions that nobody should have written end in one sentence with their name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.money import price_files
from orchestra_jax.tools.experts import descriptions
from orchestra_jax.tools.experts.expert import read_experts

EXPERT = "experts: {e: {base_url: 'http://h/v1', %s}}"
LIST = "{id: a, date: d, source: s, entries: %s}"
DEEP = "[" * 2000 + "]" * 2000
CASES: list[tuple[Callable[[Path], Any], str]] = [
    *((read_experts, EXPERT % field) for field in (
        "max_tokens: many", "max_tokens: 1.5", "max_tokens: .nan", "timeout_s: .inf", "retries: [1]", "retries: null",
        "context_tokens: {}", "temperature: hot", "model: 5", "extra: [1]", "extra: {x: .inf}", "tokenizer: 7",
        "api_key_env: [A]", "no_such: 1", "1: 2", "concurrency: .nan", "max_tokens_field: []", "name: [x]",
    )),
    *((read_experts, text) for text in (
        "", "experts:", "experts: [e]", "experts: {e: [1]}", "experts: {1: {}}", "experts: {e: 5}", "experts: {e: }",
        "defaults: [1]\nexperts: {e: {}}", "experts: {e: {base_url: 5}}", "experts: {e: {base_url: '${nope}'}}",
        "experts: {e: {base_url: 'http://['}}", "experts: {", "a: \xe9", DEEP,
    )),
    *((price_files.load, LIST % entries) for entries in (
        "5", "[m]", "{m: 5}", "{m: }", "{1: {input: 1}}", "{m: {1: 1}}", "{m: {input: .nan}}", "{m: {input: [1]}}",
        "{m: {input: 2026-01-01}}", "{}, latencies: 5", "{}, latencies: {m: 5}", "{}, latencies: {m: {answer: x}}",
        "{}, latencies: {m: {answer: .inf}}", "{}, 5: 6",
    )),
    *((price_files.load, text) for text in ("", "[1]", "id: {", "id: \xe9", DEEP, "id: '${nope}'")),
    *((descriptions.load, text) for text in ("", "[]", "{", "\xe9", DEEP, '{"version": 1, "experts": {"e": 5}}', "5")),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(CASES)))
def test_an_odd_file_ends_in_one_sentence(tmp_path: Path, case: int) -> None:
    read, text = CASES[case]
    path = tmp_path / "odd.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"odd\.yaml") as caught:
        read(path)
    assert type(caught.value) is ValueError
    assert "\n" not in str(caught.value)
