"""Figures of a server for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from orchestra_jax.serving.asking import Answer


class Metrics:
    """Counters for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "orchestra_requests", "Requests for completions by HTTP status", ["status"], registry=self.registry
        )
        self.dollars = Counter("orchestra_dollars", "Dollars of all answers", registry=self.registry)
        self.calls = Counter("orchestra_calls", "Calls of tools", ["tool"], registry=self.registry)
        self.seconds = Histogram(
            "orchestra_seconds",
            "Wall-clock seconds of an answer",
            registry=self.registry,
            buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600),
        )
        self.under_way = Gauge("orchestra_under_way", "Requests under way", registry=self.registry)

    def note(self, answer: Answer) -> None:
        """Count an answer."""
        self.dollars.inc(answer.cost_usd)
        for step in answer.calls:
            self.calls.labels(step.tool).inc()
