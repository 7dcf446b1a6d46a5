"""Figures of a server for Prometheus."""

import collections

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from orchestra_jax.evaluation.intervals import wilson
from orchestra_jax.serving.answers import Answer


class Metrics:
    """Figures of this process since its start."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "orchestra_requests", "Requests for completions by HTTP status", ["status"], registry=self.registry
        )
        self.dollars = Counter(
            "orchestra_dollars", "Dollars, of requests without an answer too", ["policy"], registry=self.registry
        )
        self.calls = Counter("orchestra_calls", "Calls of tools", ["tool"], registry=self.registry)
        self.seconds = Histogram(
            "orchestra_seconds",
            "Wall-clock seconds of an answer",
            registry=self.registry,
            buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600),
        )
        self.answers = Counter("orchestra_answers", "Answers by policy", ["policy"], registry=self.registry)
        self.work = Counter("orchestra_work_seconds", "Seconds of work of answers", ["policy"], registry=self.registry)
        self.verdicts = Counter(
            "orchestra_verdicts", "Answers by what users say of them", ["policy", "verdict"], registry=self.registry
        )
        self.right_share = Gauge(
            "orchestra_right_share",
            "Right answers among those with feedback, and the ends of its 95 % interval",
            ["policy", "value"],
            registry=self.registry,
        )
        self._verdicts: collections.Counter[tuple[str, bool]] = collections.Counter()
        self.under_way = Gauge("orchestra_under_way", "Requests under way", registry=self.registry)

    def note(self, answer: Answer, policy: str) -> None:
        """Count an answer of a policy."""
        self.answers.labels(policy).inc()
        self.work.labels(policy).inc(answer.seconds)
        for step in answer.calls:
            self.calls.labels(step.tool).inc()

    def note_verdict(self, policy: str, *, right: bool) -> None:
        """Count what a user says of an answer of a policy."""
        self.verdicts.labels(policy, "right" if right else "wrong").inc()
        self._verdicts[policy, right] += 1
        solved = self._verdicts[policy, True]
        counted = solved + self._verdicts[policy, False]
        low, high = wilson(solved, counted) or (0.0, 1.0)
        for value, share in (("low", low), ("share", solved / counted), ("high", high)):
            self.right_share.labels(policy, value).set(share)
