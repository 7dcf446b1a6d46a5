"""A canary: a new policy answers a share of the conversations, and the old one the rest."""

import contextlib
import hashlib
import itertools
import threading
from collections import Counter
from collections.abc import Iterator

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.serving.keys import Key
from orchestra_jax.serving.orchestrator import Orchestrator
from orchestra_jax.serving.wire import ChatRequest
from orchestra_jax.training.subject import Subject


def check_canary(share: float | None, follow: str | None) -> None:
    """Raise ConfigError if a canary is asked for and has no policy to try, or no share of the conversations."""
    if share is not None and follow is None:
        raise ConfigError("--canary has no policy to try: name its folder with --follow.")
    if share is not None and not 0 < share < 1:
        raise ConfigError(f"--canary={share:g} must be a share between 0 and 1, such as 0.1.")


class Canary:
    """Divides conversations between the policy that is served and a new one, with an engine of its own for each.

    A conversation stays with one of them: its opening, the words before the first answer, decides, on every server
    alike. An answer that has begun ends under the weights that began it.

    Raises:
        ConfigError: there can be no canary.
    """

    def __init__(self, served: Orchestrator, share: float) -> None:
        served.check_beside()
        self._served, self._share, self._new = served, share, served
        self._answers: Counter[Orchestrator] = Counter()  # under way
        self._changed = threading.Condition()

    @property
    def subject(self) -> Subject:
        """The newest policy."""
        return self._new.subject

    @property
    def policy(self) -> str:
        """Name of its weights."""
        return self._new.policy

    def take_up(self, subject: Subject) -> None:
        """Give the share to another policy. Returns when the answers of the one before it have ended.

        Raises:
            ConfigError: see `Orchestrator.take_up`.
        """
        new = self._served.beside(subject)
        with self._changed:
            old, self._new = self._new, new
            if old is not self._served:
                self._changed.wait_for(lambda: not self._answers[old])
                del self._answers[old]
                old.close()

    @contextlib.contextmanager
    def chosen(self, asked: ChatRequest, key: Key | None) -> Iterator[Orchestrator]:
        """Choose who answers a request, and keep its engine open until the answer has ended."""
        with self._changed:
            orchestrator = self._new if _place(asked, key) < self._share else self._served
            self._answers[orchestrator] += 1
        try:
            yield orchestrator
        finally:
            with self._changed:
                self._answers[orchestrator] -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """End the new policy; twice is harmless."""
        if self._new is not self._served:
            self._new.close()


def _place(asked: ChatRequest, key: Key | None) -> float:
    """Return a number from 0 to 1 that a conversation keeps while it grows, evenly spread over conversations."""
    history = asked.options["history"]
    opening = itertools.takewhile(lambda message: message["role"] == "user", history)
    texts = [message["content"] for message in opening]
    if len(texts) == len(history):
        texts.append(asked.question)
    words = repr((None if key is None else key.number, texts))
    return int.from_bytes(hashlib.sha256(words.encode("utf-8", "replace")).digest()[:8]) / 2**64
