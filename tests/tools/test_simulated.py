"""Simulated experts: rates of their skill table, the same answer for ever."""

import pytest

from orchestra_jax.tools.simulated import SimulatedExpert

QUESTIONS = [f"question {i}" for i in range(4000)]


def test_skill_is_the_share_of_right_answers():
    expert = SimulatedExpert("large", {"maths": 0.8, "facts": 0.0, "code": 1.0})
    share = {
        family: sum(expert.answer(q, "yes", family, ["no", "maybe"]) == "yes" for q in QUESTIONS) / len(QUESTIONS)
        for family in expert.skill
    }
    assert share["maths"] == pytest.approx(0.8, abs=0.025)  # four standard deviations
    assert (share["facts"], share["code"]) == (0.0, 1.0)


def test_answers_are_the_same_in_every_process():
    expert = SimulatedExpert("large", {"maths": 0.5}, seed=3)
    assert [expert.knows(q, "maths") for q in QUESTIONS[:12]] == GOLDEN


def test_experts_and_seeds_are_independent_and_harder_is_nested():
    def known(name: str, skill: float, seed: int = 0) -> set[str]:
        expert = SimulatedExpert(name, {"f": skill}, seed=seed)
        return {q for q in QUESTIONS if expert.knows(q, "f")}

    assert known("a", 0.3) < known("a", 0.6)
    for other in (known("b", 0.5), known("a", 0.5, seed=1)):
        assert len(known("a", 0.5) & other) / len(QUESTIONS) == pytest.approx(0.25, abs=0.03)


def test_wrong_answers_come_from_all_distractors_but_never_the_right_one():
    expert = SimulatedExpert("a", {"f": 0.0})
    assert {expert.answer(q, "1", "f", ["1", "2", "3"]) for q in QUESTIONS[:100]} == {"2", "3"}


def test_call_charges_price_and_simulated_seconds():
    result = SimulatedExpert("a", {"f": 1.0}, price_usd=0.02, latency_s=7.0).call("q", "x", "f", ["y"])
    assert (result.text, result.is_error) == ("x", False)
    assert [(row.name, row.cost_usd, row.seconds) for row in result.usage] == [("a", 0.02, 7.0)]


def test_errors():
    with pytest.raises(ValueError, match="no skill for 'g'"):
        SimulatedExpert("a", {"f": 1.0}).knows("q", "g")
    with pytest.raises(ValueError, match="No wrong answer"):
        SimulatedExpert("a", {"f": 0.0}).answer("q", "x", "f", ["x"])
    with pytest.raises(ValueError, match="within"):
        SimulatedExpert("a", {"f": 1.5})


GOLDEN = [False, False, True, True, True, False, True, False, True, True, False, False]
