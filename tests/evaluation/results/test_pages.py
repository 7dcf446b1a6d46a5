"""Pages of rollouts: they say what the step saw, show model-written text as text, and work in a browser."""

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from orchestra_jax.config.schema import RewardConfig, RunConfig
from orchestra_jax.evaluation.group_files import StoredGroup
from orchestra_jax.evaluation.results.group_page import view
from orchestra_jax.evaluation.results.pages import write_pages
from orchestra_jax.rl.groups import group_arrays, reward_groups
from orchestra_jax.training.speed import shares
from orchestra_jax.types import Preference, Status, Task, ToolCall, ToolResult, ToolSpec, Trajectory, Turn, Usage

ODD = "</script><script>alert(1)</script><b>&'\" \ud83d"
TASK = Task(
    "t-1", f"Who? {ODD}", ("a",), (ToolSpec("big", f"knows {ODD}", {}, 0.5, 2.0), ToolSpec("small", "guesses", {})),
    Preference("cost", f"cheap {ODD}", {"small": 0.5}, 1.0, 0.75, 0.25), "lookup",
)  # fmt: skip


def member(number: int, tool: str, cost: float, *, group: int = 0, solved: bool = True) -> Trajectory:
    paid = Usage(tool, "tool", cost_usd=cost, seconds=2.0)
    own = Usage("orchestrator", "orchestrator", cost_usd=0.001, seconds=0.5)
    called = Turn(
        (1, 2), (3, 4), (-0.5, -1.25), 3, "stop", f"call {ODD}", (ToolCall(tool, {"q": ODD}),),
        (ToolResult(f"found {ODD}", (paid,)),),
    )  # fmt: skip
    said = Turn((5,), (6,), (-0.1,), 4, "length", "the end")
    return Trajectory(TASK, group, number, ((called, said),), Status.COMPLETED, "", ODD, solved, (own, paid, own))


def a_group(step: int = 1, group: int = 0) -> StoredGroup:
    members = (
        member(0, "big", 0.5, group=group), member(1, "small", 0.1, group=group),
        member(2, "small", 0.2, group=group, solved=False),
    )  # fmt: skip
    rewards, advantages, kept = reward_groups(
        group_arrays(members, 3), RunConfig().reward, RunConfig().algorithm.advantage
    )
    return StoredGroup(step, group, members, tuple(rewards[0].tolist()), tuple(advantages[0].tolist()), bool(kept[0]))


def test_the_terms_add_up_to_the_reward_and_the_turns_to_the_bill() -> None:
    group = a_group()
    shown = view(group, RewardConfig(), lambda ids: f"<{ids[0]}>")
    for n, one in enumerate(shown["members"]):
        assert sum(term["term"] for term in one["terms"]) == pytest.approx(group.rewards[n], abs=1e-6)
        assert one["turns"][-1]["cost"] == pytest.approx(group.members[n].cost_usd)
        assert one["turns"][-1]["seconds"] == pytest.approx(group.members[n].latency_s)
    assert [term["name"] for term in shown["members"][0]["terms"]] == ["big", "small", "outcome", "cost", "latency"]
    assert shown["tokens"]["turns"][1] == [[[1, 2], [3, 4], [-0.5, -1.25]], [[5], [6], [-0.1]]]
    assert shown["tokens"]["pieces"][3] == "<3>"


def test_tokens_show_how_far_the_learner_is_from_the_engine() -> None:
    first = np.float32([-0.75, -1.25, -0.1]).tolist()
    group = dataclasses.replace(a_group(), learner=((tuple(first),), None, None))
    shown = view(group, RewardConfig(), None)
    assert shown["tokens"]["turns"][0] == [
        [[1, 2], [3, 4], [-0.5, -1.25], [-0.25, 0.0]], [[5], [6], [-0.1], [pytest.approx(0, abs=1e-8)]],
    ]  # fmt: skip
    assert [len(turn) for turns in shown["tokens"]["turns"][1:] for turn in turns] == [3, 3, 3, 3]
    assert [one["scored"] for one in shown["members"]] == [True, False, False]
    assert [one["scored"] for one in view(a_group(), RewardConfig(), None)["members"]] == [False] * 3


@pytest.fixture
def site(tmp_path: Path) -> Path:
    scored = dataclasses.replace(a_group(1, 1), learner=(((-0.4, -1.25, -0.3),), None, None))
    groups = [a_group(1, 0), scored, a_group(7, 0)]
    metrics = [{"step": n, "reward/mean": 0.1 * n, "accuracy": 0.5} for n in range(1, 4)]
    return write_pages(iter(groups), tmp_path / "view", name="a run", reward=RewardConfig(), metrics=metrics).parent


