"""Small real runs under kills, signals, full disks, dead or lying servers and second starts in one folder.

A run is `experiments/train.py` with a few steps of the rehearsal's policy: experts, a judge and web search over HTTP, a
sandbox, a checkpoint a step. The same command is given again until it ends. Then the run's bill must be the server's,
to the token, and nothing may be left of it but its folder.
"""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from benchmarks.chaos.providers import Unreliable
from benchmarks.chaos.starts import (
    PATIENCE_S,
    ROOT,
    ROOT_USER,
    SLOTS,
    Launcher,
    environment,
    expected,
    prepare,
    settings,
)  # fmt: skip
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.money import price_files
from orchestra_jax.money.bill import State
from orchestra_jax.money.prices import PriceList

MOST_STARTS = 9
ENDS = {0: "ended", 2: "refused", 3: "refused", 5: "refused", 130: "stopped"}
EVENTS = (
    "kill -9", "SIGTERM", "two signals", "full disk", "dead server", "lying server", "second start", "small budget",
    "calm",
)  # fmt: skip


@dataclass
class Outcome:
    """What became of one run.

    Attributes:
        events: what befell it, in order; `ends`: how its processes ended, in order.
        requests: that the server saw; `killed_in_a_call`: billed ones that had no answer yet at a kill -9.
        lost: answers of the server that could not be read, or never came.
        bill: "equal" to the server's, or "above" it, where calls were killed or answers lost.
        problem: what did not hold, None if everything did.
    """

    number: int
    event: str
    events: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    requests: int = 0
    killed_in_a_call: int = 0
    lost: int = 0
    bill: str = ""
    problem: str | None = None


class Broken(Exception):  # noqa: N818  an event
    """A claim about a run does not hold."""


