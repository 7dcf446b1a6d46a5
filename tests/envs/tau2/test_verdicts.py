"""Scores of corrupted trajectories against the verdicts of the authors' own evaluator (`corrupted.py` made them)."""

import json
from collections import Counter

import pytest

from orchestra_jax.envs.tau2 import package
from orchestra_jax.envs.tau2.criteria import ConversationRecord, judge, replay
from orchestra_jax.envs.tau2.domain import Tau2Domain
from orchestra_jax.envs.tau2.tasks import ORIGINAL, scenarios
from tests.envs.tau2.corrupted import FILE, SOURCES, corrupted, original

pytestmark = pytest.mark.skipif(
    package.folder() is None, reason="inspect-evals is not installed: requirements/README.md"
)
ABSENT = "get_item_details"  # a tool of the authors' shop that only looks, and that the package lacks
LETTERS = {"db": "D", "communicate": "C", "action": "A", "env_assertion": "E"}


@pytest.mark.parametrize("name", SOURCES)
def test_verdicts_are_those_of_the_public_evaluator(name):
    if SOURCES[name] == ORIGINAL and original() is None:
        pytest.skip("ORCHESTRA_DATA is unset")
    rows = json.loads(FILE.read_text("utf-8"))[name]
    assert len(rows) >= 300
    domain, known = Tau2Domain(name, SOURCES[name], original()), {}
    for each in scenarios(name, SOURCES[name], original()):
        known[each.id] = each, replay(domain, each)
    other, solved = [], Counter()
    for task, edits, theirs, failing in rows:
        scenario, golden = known[task]
        session, record = domain.open(scenario), ConversationRecord()
        calls, record.said = corrupted(scenario, edits)
        failed = list[int]()
        for number, (who, call) in enumerate(calls):
            result = session.call(who, call)
            failed += [number] * (result.is_error and call.name != ABSENT)
        faults = judge(scenario, golden.state, session, record)
        ours = {LETTERS[criterion]: not fault for criterion, fault in faults.items()}
        solved[all(ours.values())] += 1
        other += [(task, edits, letter, faults) for letter, held in ours.items() if held != (letter in theirs)]
        other += [(task, edits, "failed calls", failed, failing)] * (failed != failing)
    print(f"{name}: {len(rows)} trajectories, {solved[True]} solved, {len(other)} criteria judged otherwise")
    assert other == []
    assert min(solved.values()) >= 20  # both verdicts are tried
