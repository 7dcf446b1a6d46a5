"""Snippets that no sandbox wants, and requests that its server cannot read."""

import asyncio
import logging
import random
import secrets

from aiohttp import web

from benchmarks.chaos.faults import Kind, holds
from benchmarks.chaos.odd import change_bytes
from orchestra_jax.tools.python import server as sandbox_server
from orchestra_jax.tools.python.isolation import IsolationError
from orchestra_jax.tools.python.sandbox import PythonSandbox
from tests.tools.python.attacks import ATTACKS, PRELUDE
from tests.tools.python.test_escapes import AFTER, HEALTHY, LIMITS
from tests.tools.python.test_remains import SCAN
from tests.tools.python.test_server import REQUESTS, Echo, request

_NO_HOST = [name for name, (code, _) in ATTACKS.items() if "$" not in code]


def _ends(draw: random.Random) -> str:
    status = draw.choice((0, 1, 2, 40, 255, 256, -1, 2**31, 2**70, "None", "'x'", "b'\\xff'", "object()"))
    return draw.choice((f"os._exit({draw.randrange(256)})", f"sys.exit({status})", f"raise SystemExit({status})",
                        "raise KeyboardInterrupt", "raise BaseException('\\ud83d')", "1 / 0", "exit()"))  # fmt: skip


def _signals(draw: random.Random) -> str:
    return f"os.kill({draw.choice(('os.getpid()', '0', '1', '-1', 'os.getppid()'))}, {draw.randint(1, 64)})"


def _names(draw: random.Random) -> str:
    return f"libc.prctl(15, {draw.randbytes(draw.randint(1, 20))!r})"


def _prints(draw: random.Random) -> str:
    return draw.choice((
        f"os.write({draw.choice((1, 2))}, {draw.randbytes(draw.randrange(80))!r} * {draw.choice((1, 50, 40_000))})",
        f"print({'x' * draw.choice((1, 100, 3000))!r} * {draw.choice((1, 10, 1000))})",
        "os.close(1)", "os.close(2)", "sys.stdout = None", "sys.stdout.close()", "print('\\ud83d')", "os.dup2(0, 1)",
        "sys.stdin.read()", "'\\udc00' * 10", "class X:\n    def __repr__(self): raise ValueError('\\ud83d')\nX()",
    ))  # fmt: skip


def _memory(draw: random.Random) -> str:
    size = draw.choice((1, 40, 200, 4000))
    return draw.choice((
        f"kept = bytearray({size} << 20)", f"kept = [bytearray(1 << 20) for _ in range({size})]",
        f"x = 'x' * ({size} << 20)", "def f(): f()\nf()", f"10 ** (10 ** {draw.randint(3, 7)}) and 0",
    ))  # fmt: skip


def _forks(draw: random.Random) -> str:
    count, then = draw.randint(1, 30), draw.choice(("time.sleep(9)", "os._exit(3)", "os.kill(0, 9)", "os.setsid()"))
    return f"for _ in range({count}):\n    if os.fork() == 0:\n        {then}"


def _threads(draw: random.Random) -> str:
    count = draw.randint(1, 40)
    return f"import threading\nfor _ in range({count}): threading.Thread(target=time.sleep, args=(9,)).start()"


def _files(draw: random.Random) -> str:
    name = ascii(draw.choice(("a", "x" * 300, "\udcff", "../a", "/tmp/a", "/dev/shm/a", "a/b", "\n", ".." * 50)))
    return draw.choice((
        f"open({name}, 'wb').write(b'x' * {draw.choice((1, 3 << 20, 5 << 20))})", f"os.mkdir({name})",
        f"os.symlink('/', {name})", "os.chmod('.', 0)", "os.rmdir(os.getcwd())", f"os.mkfifo({name})",
    ))  # fmt: skip


def _descriptors(draw: random.Random) -> str:
    return draw.choice((f"os.closerange(0, {draw.randint(1, 64)})", "kept = [os.pipe() for _ in range(99)]",
                        f"os.read({draw.randrange(20)}, 1)", f"os.write({draw.randrange(3, 20)}, b'x' * 70)",
                        "[os.dup(0) for _ in range(99)]", f"os.lseek({draw.randrange(20)}, 0, 0)",
                        f"os.ftruncate({draw.randrange(20)}, 0)"))  # fmt: skip


def _machine(draw: random.Random) -> str:
    numbers = ", ".join(str(draw.choice((0, 1, -1, 4096, draw.randrange(2**31)))) for _ in range(5))
    call = f"libc.syscall({draw.randrange(470)}, {numbers})"
    return draw.choice((
        call, call, call, f"ctypes.string_at({draw.choice((0, 1, 2**47 - 4096, 2**63))}, 9)",
        "ctypes.memset(id(None), 255, 64)", "signal.alarm(1)", "sys.settrace(lambda *_: 1 / 0)",
    ))  # fmt: skip


