"""New weights into running SGLang servers, through a checkpoint folder that they read.

A server is paused with mode "retract" (generations under way go back to its queue), reads the weights with their
version, forgets its cache and goes on. So a generation finishes under the new weights, and its answer says which
version sampled each token: `protocol.read_answer` checks it against the versions that the server got, and `Turn.spans`
keeps it.

A server that fails gets one more try while it is still paused, unless it gave no answer at all. If that fails too, its
weights are unknown: it is told to abort what it was generating and to go on, and the report names it.
"""

import asyncio
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestra_jax.config.plugin_checks import on_this_host
from orchestra_jax.io.http_json import JsonClient, ServerError
from orchestra_jax.io.temporary import TemporaryFolder
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.checkpoint import safetensors
from orchestra_jax.types import InfrastructureError

_CONTROL_S = 60.0  # for pause, continue and abort, which wait for the running step of the model
_READ_S = 600.0  # for a server to read the folder
_ABANDON_S = 10.0  # for abort and continue of a server that has failed: it may never answer
_ATTEMPTS = 2
_SHARED_MEMORY = Path("/dev/shm")
WRITTEN = re.compile(r"weights-\d+|\.weights-\d+\.(partial|old)")  # folders that a sync writes, and may delete


@dataclass(frozen=True, slots=True)
class SyncReport:
    """The result of one update of the servers' weights.

    Attributes:
        seconds: from the call until the last server went on.
        paused_seconds: the longest that a server did not generate in it.
        bytes: of the weights in the servers' dtype; each server that took them got so many.
        failures: one sentence by URL of each server whose weights are not the new ones.
    """

    seconds: float
    paused_seconds: float
    bytes: int
    failures: Mapping[str, str] = field(default_factory=dict)


