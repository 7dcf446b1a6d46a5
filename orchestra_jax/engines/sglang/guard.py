"""Runs a server, and ends it when the process that started it is gone: `python guard.py PARENT_PID COMMAND...`.

A process of its own instead of a death signal set between fork and exec: code that runs there may deadlock in a
process with threads (ours has JAX's), the signal comes when the starting *thread* ends, and it reaches the server
alone and none of the processes that the server started. The guard leads a process group which holds all of them, and
kills it when its parent is gone, however it died, or when the server has ended. It passes SIGTERM on to the server.
It imports the standard library only.
"""

import os
import signal
import subprocess
import sys

_LOOK_S = 0.5  # how long the group may outlive the parent


def main() -> None:
    """Start the command after the parent's pid, pass SIGTERM on, and end the command when the parent is gone."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    while os.getppid() == parent:
        try:
            status = server.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            continue
        print(f"The server ended with status {status}.", file=sys.stderr, flush=True)
        break
    os.killpg(os.getpgrp(), signal.SIGKILL)  # the guard too


if __name__ == "__main__":
    main()
