"""Tries faults by kind: each is drawn by seed, kind and number, so that every one can be had again alone."""

import asyncio
import random
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

PATIENCE_S = 120.0  # for one fault on a busy machine; none needs more than a few seconds
_LONGEST = 1500  # characters of a sentence


class NotHeld(Exception):  # noqa: N818  an event
    """A fault got further than it may."""


class Kind(ABC):
    """One kind of faults; an asynchronous context manager that makes what they are tried on.

    Attributes:
        name: in tables; `share`: of all faults, beside those of the other kinds.
        what: the fault that is tried, in words.
    """

    name = ""
    share = 1.0

    def __init__(self) -> None:
        self.what = ""

    async def __aenter__(self) -> "Kind":
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    @abstractmethod
    async def attempt(self, draw: random.Random) -> None:
        """Draws a fault, says it in `what` and tries it.

        Raises:
            NotHeld: it did something that it must not; as is every exception that is not caught.
        """


@dataclass
class Tried:
    """What became of one kind's faults; `worst` has a description of each that did not hold."""

    name: str
    tried: int = 0
    worst: list[str] = field(default_factory=list)

    @property
    def held(self) -> int:
        return self.tried - len(self.worst)


def sentence(error: BaseException, *kinds: type[BaseException]) -> str:
    """The error's text, which must be one of these kinds and one sentence of ours.

    Raises:
        NotHeld: it is not.
    """
    text = str(error)
    if type(error) not in kinds:
        raise NotHeld(f"{type(error).__name__}: {text[:300]!r}") from error
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotHeld(f"a sentence that cannot be written: {text[:300]!a}") from error
    if not text.strip() or len(text) > _LONGEST or len(text.splitlines()) != 1:
        raise NotHeld(f"no sentence: {text[:300]!r} ({len(text)} characters)") from error
    return text


def holds(claim: bool, otherwise: str) -> None:
    """Raises NotHeld with the description unless the claim is true."""
    if not claim:
        raise NotHeld(otherwise)


async def try_kind(kind: Kind, seed: int, numbers: Sequence[int], told: Callable[[], None] = lambda: None) -> Tried:
    """Tries the kind's faults of these numbers."""
    found = Tried(kind.name)
    async with kind:
        for number in numbers:
            kind.what = "?"
            problem, began = "", time.process_time()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await kind.attempt(random.Random(f"{kind.name} {seed} {number}"))
            except NotHeld as error:
                problem = str(error)
            except TimeoutError:
                problem = f"it hangs for {PATIENCE_S:.0f} s"
            except Exception as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                problem = f"{type(error).__name__}: {str(error)[:300]!r} at {last.filename}:{last.lineno}"
            if not problem and time.process_time() - began > PATIENCE_S:  # work that never gave way to the loop
                problem = f"it works for more than {PATIENCE_S:.0f} s"
            found.tried += 1
            if problem:
                found.worst.append(f"{kind.name} {number}: {kind.what[:300]}: {problem}")
            told()
    return found