class Run:
    """One run with its server, from its first start to its last end.

    Args:
        number: with `seed` it decides everything but the machine's own pace.
        folder: of this worker.
    """

    def __init__(
        self,
        number: int,
        seed: int,
        launcher: Launcher,
        loop: LoopThread,
        prices: PriceList,
        folder: Path,
        shared: Path,
    ) -> None:
        self._draw = draw = random.Random(f"soak {seed} {number}")
        self._launcher, self._loop, self._folder, self._shared = launcher, loop, folder, shared
        self._out = folder / f"run-{number}"
        event = EVENTS[number % len(EVENTS)]
        self.outcome = Outcome(number, event)
        self._server = Unreliable(prices, draw, 0.4 if event == "lying server" else draw.choice([0.0, 0.0, 0.2]))
        self._armed: Callable[[], None] | None = None
        self._wait_until = 0
        self._pid = 0
        self._killed = False
        self._budget = draw.randint(0, 6) if event == "small budget" else None
        self._record = draw.random() < 0.3
        self._trains = draw.random() < 0.1  # tracing the update is most of a start's CPU seconds
        # A user who became root in a namespace has no second user for the sandbox.
        self._isolation = draw.choice(["auto", "auto", "none"]) if ROOT_USER else "none"

    def go(self) -> Outcome:
        """Starts it until it ends, and looks at what is left."""
        self._loop.run(self._server.__aenter__())
        try:
            self._live()
            self._look()
        except Broken as broken:
            self.outcome.problem = str(broken)
        except Exception as error:
            self.outcome.problem = f"the soak itself: {type(error).__name__}: {error}"
        finally:
            self._loop.run(self._server.__aexit__())
        found = self.outcome
        found.requests, found.lost = self._server.requests, self._server.lost
        return found

    # --- a start and what befalls it ---

    def _live(self) -> None:
        event, draw = self.outcome.event, self._draw
        armed = draw.choice([1, 1, 2, 3]) if event == "kill -9" else 0 if event in ("calm", "small budget") else 1
        self._launcher("mount", path=str(self._out), mib=draw.choice([1, 2, 4, 6]) if event == "full disk" else 64)
        for start in range(MOST_STARTS):
            harmed = start < armed
            if not harmed:
                self._server.calm()
                self._loop.run(self._server.come_back())
            status = self._one_start(event if harmed else None)
            if status == 0 or (status == 3 and self._budget is not None and not harmed):
                return
            if event == "full disk":
                self._launcher("mount", path=str(self._out), mib=64)
                self._launcher("remove", file=str(self._out / "ballast"))
        raise Broken(f"it did not end in {MOST_STARTS} starts: {self.outcome.ends}")

    def _one_start(self, event: str | None) -> int:
        number, draw = len(self.outcome.ends), self._draw
        streams = [str(self._folder / f"run-{self.outcome.number}-{number}.{name}") for name in ("out", "err")]
        if event is not None:
            self._arm(event)
        self._pid = self._start(*streams)
        if self._armed is not None and draw.random() < 0.4:  # at some moment, whatever the run is doing
            threading.Timer(draw.uniform(0.0, 8.0), self._fire).start()
            self._wait_until = 10**9
        status = self._launcher.ended(self._pid, PATIENCE_S)
        if status is None:
            self._launcher("signal", pid=self._pid, number=signal.SIGKILL)
            raise Broken(f"start {number} hung for {PATIENCE_S:.0f} s after {self.outcome.events}")
        self._armed = None
        self._check_end(status, *(Path(stream).read_text(errors="replace") for stream in streams))
        return status

    def _start(self, out: str, err: str) -> int:
        overrides = [
            *settings(self._shared, self._server.url),
            f"output_dir={self._out}",
            f"seed={self.outcome.number}",
            f"tools.sandbox.isolation={self._isolation}",
        ]
        if self._budget is not None:
            overrides.append(f"budget.run_calls={self._budget}")
        if not self._trains:
            overrides.append("algorithm.advantage.min_std=1e9")
        if self._record:
            overrides += ["replay.mode=replay_or_record", f"replay.path={self._out}/calls.db"]
        return self._launcher("start", environment={"TAVILY_API_KEY": "k"}, stdout=out, stderr=err, overrides=overrides)

    def _arm(self, event: str) -> None:
        acts: dict[str, Callable[[], None]] = {
            "kill -9": lambda: self._signal(signal.SIGKILL),
            "SIGTERM": lambda: self._signal(self._draw.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])),
            "two signals": self._two_signals,
            "full disk": self._fill,
            "dead server": self._vanish,
            "second start": self._second_start,
        }
        self._armed = acts.get(event)  # a server lies all the time
        self._wait_until = self._server.requests + self._draw.randint(1, 12)
        self._server.on_request = self._on_request

    def _on_request(self, number: int) -> None:
        if number >= self._wait_until and self._armed is not None:
            self._wait_until = 10**9
            threading.Thread(target=self._fire).start()  # the loop goes on, so the call is under way

    def _fire(self) -> None:
        act, self._armed = self._armed, None
        if act is not None:
            act()

    def _signal(self, number: signal.Signals, pid: int | None = None) -> None:
        pid = pid or self._pid
        if self._launcher.ended(pid, 0.0) is None:
            self.outcome.events.append(f"{number.name} at request {self._server.requests}")
            if number == signal.SIGKILL:
                self._killed = True
                self.outcome.killed_in_a_call += self._server.under_way
            self._launcher("signal", pid=pid, number=number)

    def _two_signals(self) -> None:
        pid = self._pid  # the next start is another one
        self._signal(signal.SIGTERM, pid)
        time.sleep(self._draw.uniform(0.0, 0.5))
        self._signal(signal.SIGINT, pid)

    def _fill(self) -> None:
        self.outcome.events.append(f"disk full at request {self._server.requests}")
        self._launcher("fill", file=str(self._out / "ballast"))

    def _vanish(self) -> None:
        self.outcome.events.append(f"server dead at request {self._server.requests}")
        self._loop.run(self._server.vanish())
        if self._draw.random() < 0.5:
            time.sleep(self._draw.uniform(0.5, 3.0))
            self._loop.run(self._server.come_back())

    def _second_start(self) -> None:
        streams = [str(self._folder / f"run-{self.outcome.number}-second.{name}") for name in ("out", "err")]
        second, first = self._start(*streams), self._pid
        status = self._launcher.ended(second, PATIENCE_S)
        said = Path(streams[1]).read_text(errors="replace")
        self.outcome.events.append(f"second start: {status}")
        # Where the first had ended before, the second one went on in its place.
        if not (status == 2 and "Another run is at work" in said) and self._launcher.ended(first, 0.0) is None:
            self.outcome.problem = f"a second start in the folder ended with {status}: {said[-300:]}"

    # --- what must hold ---

    def _check_end(self, status: int, printed: str, said: str) -> None:
        self.outcome.ends.append(ENDS.get(status, f"status {status}"))
        lines = [line for line in said.splitlines() if line.strip() and not line.startswith("[transformers]")]
        if "Traceback" in said:
            raise Broken(f"status {status} and a traceback: {said[-1500:]}")
        if status == -signal.SIGKILL and self._killed:
            self.outcome.ends[-1], self._killed = "killed", False
            return
        # Before a run has begun, after it has ended and after it has said so, a signal is any program's.
        outside = not printed or "summary.json are in" in printed or (lines and lines[-1].startswith("Stopped"))
        by_signal = -status in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) or (status == 130 and not printed)
        if by_signal and self.outcome.events and outside:
            self.outcome.ends[-1] = "stopped"
            return
        if status not in ENDS:
            raise Broken(f"status {status}: {said[-500:]}")
        sentences = [line for line in lines if not line.startswith(("Looking whether", "Checkpoint "))]
        if status and not (sentences and sentences[-1].rstrip().endswith((".", "!"))):
            raise Broken(f"status {status} without a sentence: {said[-500:]}")

    def _look(self) -> None:
        if self.outcome.problem is not None:
            return
        for patience in range(100):
            found = self._launcher("look", out=str(self._out))
            if not found["processes"] or patience == 99:
                break
            time.sleep(0.1)  # workers of a sandbox end on their own when their run was killed
        paid, in_flight = found["bill"]
        if found["processes"] or found["elsewhere"]:
            raise Broken(f"left behind: {found['processes']} {found['elsewhere']}")
        strange = [name for name in found["files"] if not expected(name)]
        if strange:
            raise Broken(f"left in the folder: {strange}")
        if in_flight:
            raise Broken(f"calls that nobody ended: {in_flight}")
        self._compare(paid, self._server.billed)
        self._launcher("unmount", path=str(self._out))

    def _compare(self, paid: State, billed: State) -> None:
        """Sets `outcome.bill`; raises Broken: less was paid than billed, or more than what is not known explains."""
        ends, lost = self.outcome.ends, self._server.lost
        # What was on its way when a process ended, or the server, may have been seen by nobody.
        dead = self.outcome.event == "dead server"
        cut_short = ends.count("killed") + ends.count("stopped") + ends.count("refused") + dead
        self.outcome.bill = "equal"
        extra = 0
        for name in billed.keys() | paid.keys():
            ours, theirs = (amounts.get(name, ["0", 0, 0]) for amounts in (paid, billed))
            if ours == theirs:
                continue
            if Fraction(ours[0]) < Fraction(theirs[0]) or ours[1] < theirs[1] or ours[2] < theirs[2]:
                raise Broken(f"{name}: paid {ours}, billed {theirs}")
            if not (cut_short or lost):
                raise Broken(f"{name}: paid {ours}, billed {theirs}, though nothing was lost")
            self.outcome.bill = "above"
            extra += ours[2] - theirs[2]
        if extra > lost + SLOTS * cut_short:
            raise Broken(
                f"{extra} calls were paid that nobody billed; {lost} answers lost, {cut_short} ends before time"
            )


