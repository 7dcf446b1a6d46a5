"""What a provider may be asked is a limit of the whole run, however many processes it has."""

import asyncio
from pathlib import Path

import pytest

from orchestra_jax.processes import Processes, several
from orchestra_jax.tools import build
from orchestra_jax.tools.experts import client
from orchestra_jax.tools.experts.expert import Expert
from tests.training.test_trainer import config

FILE = """
experts:
  gpt-5: {base_url: "http://vendor.invalid/v1", concurrency: 5, requests_per_minute: 90}
  qwen2.5-math-7b: {base_url: "http://own.invalid/v1", concurrency: 2}
"""
MENU = (
    "+experiment=hle", "tools.names=[]", "tools.evaluation.names=[]", "tools.judge=gpt-5", "tools.server.url=http://server.invalid/v1",
    "tools.server.concurrency=32", "tools.server.requests_per_minute=60",
)  # fmt: skip


@pytest.fixture
def experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The experts that one of several processes makes clients for, by name."""
    file, seen = tmp_path / "experts.yaml", dict[str, Expert]()
    file.write_text(FILE)
    cfg = config(tmp_path, *MENU, f"tools.experts_file={file}")

    def noted(found, *args, original=client.expert_clients, **settings):
        seen.update({expert.name: expert for expert in found})
        return original(found, *args, **settings)

    monkeypatch.setattr(client, "expert_clients", noted)

    def of(index: int, count: int) -> dict[str, Expert]:
        monkeypatch.setattr(several, "processes_of_run", lambda: Processes(index, count))
        asyncio.run(build.make_tools(cfg).close())
        return dict(seen)

    return of


def test_one_process_has_the_whole_limit(experts):
    found = experts(0, 1)
    names = ("gpt-5", "qwen2.5-math-7b", "gpt-5-mini")
    assert [found[name].concurrency for name in names] == [5, 2, 32]
    assert [found[name].requests_per_minute for name in names] == [90, None, 60]


@pytest.mark.parametrize(("count", "judge", "server"), [(2, [3, 2], [16, 16]), (3, [2, 2, 1], [11, 11, 10])])
def test_processes_share_the_limits_of_experts_file_judge_and_server(experts, count, judge, server):
    found = [experts(index, count) for index in range(count)]
    assert [each["gpt-5"].concurrency for each in found] == judge
    assert [each["gpt-5-mini"].concurrency for each in found] == server
    assert sum(each["gpt-5"].requests_per_minute for each in found) == pytest.approx(90)
    assert sum(each["gpt-5-mini"].requests_per_minute for each in found) == pytest.approx(60)
    # Nobody waits for ever: at least one request at a time each.
    assert all(each["qwen2.5-math-7b"].concurrency == 1 for each in found)
    assert all(each["qwen2.5-math-7b"].requests_per_minute is None for each in found)