def _waits(draw: random.Random) -> str:
    return draw.choice(("while True: pass", "time.sleep(99)", "signal.pause()", "time.sleep(0.01)", "os.sched_yield()",
                        "try:\n    while True: pass\nexcept BaseException: pass"))  # fmt: skip


PARTS = (
    _ends,
    _signals,
    _names,
    _prints,
    _prints,
    _memory,
    _forks,
    _threads,
    _files,
    _descriptors,
    _machine,
    _machine,
    _waits,
)


class Snippets(Kind):
    """Code of a model: an observation whatever it does, and a worker that finds nothing of it afterwards."""

    name = "snippets"
    share = 1.5

    async def __aenter__(self) -> "Snippets":
        limits = {**LIMITS, "timeout_s": 1.0}
        try:
            self._sandbox = PythonSandbox(**limits)  # type: ignore[arg-type]
        except IsolationError as error:
            raise SystemExit(f"Hostile snippets are not tried without walls. {error}") from error
        self._scanner = PythonSandbox(1, 60.0)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._sandbox.close()
        self._scanner.close()

    async def attempt(self, draw: random.Random) -> None:
        if draw.random() < 0.04:
            await self._scan()
            return
        if draw.random() < 0.15:
            self.what = draw.choice(_NO_HOST)
            code = PRELUDE + ATTACKS[self.what][0]
        else:
            body = [draw.choice(PARTS)(draw) for _ in range(draw.randint(1, 4))]
            if draw.random() < 0.6:  # each whatever became of the ones before
                body = ["try:\n    " + part.replace("\n", "\n    ") + "\nexcept Exception: pass" for part in body]
            self.what = repr("\n".join(body))
            code = PRELUDE + "\n".join(body)
        before = self._sandbox.pids
        result = await self._sandbox.run(code)
        result.text.encode()
        holds("ESCAPED" not in result.text, f"it escaped: {result.text[:300]!r}")
        holds(len(result.text) < 6000, f"an observation of {len(result.text)} characters")
        after = await self._sandbox.run(AFTER)
        holds(after.text == HEALTHY, f"the next snippet found {after.text[:300]!r}")
        holds(not before or self._sandbox.pids == before, "the worker is another one")

    async def _scan(self) -> None:
        """Earlier code and output are in no memory that a snippet sees."""
        self.what = "a scan of its memory"
        earlier, mine = secrets.token_hex(8), secrets.token_hex(8)
        await self._scanner.run(f"x = 'needle-{earlier}'\nprint(x * 100)")
        scan = SCAN.replace("$PREFIX", "[n]eedle-") + f"# needle-{mine}"
        found = (await self._scanner.run(scan)).text
        holds(found == mine, f"a snippet found {found[:200]!r} in its memory")


class Requests(Kind):
    """What is no request, to the sandbox's HTTP server: a status below 500 and a sentence, or a closed connection."""

    name = "requests to the sandbox"

    async def __aenter__(self) -> "Requests":
        self._runner = web.AppRunner(sandbox_server.application(Echo()), access_log=None)  # type: ignore[arg-type]
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._traces = list[str]()
        self._handler = logging.Handler()
        self._handler.emit = self._note  # type: ignore[method-assign]
        logging.getLogger().addHandler(self._handler)
        return self

    async def __aexit__(self, *error: object) -> None:
        logging.getLogger().removeHandler(self._handler)
        await self._runner.cleanup()

    def _note(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._traces.append(f"{record.getMessage()}: {record.exc_info[1]!r}")

    async def attempt(self, draw: random.Random) -> None:
        content = draw.choice([data for data, _ in REQUESTS.values()])
        if draw.random() < 0.5:
            content = request(change_bytes(draw, b'{"code": "6 * 7"}')[0])
        for _ in range(draw.randrange(3)):
            content = change_bytes(draw, content)[0]
        self.what = repr(content[:200])
        self._traces.clear()
        reader, writer = await asyncio.open_connection(*self._runner.addresses[0][:2])
        answer = b""
        try:
            writer.write(content)
            if draw.random() < 0.8:
                writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), 1.0)
        except (TimeoutError, ConnectionError):
            pass  # it waits for the rest of a request, or the connection is closed
        finally:
            writer.close()
        holds(not self._traces, f"traced: {self._traces}")
        if answer:
            status = int(answer.split(b" ", 2)[1])
            holds(status < 500 and b"Traceback" not in answer, f"answered {answer[:300]!r}")
