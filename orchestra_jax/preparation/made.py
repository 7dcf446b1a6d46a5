"""The request for one part of the paper's data, and the account of what was made of it."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Wanted:
    """The choices of the user; a part made under other choices is made anew.

    Attributes:
        limit: most rows of a part; None: all.
        pass_rate: lowest and highest pass rate of GeneralThought's questions; None: any.
        passed: file of a run's trajectories that tells how often a small model solves them; None: `verifier_score`.
        index: name of one of the released indices, where there are several.
        embedder_url: server of the index's embedding model, for a check on a sample; None: none is made.
    """

    limit: int | None = None
    pass_rate: tuple[float, float] | None = None
    passed: Path | None = None
    index: str | None = None
    embedder_url: str | None = None


@dataclass
class Made:
    """The account of a part that was made.

    Attributes:
        counts: rows by what became of them.
        said: what the user should know, a sentence each.
    """

    counts: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)