class DiskWeightSync:
    """Writes a checkpoint folder per version, which every server reads while it is paused.

    Servers generate while the folder is written. It gets its name when it is complete, and the folder of the version
    before is deleted first.

    Args:
        config: of the parameters.
        folder: where the folders lie; every server sees it under this path. None: a temporary folder in shared memory,
            if all servers are on this host.
        dtype: dtype that the servers compute in; in a run `RolloutConfig.serving_dtype`. The weights are cast to it
            where they lie, before they travel. None: they keep their own.
        run: beginning of the versions that servers tell, so that those of another run are never taken for ours.
    """

    def __init__(
        self, config: DecoderConfig, folder: str | Path | None = None, *, dtype: str | None = None, run: str = ""
    ) -> None:
        self.config, self.dtype, self._run = config, dtype, run
        self._folder = None if folder is None else Path(folder).absolute()
        self._temporary: TemporaryFolder | None = None
        self._lock = asyncio.Lock()

    def label(self, version: int) -> str:
        """Return what a server tells as its `weight_version` that has these weights."""
        return f"{self._run}{version}"

    async def sync(self, servers: Sequence[JsonClient], params: Params, version: int) -> SyncReport:
        """Give `params` to every server; one that fails twice is reported and must get no more requests.

        Each of several processes gives its own servers the parameters, which it holds whole.

        Raises:
            InfrastructureError: no server took them, or the folder for them is full.
            ValueError: the parameters are not the config's, or a server cannot see the folder; no server was touched.
        """
        start = time.perf_counter()
        async with self._lock:
            size = sum(tensor.nbytes for tensor in safetensors.host_tensors(self.config, params, self.dtype))
            folder = self._parent(servers) / f"weights-{version:08}"
            await asyncio.to_thread(self._save, folder, params, size)
            paused_at = time.perf_counter()
            failures = await self._load(servers, folder, version)
        if servers and len(failures) == len(servers):
            raise InfrastructureError(
                f"No server took weight version {version}: {' '.join(failures.values())} Look at the servers' logs."
            )
        now = time.perf_counter()
        return SyncReport(seconds=now - start, paused_seconds=now - paused_at, bytes=size, failures=failures)

    def close(self) -> None:
        """Remove the temporary folder, if there is one; more than once is harmless."""
        if self._temporary is not None:
            self._temporary.remove()
            self._temporary = self._folder = None

    def _parent(self, servers: Sequence[JsonClient]) -> Path:
        if self._folder is None:
            far = [server.url for server in servers if not on_this_host(server.url)]
            if far or not _SHARED_MEMORY.is_dir():
                who = far[0] if far else "Every server"
                raise ValueError(
                    f"{who} cannot read a temporary folder of this process: set rollout.weight_folder to a path that "
                    "all see, on a shared disk."
                )
            self._temporary = TemporaryFolder(_SHARED_MEMORY, "orchestra_jax-weights-")
            self._folder = self._temporary.path
        return self._folder

    def _save(self, folder: Path, params: Params, size: int) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for path in folder.parent.iterdir():
            if WRITTEN.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)
        free = shutil.disk_usage(folder.parent).free
        if free < size:
            raise InfrastructureError(
                f"{str(folder.parent)!r} has {free / 1e9:.1f} GB free, but the weights need {size / 1e9:.1f} GB; "
                "free some space there, or set rollout.weight_folder to another path."
            )
        safetensors.save(folder, self.config, params, dtype=self.dtype, overwrite=True, alone=True)

    async def _load(self, servers: Sequence[JsonClient], folder: Path, version: int) -> dict[str, str]:
        """Have the servers read the folder, and go on once they report the version; return failures by URL."""
        label = self.label(version)
        body = {"model_path": str(folder), "weight_version": label, "flush_cache": True}
        waiting, failures, stuck = list(servers), dict[str, str](), dict[str, str]()
        silent = set[str]()  # URLs of those that hang: a second try would take as long

        async def read(server: JsonClient) -> None:
            try:
                await _post(server, "/pause_generation", {"mode": "retract"})
                await _post(server, "/update_weights_from_disk", body, _READ_S)
                found = (await server.get("/model_info", timeout_s=_CONTROL_S)).get("weight_version")
            except ServerError as error:
                if error.kind == "timeout":
                    silent.add(server.url)
                raise
            if found != label:
                said = f"The server {server.url} reports weight version {found!r} after an update to {label!r}."
                raise ServerError(said, "protocol")

        try:
            for _ in range(_ATTEMPTS):
                found = await _failures(waiting, read)
                done = [server for server in waiting if server.url not in found]
                waiting = [server for server in waiting if server.url in found.keys() - silent]
                failures = {url: problem for url, problem in failures.items() if url in silent} | found
                stuck |= await _failures(done, _continue)
                if not waiting:
                    break
            return failures | stuck
        finally:
            await _failures([server for server in servers if server in waiting or server.url in silent], _abandon)


async def _failures(servers: Sequence[JsonClient], act: Callable[[JsonClient], Awaitable[None]]) -> dict[str, str]:
    """Run `act` on all servers side by side; return the messages of those that failed, by URL."""
    found = await asyncio.gather(*(act(server) for server in servers), return_exceptions=True)
    failures = {}
    for server, error in zip(servers, found, strict=True):
        if isinstance(error, ServerError):
            failures[server.url] = str(error)
        elif error is not None:
            raise error
    return failures


async def _post(server: JsonClient, path: str, body: Mapping[str, Any], timeout_s: float = _CONTROL_S) -> None:
    """Make a request; raise ServerError also where the server answers that it did not succeed."""
    answer = await server.post(path, body, timeout_s=timeout_s)
    if isinstance(answer, Mapping) and answer.get("success") is False:
        raise ServerError(f"The server {server.url}{path} did not succeed: {answer.get('message')}.", "protocol")


async def _continue(server: JsonClient, timeout_s: float = _CONTROL_S) -> None:
    try:
        await _post(server, "/continue_generation", {}, timeout_s)
    except ServerError:
        await _post(server, "/continue_generation", {}, timeout_s)


async def _abandon(server: JsonClient) -> None:
    """Let a server with unknown weights go on without what it was generating."""
    try:
        await _post(server, "/abort_request", {"rid": "", "abort_all": True}, _ABANDON_S)
    finally:
        await _continue(server, _ABANDON_S)
