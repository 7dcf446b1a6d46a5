"""Figures that the paper published (arXiv 2511.21689), for rows beside ours."""

from dataclasses import dataclass

from orchestra_jax.evaluation.results.offering import UNSEEN_PRICES, UNSEEN_TOOLS

SOURCE = "arXiv 2511.21689"
_PLACES = {"hle": 0, "frames": 1, "tau2": 2}


@dataclass(frozen=True)
class Published:
    """A row of Tables 1, 2 and 4.

    Attributes:
        accuracies: on HLE, FRAMES and τ²-Bench, in %; None: not measured.
        cents: mean over HLE and FRAMES.
        minutes: mean over HLE and FRAMES.
    """

    name: str
    accuracies: tuple[float, float, float | None]
    cents: float
    minutes: float

    def accuracy(self, source: str) -> float | None:
        """Return the accuracy on a benchmark in %, if it is known."""
        return self.accuracies[_PLACES[source]] if source in _PLACES else None

    def costs(self, source: str) -> tuple[float, float] | None:
        """Return cents and seconds a question, or None for a benchmark that they are not of."""
        return (self.cents, 60 * self.minutes) if source in ("hle", "frames") else None


TABLE_1 = (
    Published("Qwen3-8B, no tools", (3.2, 24.2, None), 0.2, 0.6),
    Published("Qwen3-8B, basic tools", (4.7, 26.5, 40.7), 1.3, 2.2),
    Published("Qwen3-8B, tools and models", (30.6, 68.9, 72.3), 27.6, 18.3),
    Published("GPT-5, basic tools", (35.1, 74.0, 77.7), 30.2, 19.8),
    Published("GPT-5, tools and models", (21.2, 57.5, 62.3), 17.8, 13.6),
    Published("Claude Opus 4.1, tools and models", (34.6, 72.8, 76.8), 52.5, 25.6),
    Published("Orchestrator-8B", (37.1, 76.3, 80.2), 9.2, 8.2),
)
TABLE_2 = (Published("Orchestrator-8B, unseen tools", (22.0, 73.8, 48.8), 34.8, 8.2),)
TABLE_4 = (Published("Orchestrator-8B, unseen prices", (36.9, 76.6, 80.4), 7.5, 7.8),)
_TABLES = {(): (1, TABLE_1), (UNSEEN_TOOLS,): (2, TABLE_2), (UNSEEN_PRICES,): (4, TABLE_4)}
_PREFERENCE_SCORES = (46.7, 68.4, 79.5)  # Table 3: Orchestrator-8B by Eq. 5-6 on HLE, FRAMES and τ²-Bench
# Fig. 3 and appendix A: the share of GPT-5's calls to GPT-5 and GPT-5-mini, and of Qwen3-8B's calls to GPT-5.
OWN_SHARE, STRONGEST_SHARE = ("GPT-5", 98), ("Qwen3-8B", 73)


def is_published(source: str) -> bool:
    """Return whether the paper has figures of a benchmark."""
    return source in _PLACES


def rows(source: str, unseen: tuple[str, ...] = ()) -> tuple[int, list[Published]]:
    """Return the number of the paper's table with these unseen tools or prices, and its rows on a benchmark."""
    number, found = _TABLES.get(unseen, (0, ()))
    return number, [row for row in found if row.accuracy(source) is not None]


def preference_score(source: str) -> float | None:
    """Return Orchestrator-8B's preference score on a benchmark (Table 3)."""
    return _PREFERENCE_SCORES[_PLACES[source]] if source in _PLACES else None
