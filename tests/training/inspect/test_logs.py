"""Logs of Inspect say what the rollouts were. inspect-ai is in the environment of the slow tests only."""

import dataclasses
import sys
from pathlib import Path

import pytest

from orchestra_jax.config.schema import RewardConfig
from orchestra_jax.training.inspect.logs import write_logs
from orchestra_jax.types import Status
from tests.evaluation.results.test_pages import a_group


def test_without_inspect_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    with pytest.raises(ImportError, match=r"pip install 'orchestra-jax\[inspect\]'"):
        write_logs([], tmp_path, name="x", reward=RewardConfig())


@pytest.mark.slow
def test_a_log_holds_every_member(tmp_path: Path) -> None:
    log = pytest.importorskip("inspect_ai.log")
    group = a_group(1, 0)
    failed = dataclasses.replace(group.members[2], status=Status.FAILED, reason="the server was down")
    other = dataclasses.replace(a_group(1, 1), members=(*group.members[:2], failed), group=1)
    files = write_logs([group, other, a_group(7, 0)], tmp_path, name="a run", reward=RewardConfig())
    assert [file.name for file in files] == ["step-000001.eval", "step-000007.eval"]
    found = log.read_eval_log(str(files[0]))
    assert found.eval.viewer.trust_content is False
    assert (found.results.total_samples, found.results.completed_samples) == (6, 5)
    samples = {(sample.id, sample.epoch): sample for sample in found.samples}
    assert sorted(samples) == [(f"{g:04d} t-1", epoch) for g in (0, 1) for epoch in (1, 2, 3)]
    assert samples["0001 t-1", 3].error.message == "the server was down"
    solved = next(score for score in found.results.scores if score.name == "solved").metrics["mean"].value
    assert solved == pytest.approx(4 / 5)

    sample = log.resolve_sample_attachments(samples["0000 t-1", 2], "full")
    scores = {name: score.value for name, score in sample.scores.items()}
    assert scores["reward"] == pytest.approx(group.rewards[1])
    assert scores["advantage"] == pytest.approx(group.advantages[1])
    assert sum(value for name, value in scores.items() if name.startswith("term: ")) == pytest.approx(scores["reward"])
    assert [message.role for message in sample.messages] == ["user", "assistant", "tool", "assistant"]
    assert sample.messages[0].text.startswith("Who? </script>")
    (call,) = sample.messages[1].tool_calls
    assert (call.function, sample.messages[2].tool_call_id) == ("small", call.id)
    events = [event for event in sample.events if event.event in ("model", "tool")]
    assert [event.event for event in events] == ["model", "tool", "model"]
    assert sum(event.output.usage.total_cost for event in events[::2]) == pytest.approx(0.002)
