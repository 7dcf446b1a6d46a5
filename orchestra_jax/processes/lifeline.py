"""End every process of a run when one of them is gone, with one sentence and within a minute.

JAX's own heartbeats end a process with a stack trace of its runtime, and a collective that waits for a process on a
lost machine waits for minutes. So the first process keeps a connection to each of the others: one that breaks without
a farewell, or is silent for too long, means that its process is gone.
"""

import contextlib
import os
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable

GONE = 4  # exit status of a process that ends because another one is gone
_BEAT_S = 2.0
_SILENT_S = 45.0
_MEET_S = 60.0
_NAME_S = 5.0  # for one that connects to say its number, which our processes do at once
_BEAT, _BYE, _LATE = b".", b"x", b"!"
_GONE = re.compile(rb"(\d+);")  # what the first process says to the others about one that is gone


class Lifeline:
    """A watch over the other processes, in a thread of its own, until it is closed.

    Args:
        index: number of this process.
        count: number of processes.
        host: address of the first process.
        share_port: function that returns the first process's port in all of them; the first passes it, the others None.
        end: function called with the sentence when a process is gone.

    Attributes:
        on_late: function called when another process says that it is `late`.
    """

    def __init__(
        self,
        index: int,
        count: int,
        host: str,
        share_port: Callable[[int | None], int],
        end: Callable[[str], None] | None = None,
    ) -> None:
        self._index, self._count, self._end = index, count, end or _exit
        self._peers: dict[int, socket.socket] = {}
        self._closing = False
        self.on_late: Callable[[], None] | None = None
        if index == 0:
            with socket.create_server(("", 0), backlog=count) as server:
                share_port(server.getsockname()[1])
                deadline = time.monotonic() + _MEET_S
                while len(self._peers) < count - 1:
                    server.settimeout(max(0.1, deadline - time.monotonic()))
                    peer, _ = server.accept()
                    number = _number(peer)
                    if 0 < number < count and number not in self._peers:
                        self._peers[number] = peer
                    else:  # such as a scanner of ports
                        peer.close()
        else:
            first = socket.create_connection((host, share_port(None)), timeout=_MEET_S)
            first.sendall(index.to_bytes(4, "big"))
            self._peers[0] = first
        self._thread = threading.Thread(target=self._watch, name="lifeline", daemon=True)
        self._thread.start()

    def late(self) -> None:
        """Tell all others that this process gives up its step, so that they need not finish theirs."""
        self._say(_LATE)

    def close(self) -> None:
        """Say farewell: from now on the others may end, and this process too."""
        self._closing = True
        self._say(_BYE)

    def _say(self, what: bytes) -> None:
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.sendall(what)

    def _watch(self) -> None:
        """Tell the others every few seconds that this process lives, and hear which are gone, done, or late."""
        heard = dict.fromkeys(self._peers, time.monotonic())
        staying = dict(self._peers)  # without those that said farewell
        while staying and not self._closing:
            ready, _, _ = select.select(list(staying.values()), [], [], _BEAT_S)
            for index, peer in list(staying.items()):
                now, said = time.monotonic(), b""
                with contextlib.suppress(OSError):
                    if peer in ready:
                        said = peer.recv(4096)
                        heard[index] = now
                    peer.sendall(_BEAT)
                if _LATE in said:
                    if self._index == 0:
                        self.late()  # the one that said it hears it too, to no effect
                    if self.on_late is not None:
                        self.on_late()
                if gone := _GONE.search(said):
                    self._lost(int(gone[1]))
                elif _BYE in said:
                    del staying[index]
                elif (peer in ready and not said) or now - heard[index] > _SILENT_S:
                    self._lost(index)
            time.sleep(0.1)  # beats of many others are heard in one go

    def _lost(self, index: int) -> None:
        if self._closing:
            return
        self._closing = True
        self._say(b"%d;" % index)
        self._end(
            f"Process {index} of {self._count} is gone, so process {self._index} ends too; the same command "
            "continues from the last checkpoint."
        )


def _number(peer: socket.socket) -> int:
    """Return the number that a process says when it connects; 0 for what is none of ours."""
    said = b""
    peer.settimeout(_NAME_S)
    with contextlib.suppress(OSError):
        while len(said) < 4 and (more := peer.recv(4 - len(said))):
            said += more
    peer.settimeout(None)
    return int.from_bytes(said, "big") if len(said) == 4 else 0


def _exit(sentence: str) -> None:
    """End at once: the main thread may wait in a collective that nothing interrupts."""
    with contextlib.suppress(OSError):  # of a full disk
        print(sentence, file=sys.stderr, flush=True)
    os._exit(GONE)
