"""The process beside a run that acts when the run's Python does not: a script without imports of this package.

It reads a pipe: a zero byte is a beat of the run's Python, every other byte the number of a signal that the run got.
Arguments: process id of the run, signal that makes it write its stacks, seconds of silence after which that is done,
seconds of silence after which the run is ended, and those after one signal.
"""

import contextlib
import os
import select
import signal
import sys
import time

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_S = 0.5
_STUCK_S = 10.0  # of silence: a second signal is not heard by Python
_UNWIND_S = 30.0  # for a run that hears it, to close everything


def main(run: int, dump: int, told_s: float, end_s: float, grace_s: float) -> None:
    """Watch until the run has ended or closed the pipe."""
    silent, unwinding, asked, told, before = 0.0, 0.0, 0, False, time.monotonic()
    while os.getppid() == run:
        if select.select([0], [], [], _LOOK_S)[0]:
            said = os.read(0, 4096)
            if not said:
                return
            asked += sum(number in STOPPING for number in said)
            if 0 in said:
                silent, told = 0.0, False
        now = time.monotonic()
        passed, before = min(now - before, 2 * _LOOK_S), now  # a machine that slept was not silent
        silent += 0.0 if _is_paused(run) else passed
        unwinding += passed if asked > 1 else 0.0
        if silent > told_s and not told:
            told = True
            os.kill(run, dump)
            _say(f"No Python code could run for {told_s:g} s: stacks.log tells where.")
        if asked > 1 and (silent > _STUCK_S or unwinding > (_STUCK_S if asked > 2 else _UNWIND_S)):
            _end(run, dump, "The run did not end when it was told twice")
            return
        if silent > (min(max(grace_s, _UNWIND_S), end_s) if asked else end_s):
            _end(run, dump, f"No Python code could run for {silent:.0f} s")
            return


def _end(run: int, dump: int, why: str) -> None:
    os.kill(run, dump)
    time.sleep(_LOOK_S)
    _say(
        f"{why}, so it was killed; stacks.log tells where it was, and the same command continues from the last "
        "checkpoint."
    )
    os.kill(run, signal.SIGKILL)


def _is_paused(run: int) -> bool:
    """Return whether the run was stopped by Ctrl-Z, or by a debugger."""
    try:
        with open(f"/proc/{run}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError):  # a full disk, or a terminal that was closed, must not keep the run alive
        print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *map(float, sys.argv[3:6]))