def soak(
    seed: int, numbers: Sequence[int], workers: int, folder: Path, minutes: float, told: Callable[[Outcome], None]
) -> list[Outcome]:
    """Runs with these numbers, `workers` at a time, until the minutes are over; `told` hears of each that ended."""
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder)
    prices = price_files.load(ROOT / "conf" / "pricing" / "paper_train.yaml")
    deadline, left, found = time.monotonic() + 60 * minutes, iter(numbers), list[Outcome]()
    lock = threading.Lock()

    def work(index: int) -> None:
        mine = folder / f"worker-{index}"
        mine.mkdir(exist_ok=True)
        with Launcher(environment(folder)) as launcher, LoopThread() as loop:
            while time.monotonic() < deadline:
                with lock:
                    number = next(left, None)
                if number is None:
                    return
                outcome = Run(number, seed, launcher, loop, prices, mine, folder).go()
                with lock:
                    found.append(outcome)
                    told(outcome)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def totals(outcomes: list[Outcome]) -> Counter[str]:
    """How often what was seen."""
    found: Counter[str] = Counter()
    for outcome in outcomes:
        found.update({"starts": len(outcome.ends), "requests": outcome.requests, "answers lost": outcome.lost})
        found.update(outcome.ends)
        found[f"bill {outcome.bill}"] += 1
    return found