def test_every_group_has_its_page_and_every_member_its_row(site: Path) -> None:
    assert sorted(file.name for file in site.iterdir()) == ["groups", "index.html", "rows.js"]
    names = ["000001-0000.html", "000001-0001.html", "000007-0000.html"]
    assert sorted(file.name for file in (site / "groups").iterdir()) == names
    columns, *rows = [json.loads(line) for line in re.findall(r"\[.+\]", (site / "rows.js").read_text())]
    assert len(rows) == 9
    assert dict(zip(columns, rows[-2], strict=True)) | {"reward": 0, "advantage": 0} == {
        "step": 7, "group": 0, "member": 1, "page": names[2], "task": "t-1", "family": "lookup", "preference": "cost",
        "status": "completed", "solved": True, "reward": 0, "advantage": 0, "cost": 0.102, "seconds": 3.0,
        "tools": ["small"],
    }  # fmt: skip
    middle = (site / "groups" / names[1]).read_text()
    assert f'<a href="{names[0]}">previous' in middle
    assert f'<a href="{names[2]}">next' in middle
    assert "data:image/png;base64," in (site / "index.html").read_text()


def test_the_index_tells_where_the_seconds_of_a_step_went(tmp_path: Path, site: Path) -> None:
    assert "seconds went" not in (site / "index.html").read_text()  # of a run that did not log its speed
    times = {"time/rollout": 6.0, "time/update": 10.0, "time/sync": 4.0}
    timed = [{"step": 1, **times, **shares([], times)}, {"step": 2, **times, **shares([], times), "mfu": 0.4}]
    index = write_pages([a_group(1, 0)], tmp_path / "other", name="a run", reward=RewardConfig(), metrics=timed)
    table = re.findall(r"<tr>(.+)</tr>", index.read_text())
    rows = [re.findall(r">([^<>]+)</t[hd]>", row) for row in table]
    assert rows[0] == ["step", "seconds", "update %", "sync %", "generate %", "sum %", "mfu"]
    assert rows[1] == ["1", "20.00", "50.0", "20.0", "30.0", "100.0"]
    assert rows[2] == ["2", "20.00", "50.0", "20.0", "30.0", "100.0", "0.4"]


def test_what_a_model_wrote_stays_text(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert text.count("<script") == text.count("</script>") == (2 if page.name == "index.html" else 1)
        assert "<b>" not in text


def test_without_groups_there_is_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no group of trajectories"):
        write_pages([], tmp_path, name="x", reward=RewardConfig())


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_the_pages_work_in_a_browser(site: Path) -> None:
    index = (site / "index.html").read_text()
    choose = '<script>const s = document.getElementById("filter-step"); s.value = "7"; s.onchange();</script>'
    (site / "chosen.html").write_text(index.replace("</body>", choose + "</body>"))
    colour = '<script>const m = document.getElementById("mode"); m.value = "MODE"; m.onchange();</script>'

    def coloured(number: int, mode: str) -> Path:
        page = (site / "groups" / f"000001-000{number}.html").read_text()
        shown = site / "groups" / f"{mode}-{number}.html"
        shown.write_text(page.replace("</body>", colour.replace("MODE", mode) + "</body>"))
        return shown

    def seen(page: Path) -> str:
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"file://{page}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout

    assert seen(site / "index.html").count('<td class="good">yes</td>') == 6
    chosen = seen(site / "chosen.html")
    assert (chosen.count('<td class="good">yes</td>'), "3 trajectories: 66.7 % solved" in chosen) == (2, True)
    tokens = re.findall(r'<span title="([^"]*)" style="([^"]*)">', seen(coloured(0, "logprob")))
    assert len(tokens) == 9  # sampled ones; those that were read have no colour
    assert ("id 4, log-probability -1.25, probability 0.287", "background: rgba(255, 80, 60, 0.25);") in tokens
    gap = seen(coloured(1, "gap"))
    tokens = re.findall(r'<span title="([^"]*)" style="([^"]*)">', gap)
    assert [colour for _, colour in tokens] == [
        "background: rgba(84, 174, 255, 0.45);",
        "background: rgba(255, 150, 50, 0.9);",
    ]
    assert tokens[1][0].endswith("; learner less engine -0.2")
    assert gap.count('<p class="faint">not scored</p>') == 2
    assert "not scored: the learner's log-probabilities before the update" in seen(coloured(0, "gap"))


def test_a_group_of_other_weights_has_other_terms() -> None:
    members = a_group().members
    cfg = dataclasses.replace(RunConfig(), reward=RewardConfig(compute=0.5, normalize_outcome=False))
    rewards, _, _ = reward_groups(group_arrays(members, 3), cfg.reward, cfg.algorithm.advantage)
    group = StoredGroup(1, 0, members, tuple(rewards[0].tolist()), (0.0,) * 3, True)
    found = [sum(t["term"] for t in one["terms"]) for one in view(group, cfg.reward, None)["members"]]
    np.testing.assert_allclose(found, rewards[0], atol=1e-6)
