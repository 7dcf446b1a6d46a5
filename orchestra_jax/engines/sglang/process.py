"""The life of one SGLang server that we start ourselves, in an environment of its own."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestra_jax.engines.sglang.protocol import CONTEXT_SPARE
from orchestra_jax.io.http_json import JsonClient, ServerError
from orchestra_jax.types import InfrastructureError

_GUARD = Path(__file__).with_name("guard.py")
_HOST = "127.0.0.1"
_HEALTH_S = 5.0
_POLL_S = 0.5
_TAIL_LINES = 20
_TAIL_BYTES = 20_000
_CPU_FLAGS = (
    "--device=cpu",
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--disable-cuda-graph",
    "--disable-overlap-schedule",
    "--grammar-backend=none",
    "--mem-fraction-static=0.1",
    "--max-total-tokens=16384",
    "--max-running-requests=32",
    "--sleep-on-idle",
)
# The platform is the small package in requirements/; the CPU engine would need kernels that PyPI's wheel lacks. More
# than one thread per process makes a small model 20 times slower.
_CPU_ENVIRONMENT = {
    "SGLANG_PLATFORM": "torchcpu",
    "SGLANG_USE_CPU_ENGINE": "0",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class ServerConfig:
    """The settings of a server to start.

    Attributes:
        python: interpreter of the environment that SGLang is installed in (requirements/README.md).
        model: folder of the checkpoint.
        log: file that its output is appended to.
        port: 0 takes a free one.
        device: "cuda", or "cpu" for the pure-torch platform of requirements/.
        gpus: numbers of its GPUs, one tensor-parallel rank on each; empty: what the environment says.
        version: weight version of the checkpoint.
        dtype: that it computes in, whatever the checkpoint says; None: bfloat16, on a CPU float32.
        max_length: longest sequence in tokens; None: the model's own.
        memory_saver: it can release its GPU memory and resume it; nothing to it on a CPU.
        flags: further flags of sglang.launch_server; they win over ours.
        ready_s: how long it may take to load.
        grace_s: between SIGTERM and SIGKILL when it is stopped.
    """

    python: str | Path
    model: str | Path
    log: str | Path
    port: int = 0
    device: str = "cuda"
    gpus: tuple[int, ...] = ()
    version: int = 0
    dtype: str | None = None
    max_length: int | None = None
    memory_saver: bool = False
    flags: tuple[str, ...] = ()
    ready_s: float = 600.0
    grace_s: float = 15.0

    def command(self, port: int) -> list[str]:
        """Return the command line, without the guard."""
        flags = [f"--model-path={self.model}", f"--host={_HOST}", f"--port={port}"]
        # Ids go in and out, so it needs no tokenizer, and knows no end-of-text id but the model's.
        flags += [f"--weight-version={self.version}", "--skip-tokenizer-init"]
        dtype = self.dtype or ("float32" if self.device == "cpu" else "bfloat16")
        flags.append(f"--dtype={dtype}")
        if dtype != "float32":
            flags.append("--enable-fp32-lm-head")  # logits as the learner's: bf16 factors, fp32 sums
        if self.max_length is not None:
            flags.append(f"--context-length={self.max_length + CONTEXT_SPARE}")
        if len(self.gpus) > 1:
            flags.append(f"--tp-size={len(self.gpus)}")
        if self.memory_saver and self.device != "cpu":
            flags.append("--enable-memory-saver")
        flags += _CPU_FLAGS if self.device == "cpu" else ()
        return [str(self.python), "-m", "sglang.launch_server", *flags, *self.flags]

    def environment(self) -> dict[str, str]:
        """Our own variables with what the device needs."""
        found = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        if self.gpus or self.device == "cpu":
            found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, self.gpus))
        return found | (_CPU_ENVIRONMENT if self.device == "cpu" else {})


class SGLangProcess:
    """One server process: started, watched until ready, restarted, stopped. Nothing of it outlives this process.

    Attributes:
        url: where it listens, the same after every start.
    """

    def __init__(self, config: ServerConfig) -> None:
        if config.device not in ("cuda", "cpu"):
            raise ValueError(f"The server's device {config.device!r} is unknown; choose cuda or cpu.")
        self.config = config
        self._port = config.port or _free_port()
        self.url = f"http://{_HOST}:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """True if its process runs; it may not be ready yet."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start it and wait until it takes work.

        Raises:
            FileNotFoundError: no such interpreter or model folder.
            InfrastructureError: it died, with the last lines of its log, or was not ready in time.
        """
        self.launch()
        try:
            await self._ready()
        except BaseException:
            await self.stop(grace_s=0.0)
            raise

    def launch(self) -> None:
        """Start the process if it does not run; do not wait."""
        config = self.config
        if self.alive:
            return
        if not Path(config.python).is_file():
            raise FileNotFoundError(
                f"No interpreter {str(config.python)!r} for the SGLang server; make its environment as "
                "requirements/README.md says, or give the path of one that has SGLang."
            )
        if not Path(config.model).is_dir():
            raise FileNotFoundError(f"No model folder {str(config.model)!r} for the SGLang server; export one there.")
        Path(config.log).parent.mkdir(parents=True, exist_ok=True)
        guard = [sys.executable, "-I", "-S", "-B", str(_GUARD), str(os.getpid())]
        with open(config.log, "ab") as log:
            self._process = subprocess.Popen(
                [*guard, *config.command(self._port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=config.environment(),
                start_new_session=True,  # Ctrl-C is ours alone, and its process group is its own
            )

    async def revive(self, hung: bool = False) -> None:
        """Restart a server that is dead, or that hangs, and wait until it takes work; leave any other alone."""
        if hung:
            await self.stop(grace_s=0.0)
        if not self.alive:
            await self.start()

    async def stop(self, grace_s: float | None = None) -> None:
        """Send SIGTERM, and SIGKILL to its whole process group if that is not enough; twice is harmless."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, self.config.grace_s if grace_s is None else grace_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the guard leads the group
        process.wait()

    def log_tail(self) -> str:
        """Return the last lines of its log."""
        with contextlib.suppress(FileNotFoundError), open(self.config.log, "rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
            return "\n".join(log.read().decode(errors="replace").rstrip().splitlines()[-_TAIL_LINES:])
        return ""

    async def _ready(self) -> None:
        client, start = JsonClient(self.url), time.monotonic()
        try:
            while True:
                if not self.alive:
                    raise InfrastructureError(
                        f"The SGLang server on port {self._port} died before it was ready; the end of "
                        f"{str(self.config.log)!r}:\n{self.log_tail()}"
                    )
                with contextlib.suppress(ServerError):
                    await client.get("/health", timeout_s=_HEALTH_S)
                    return
                if time.monotonic() - start > self.config.ready_s:
                    raise InfrastructureError(
                        f"The SGLang server on port {self._port} was not ready after {self.config.ready_s:g} s; raise "
                        f"its ready_s, or look at the end of {str(self.config.log)!r}:\n{self.log_tail()}"
                    )
                await asyncio.sleep(_POLL_S)
        finally:
            await client.close()


def reviver(servers: Sequence[SGLangProcess]) -> Callable[[str, bool], Awaitable[None]]:
    """Return a function for `SGLangEngine(revive=...)` that restarts the server of a URL."""
    by_url = {server.url: server for server in servers}

    async def revive(url: str, hung: bool) -> None:
        await by_url[url].revive(hung)

    return revive


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return probe.getsockname()[1]
