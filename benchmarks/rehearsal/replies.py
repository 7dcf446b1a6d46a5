"""Replies of the stand-ins, who know nothing: experts, the judge, writers, and an embedding server."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence

import numpy as np

from orchestra_jax.config.roles import Role
from orchestra_jax.data.preferences import MAKER
from orchestra_jax.synthesis.wordings import FEATURES
from orchestra_jax.tools.experts.evidence import WRITER_SYSTEM
from orchestra_jax.tools.experts.judge import CORRECT, INCORRECT, JUDGE_SYSTEM
from orchestra_jax.tools.experts.roles import ROLES

DESCRIPTION = "A model of the rehearsal, which answers every task alike and briefly."
OPENINGS = ("Mind this, please", "Before you begin", "As always")  # of the wordings of preferences
_DIMENSIONS = 32
_HEARD = "The user's words: "  # what the reader of a preference is shown comes after it


def reply(messages: Sequence[Mapping[str, str]]) -> str:
    """Return what a model answers in the role that it is asked in; a judge's verdict is drawn by what it reads."""
    system, asked = messages[0]["content"], messages[-1]["content"]
    if system == JUDGE_SYSTEM:
        verdict = (CORRECT, INCORRECT)[hashlib.blake2b(asked.encode(), digest_size=1).digest()[0] % 2]
        return json.dumps({"reason": "It was drawn.", "verdict": verdict})
    if system == ROLES[Role.query_writer].system:
        return f"<answer>{' '.join(asked.split()[-6:])}</answer>"
    if system == ROLES[Role.code_writer].system:
        return "```python\nprint(6 * 7)\n```"
    if system == WRITER_SYSTEM:
        return f"<description>{DESCRIPTION}</description>"
    if _HEARD in asked:
        words = asked.rpartition(_HEARD)[2]
        return json.dumps({"wants": [name for name in FEATURES if _meaning(name) in words]})
    if wanted := re.search(r"about this alone: (.*)\. Weigh only", asked):
        return _wordings(re.findall(r"(\w+) \(", wanted[1]), asked)
    return "Nobody is here who could know, so \\boxed{42}"


def vector(text: str) -> list[float]:
    """Return numbers that depend on the words of a text alone: texts that share words are near."""
    total = np.zeros(_DIMENSIONS)
    for word in re.findall(r"\w+", text.lower()) or [""]:
        seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest())
        total += np.random.default_rng(seed).standard_normal(_DIMENSIONS)
    return [float(number) for number in total]


def _wordings(target: Sequence[str], asked: str) -> str:
    """Three wordings of a wish with its weights, as the proposer of preferences is asked for."""
    wish = " and ".join(_meaning(name) for name in target) or "a right answer"
    lines = []
    for opening in OPENINGS:
        drawn = hashlib.blake2b(f"{opening} {asked}".encode(), digest_size=8).digest()
        lines.append(f"{opening}: I ask for {wish}. My notes are {' '.join(f'n{byte}' for byte in drawn)}.")
    return json.dumps({"weights": dict.fromkeys(target, 1.0), "instructions": lines})


def _meaning(name: str) -> str:
    return "what {maker} made" if name == MAKER else FEATURES[name]
