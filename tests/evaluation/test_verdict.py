"""The verdict of a run: its words by hand-worked figures, and whose questions are counted."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestra_jax.evaluation.verdict import AnsweredQuestion, sentences, verdict
from orchestra_jax.types import Preference, Status, Task, ToolCall, ToolResult, Trajectory, Turn, Usage


def outcomes(right: int, wrong: int, *cents: float) -> list[AnsweredQuestion]:
    """So many right and wrong questions, at these cents in turn."""
    flags = [1.0] * right + [0.0] * wrong
    return [AnsweredQuestion(flag, cents[number % len(cents)]) for number, flag in enumerate(flags)]


def shifted(first: Sequence[AnsweredQuestion], gained: int, lost: int, cents: float) -> list[AnsweredQuestion]:
    """The same questions at other cents, where so many wrong ones are right now, and so many right ones wrong."""
    flags = [each.right for each in first]
    for flag, count in ((0.0, gained), (1.0, lost)):
        for place in [number for number, each in enumerate(first) if each.right == flag][:count]:
            flags[place] = 1.0 - flag
    return [AnsweredQuestion(flag, cents) for flag in flags]


def test_as_often_right_and_cheaper():
    best = outcomes(180, 20, 0.16)
    found = sentences(shifted(best, 4, 6, 0.056), best, "big")
    assert found.startswith(
        "On 200 questions that training has not seen: 89.0 % right at .0560 cents; your best model alone (big): 90.0 % "
        "at .160. As often right, within chance (difference -1.0 points, 95 % interval -4"
    )
    assert found.endswith(") and 65 % cheaper.")


def test_tiny_costs_are_those_of_a_thousand_questions():
    best = outcomes(180, 20, 0.278)
    found = sentences(shifted(best, 0, 0, 0.000586), best, "big")
    assert ": 90.0 % right at .586 cents per 1,000 questions; your best model alone (big): 90.0 % at 278. As" in found
    assert "right at 0 cents; your best" in sentences(shifted(best, 0, 0, 0.0), best, "big")


def test_more_often_right():
    best = outcomes(160, 40, 0.2)
    found = sentences(shifted(best, 20, 0, 0.3), best, "big")
    assert "90.0 % right at .300 cents; your best model alone (big): 80.0 % at .200. More often right (differ" in found
    assert "(difference 10.0 points, 95 % interval 6" in found
    assert found.endswith(", but 50 % dearer.")
    assert sentences(shifted(best, 20, 0, 0.1), best, "big").endswith(") and 50 % cheaper.")
    assert sentences(shifted(best, 20, 0, 0.2), best, "big").endswith(") and for the same money, within chance.")


def test_less_often_right():
    best = outcomes(180, 20, 0.2)
    found = sentences(shifted(best, 0, 20, 0.02), best, "big")
    assert "80.0 % right at .0200 cents; your best model alone (big): 90.0 % at .200. Less often right (diff" in found
    assert found.endswith("), but 90 % cheaper.")
    dearer = sentences(shifted(best, 0, 20, 0.5), best, "big")
    assert dearer.endswith(") and 2.5 times as dear. Your best model alone is the better choice.")


def test_a_dozen_questions_do_not_tell_who_is_more_often_right():
    best = outcomes(9, 3, 0.2)
    found = sentences(shifted(best, 1, 1, 0.05), best, "big")
    assert "Too few questions to tell which is more often right (difference 0.0 points, 95 % interval -" in found
    assert found.endswith("); 75 % cheaper.")


@pytest.mark.parametrize("count", [1, 2, 5, 9, 10])
@pytest.mark.parametrize("right", [0, 1])
def test_a_handful_of_questions_tells_nothing_and_says_how_many_would(count: int, right: int):
    """The bootstrap of a few differences of one sign is far from nothing, and of one question it is a point."""
    rival = outcomes(count * right, count * (1 - right), 0.2)
    found = sentences(outcomes(count, 0, 0.05), rival, "big")
    assert found.startswith(
        f"On {count} question{'s' if count > 1 else ''} that training has not seen: 100.0 % right at .0500 cents; your "
        f"best model alone (big): {100 * right}.0 % at .200. "
    )
    judged = found.partition(" at .200. ")[2]
    nothing = (
        "So few questions do not tell which is more often right or cheaper: 75 would, which a log of 190 questions "
        "leaves +experiment=my_logs."
    )
    assert (judged == nothing) == (count < 10)
    assert ("interval" in judged) == ("cheaper." in judged and "75 %" in judged) == (count == 10)


def test_few_questions_of_which_none_is_lost_do_not_tell_it_either():
    best = outcomes(9, 3, 0.2)
    found = sentences(shifted(best, 0, 0, 0.05), best, "big")  # Wilson's interval of 0 of 12 ends at 24.2 %
    assert "Too few questions to tell which is more often right (difference 0.0 points, 95 % interval -24.2" in found
    assert found.endswith(" to 24.2); 75 % cheaper.")
    found = sentences(shifted(best, 1, 0, 0.05), best, "big")
    # The other end is the bootstrap's: at most 3 of 12 in 97.5 % of the draws of B(12, 1/12).
    assert "more often right (difference 8.3 points, 95 % interval -24.2 to 25.0)" in found
    best = outcomes(60, 15, 0.2)  # of 0 of 75 at 4.9 %
    found = sentences(shifted(best, 0, 0, 0.05), best, "big")
    assert "As often right, within chance (difference 0.0 points, 95 % interval -4.9 to 4.9) and 75 %" in found


def test_few_questions_do_not_tell_which_is_cheaper():
    best = outcomes(6, 4, 0.2, 2.9, 0.1, 4.0, 0.15)
    dearer = [replace(each, cents=cents) for each, cents in zip(best, [4.0, 0.1, 2.9, 0.2, 1.1] * 2, strict=True)]
    found = sentences(dearer, best, "big")
    assert "60.0 % right at 1.66 cents; your best model alone (big): 60.0 % at 1.47. Too few" in found
    assert found.endswith("; the questions are too few to tell which is cheaper.")
    swapped = sentences(200 * dearer, 200 * best, "big")  # 2,000 questions tell it
    assert swapped.endswith(", but 13 % dearer. Your best model alone is the better choice.")
    near = [replace(each, cents=each.cents * (1.004 if number % 2 else 0.996)) for number, each in enumerate(60 * best)]
    assert sentences(near, 60 * best, "big").endswith(" and for the same money, within chance.")


def test_the_same_choices_are_the_same():
    best = outcomes(9, 3, 0.2, 12.3, 150.0)
    found = sentences(best, best, "big")
    assert "at 54.2 cents; your best model alone (big): 75.0 % at 54.2. As often right, within chance" in found
    assert found.endswith("(difference 0.0 points, 95 % interval 0.0 to 0.0) and for the same money, within chance.")


def test_what_is_free_has_no_ratio():
    best = outcomes(9, 3, 0.0)
    assert "and for the same money" in sentences(best, best, "free")
    assert "; dearer. Your best model alone is the better choice." in sentences(shifted(best, 1, 1, 0.1), best, "free")
    paid = outcomes(100, 0, 0.1)
    assert sentences(shifted(paid, 0, 0, 0.0), paid, "big").endswith(") and at no cost.")


def trajectory(
    number: int, model: str, solved: bool, usd: float, status: Status = Status.COMPLETED, words: str = ""
) -> Trajectory:
    call = ToolCall("A", {})
    row = Usage(model, "tool", 1, 0, 1, cost_usd=usd)
    turn = Turn((), (), (), 0, "stop", calls=(call,), results=(ToolResult("1", (row,)),))
    menu = {"instance": {"tools": {"A": f"generalist/{model}"}}}
    task = Task(str(number), "How much?", ("1",), (), Preference("accuracy", words), extra=menu)
    return Trajectory(task, number, 0, ((turn,),), status, "", "1", solved, (row,))


@pytest.mark.parametrize("samples", [1, 2])
def test_failed_questions_count_for_neither_and_rules_that_do_better_are_named(samples: int):
    run = [
        trajectory(number, "small", True, 0.001, Status.FAILED if number == 3 else Status.COMPLETED)
        for number in range(100)
        for _ in range(samples)
    ]
    best = [trajectory(number, "big", number != 3, 0.002) for number in range(100)]
    rules = {
        "best": best,
        "oracle": [trajectory(number, "big", True, 0.0) for number in range(100)],
        "cascade": [trajectory(number, "big", True, 0.0005) for number in range(100)],
        "cheapest": [trajectory(number, "big", False, 0.0001) for number in range(100)],
    }
    found = verdict(run, rules, "best", "Next: go on.", samples)
    assert found.startswith("On 99 questions that training has not seen: 100.0 % right at .100 cents; your best")
    assert "your best model alone (big): 100.0 % at .200. As often" in found
    assert found.endswith(
        ") and 50 % cheaper. The baseline cascade does no worse for no more: 100.0 % at .0500.\nNext: go on."
    )
    for cost, named in ((0.0010001, True), (0.0011, False)):  # a sandbox's seconds are no difference
        alike = {"best": best, "router": [trajectory(number, "small", True, cost) for number in range(100)]}
        assert ("The baseline router does no worse" in verdict(run, alike, "best", "", samples)) is named
    wished = [trajectory(0, "small", True, 0.001, words="Be right.")]
    assert "has not seen, with their users' wishes: 100.0 %" in verdict(wished, {"best": best[:1]}, "best", "", 1)
    assert verdict(run[3 * samples : 4 * samples], {"best": best[3:4]}, "best", "", samples) == ""


def test_a_rule_is_compared_on_the_questions_that_both_answered():
    best = [trajectory(number, "big", number % 4 == 0, 0.002) for number in range(40)]
    run = [trajectory(number, "small", number % 2 == 0, 0.001) for number in range(40)]
    lost = [trajectory(number, "big", number % 4 == 0, 0.0005) for number in range(40)]
    lost = [replace(each, status=Status.FAILED) if each.group % 2 else each for each in lost]
    assert "baseline" not in verdict(run, {"best": best, "lucky": lost}, "best", "", 1)
    run = [trajectory(number, "small", number % 4 == 0, 0.001) for number in range(40)]
    run = [replace(each, status=Status.FAILED) if each.group % 2 else each for each in run]
    easy = [trajectory(number, "big", number % 2 == 1 or number % 8 == 0, 0.0005) for number in range(40)]
    assert "baseline" not in verdict(run, {"best": best, "easy": easy}, "best", "", 1)


@pytest.mark.parametrize(("scale", "price"), [(1.0, ".0500"), (0.05, "2.50 cents per 1,000 questions")])
def test_of_several_better_rules_the_most_often_right_and_then_the_cheapest_is_named(scale: float, price: str):
    def played(right: int, usd: float) -> list[Trajectory]:
        return [trajectory(number, f"m{number % 2}", number < right, scale * usd) for number in range(10)]

    rules = {"best": played(10, 0.0001), "dear": played(10, 0.0009), "cheap": played(10, 0.0005)}
    found = verdict(played(9, 0.001), rules | {"worse": played(9, 0.0002)}, "best", "", 1)
    assert "your best model alone (the best of each menu): 100.0 %" in found
    assert found.endswith(f" The baseline cheap does no worse for no more: 100.0 % at {price}.")
