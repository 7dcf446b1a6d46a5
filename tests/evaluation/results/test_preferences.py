"""Eq. 5-6 over kept trajectories against NumPy, one question at a time."""

from pathlib import Path

import numpy as np
import pytest

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.evaluation.results.comparisons import question_scores
from orchestra_jax.evaluation.results.measured import measured
from orchestra_jax.evaluation.results.report import write_report
from tests.evaluation.results.kept_files import MENU, WEIGHTS, config, evaluation, row


def drawn(seed: int, **other) -> list[dict]:
    rng = np.random.default_rng(seed)
    return [
        row(
            f"q{number}", bool(rng.random() < 0.7), 500 * rng.random(), list(rng.choice(MENU, size=rng.integers(6))),
            latency_s=float(30 * rng.random()), member=sample, **other,
        )
        for number in range(8)
        for sample in range(2)
    ]  # fmt: skip


def score(trained: dict, start: dict) -> float:
    """Eq. 5-6, written out."""
    if not trained["solved"]:
        return 0.0

    def features(line: dict) -> list[float]:
        called = [call["name"] for call in line["sequences"][0][0]["calls"]]
        return [*(called.count(name) for name in line["tools"]), line["solved"], line["cost_usd"], line["latency_s"]]

    ours, base = features(trained), features(start)
    wanted = trained["weights"]
    p = [*(wanted["tools"].get(name, 0.0) for name in trained["tools"]), *list(wanted.values())[1:]]
    gains = [
        ours[k] / max(1, base[k]) if k <= len(trained["tools"]) else base[k] / max(1, ours[k]) for k in range(len(p))
    ]
    return float(np.dot(gains, p))


def test_scores_are_eq_5_and_6_on_what_was_asked_alike(tmp_path: Path) -> None:
    before, after = drawn(1), drawn(2)
    after[0]["weights"] = {**WEIGHTS, "outcome": 0.5}  # another preference: no pair
    after[2]["tools"] = before[2]["tools"] = ["expert-2"]  # menus have sizes of their own
    files = {"before/held_out.t1": before, "after/held_out.t1": after}
    one, other = measured(evaluation(tmp_path / "run", files, config(), kind="train"))
    found = question_scores(other, one)
    baselines: dict[str, list[float]] = {}
    for trained, start in list(zip(after, before, strict=True))[1:]:
        baselines.setdefault(trained["id"], []).append(score(trained, start))
    assert found == pytest.approx({name: np.mean(some) for name, some in baselines.items()}, rel=1e-5)
    assert len({round(value, 3) for value in found.values()}) > 4

    text = write_report([tmp_path / "run"], tmp_path / "out")[0].read_text()  # before is the base by itself
    (line,) = [line for line in text.splitlines() if line.startswith("| run, after | run, before")]
    _, _, questions, total, mean, interval, _ = [cell.strip() for cell in line.split("|")[1:-1]]
    assert questions == "8"
    assert float(total) == pytest.approx(sum(found.values()), abs=0.005)
    assert float(mean) == pytest.approx(np.mean(list(found.values())), abs=5e-5)
    low, high = map(float, interval.split(" to "))
    assert low < float(mean) < high
    assert "| published: Orchestrator-8B |  |  |  |  |  | 46.7 |" in text


def test_a_failed_sample_takes_its_own_pair_away_and_moves_no_other(tmp_path: Path) -> None:
    before, after = drawn(1), [{**line, "solved": True} for line in drawn(2)]
    before[0]["status"] = "failed"
    one, other = measured(evaluation(tmp_path / "run", {"before/t.t1": before, "after/t.t1": after}, config()))
    assert question_scores(other, one)["q0"] == pytest.approx(score(after[1], before[1]), rel=1e-5)


def test_another_run_is_the_base_where_it_is_named(tmp_path: Path) -> None:
    trained = evaluation(tmp_path / "trained", {"policy/held_out.t0": drawn(2)}, config())
    base = evaluation(tmp_path / "base", {"policy/held_out.t0": drawn(1)}, config())
    first, second = (write_report([trained, base], tmp_path / name, base) for name in ("out", "again"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]
    text = first[0].read_text()
    assert "| trained | base | 8 |" in text
    assert "| base | base |" not in text
    assert "preferences" not in write_report([trained, base], tmp_path / "out")[0].read_text()
    other = evaluation(tmp_path / "other", {"policy/held_out.t0": [row("else", True)]}, config())
    with pytest.raises(ConfigError, match="was asked none of the same questions"):
        write_report([trained], tmp_path / "out", other)
