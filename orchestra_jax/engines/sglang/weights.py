"""New weights into running SGLang servers: from a folder (`DiskPush`), or through HTTP without one (`BucketPush`).

Around both, every server does the same: it is paused with mode "retract" (generations under way go back to its queue),
gets the weights with their version, forgets its cache and goes on, so that a generation finishes under the new weights
and says which tokens are whose. A server that fails gets one more try while it is still paused. If that fails too, its
weights are nobody's: it is told to abort what it was generating and to go on, and the report names it.
"""

import asyncio
import contextlib
import functools
import re
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import jax

from orchestra_jax.engines.sglang.client import Worker, WorkerError
from orchestra_jax.engines.sglang.tensor_bucket import request_body, split_buckets
from orchestra_jax.models.checkpoint import safetensors
from orchestra_jax.models.config import Qwen3Config
from orchestra_jax.models.qwen3 import Params
from orchestra_jax.types import InfrastructureError

CONTROL_S = 60.0  # for pause, continue, begin, end and abort, which wait for the running step of the model
_ATTEMPTS = 2
_SHARED_MEMORY = Path("/dev/shm")
_HERE = ("127.0.0.1", "localhost", "::1")
_FOLDER = re.compile(r"weights-\d+|\.weights-\d+\.(partial|old)")  # what a DiskPush writes, and may delete

# Gives new weights to paused servers, side by side; returns what went wrong, by URL.
_Load = Callable[[Sequence[Worker]], Awaitable[dict[str, str]]]


@dataclass(frozen=True, slots=True)
class PushReport:
    """What one push did.

    Attributes:
        seconds: from the call to the last server's going on.
        paused_seconds: the longest that a server did not generate in it.
        bytes: of the parameters; each server that took them got so many.
        failures: one sentence by URL of each server whose weights are not the new ones.
    """

    seconds: float
    paused_seconds: float
    bytes: int
    failures: Mapping[str, str] = field(default_factory=dict)


class WeightPush(Protocol):
    """A way to bring parameters to servers."""

    async def push(self, workers: Sequence[Worker], params: Params, version: int) -> PushReport:
        """Gives `params` to every worker; one that fails twice is reported and must get no more requests.

        With several processes all must call it, each with the workers that are its own, or with none.

        Raises:
            InfrastructureError: no worker took them, or the folder for them is full.
            ValueError: the parameters are not the config's; the workers were not touched.
        """
        ...


class DiskPush:
    """Writes a checkpoint folder per version, which every server reads while it is paused.

    Servers generate while the folder is written. It has its name only when it is complete.

    Args:
        config: of the parameters.
        folder: where the folders lie; every server sees it under this path. None: a temporary folder in shared memory,
            if all servers are on this host.
        keep: how many versions may lie there at a time; the older ones are deleted before a new one is written.
        timeout_s: for a server to read the folder.
    """

    def __init__(
        self, config: Qwen3Config, folder: str | Path | None = None, *, keep: int = 1, timeout_s: float = 600.0
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}, but the version that is being read must stay; give at least 1.")
        self.config, self.keep, self.timeout_s = config, keep, timeout_s
        self._folder = None if folder is None else Path(folder).absolute()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._lock = asyncio.Lock()

    async def push(self, workers: Sequence[Worker], params: Params, version: int) -> PushReport:
        start = time.perf_counter()
        async with self._lock:
            size = sum(tensor.nbytes for tensor in safetensors.host_tensors(self.config, params))
            folder = self._parent(workers) / f"weights-{version:08}"
            await asyncio.to_thread(self._save, folder, params, size)
            body = {"model_path": str(folder), "weight_version": str(version), "flush_cache": True}

            async def load(paused: Sequence[Worker]) -> dict[str, str]:
                return await _failures(
                    paused, lambda worker: _post(worker, "/update_weights_from_disk", body, self.timeout_s)
                )

            paused_at = time.perf_counter()
            failures = await _update_paused(workers, version, load, _ATTEMPTS)
        return _report(workers, version, failures, start, paused_at, size)

    def _parent(self, workers: Sequence[Worker]) -> Path:
        if self._folder is None:
            far = [worker.url for worker in workers if urlsplit(worker.url).hostname not in _HERE]
            if far or jax.process_count() > 1 or not _SHARED_MEMORY.is_dir():
                whom = far[0] if far else "Every process and server"
                raise ValueError(
                    f"{whom} cannot read a temporary folder of this process; give the weight folder a path that all "
                    "see, on a shared disk."
                )
            self._temporary = tempfile.TemporaryDirectory(prefix="orchestra_jax-", dir=_SHARED_MEMORY)
            self._folder = Path(self._temporary.name)
        return self._folder

    def _save(self, folder: Path, params: Params, size: int) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        found = sorted(path for path in folder.parent.iterdir() if _FOLDER.fullmatch(path.name))
        kept = [path for path in found if not path.name.startswith(".") and path != folder]
        for path in set(found) - set(kept[max(len(kept) - self.keep + 1, 0) :]):
            shutil.rmtree(path, ignore_errors=True)
        free = shutil.disk_usage(folder.parent).free
        if free < size:
            raise InfrastructureError(
                f"{str(folder.parent)!r} has {free / 1e9:.1f} GB free, but the weights need {size / 1e9:.1f} GB; make "
                "room there, or give the weight folder another path."
            )
        safetensors.save(folder, self.config, params, overwrite=True)


class BucketPush:
    """Sends the tensors themselves, many to a request, gathered bucket by bucket.

    The host holds one request (a third larger than its bucket) and the largest tensor, however many servers there are;
    servers wait while it is made. With several processes there is no second try: gathering takes all of them.

    Args:
        config: of the parameters.
        bucket_bytes: of tensors in one request.
        timeout_s: for a server to take one bucket.
    """

    def __init__(self, config: Qwen3Config, *, bucket_bytes: int = 512 << 20, timeout_s: float = 600.0) -> None:
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes is {bucket_bytes}; give the size of a bucket in bytes.")
        self.config, self.bucket_bytes, self.timeout_s = config, bucket_bytes, timeout_s
        self._lock = asyncio.Lock()

    async def push(self, workers: Sequence[Worker], params: Params, version: int) -> PushReport:
        start = time.perf_counter()
        async with self._lock:
            tensors = safetensors.host_tensors(self.config, params)
            buckets = split_buckets(tensors, self.bucket_bytes)

            async def load(paused: Sequence[Worker]) -> dict[str, str]:
                return await self._send(paused, buckets, version)

            paused_at = time.perf_counter()
            attempts = _ATTEMPTS if jax.process_count() == 1 else 1
            failures = await _update_paused(workers, version, load, attempts)
        return _report(workers, version, failures, start, paused_at, sum(tensor.nbytes for tensor in tensors))

    async def _send(
        self, workers: Sequence[Worker], buckets: Sequence[Sequence[safetensors.HostTensor]], version: int
    ) -> dict[str, str]:
        """All buckets to all workers that take them."""
        ranks: dict[str, int] = {}

        async def begin(worker: Worker) -> None:
            ranks[worker.url] = await _tensor_parallel(worker)
            try:
                await _post(worker, "/begin_weight_update", {})
            except WorkerError:
                # A session may still be open: of a trainer that died, or of an end that failed.
                with contextlib.suppress(WorkerError):
                    await end(worker)
                await _post(worker, "/begin_weight_update", {})

        async def end(worker: Worker) -> None:
            await _post(worker, "/end_weight_update", {})

        failures: dict[str, str] = {}
        try:
            failures = await _failures(workers, begin)
            for number, bucket in enumerate(buckets, 1):
                takers = _without(workers, failures)
                if not takers and jax.process_count() == 1:
                    break
                # The version comes with the last one: until then the weights are mixed.
                last = number == len(buckets)
                fields = {"flush_cache": last} | ({"weight_version": str(version)} if last else {})
                body = await asyncio.to_thread(request_body, bucket, fields, max(ranks.values(), default=1))
                failures |= await _failures(takers, functools.partial(self._take, body=body))
                del body  # before the next one is made
        except BaseException:
            await _failures(workers, end)
            raise
        # Also where it failed, since a session left open would refuse the next one.
        return await _failures(workers, end) | failures

    async def _take(self, worker: Worker, body: bytes) -> None:
        await _post(worker, "/update_weights_from_tensor", body, self.timeout_s)


async def _update_paused(workers: Sequence[Worker], version: int, load: _Load, attempts: int) -> dict[str, str]:
    """Pauses the workers, loads, and lets each go on as soon as it reports the version; what failed, by URL."""
    waiting, failures, stuck = list(workers), dict[str, str](), dict[str, str]()
    try:
        for _ in range(attempts):
            failures = await _failures(waiting, _pause)
            failures |= await load(_without(waiting, failures))
            failures |= await _failures(_without(waiting, failures), lambda worker: _check_version(worker, version))
            done = _without(waiting, failures)
            waiting = [worker for worker in waiting if worker.url in failures]
            stuck |= await _failures(done, _continue)
            if not waiting:
                break
        return failures | stuck
    finally:
        await _failures(waiting, _abandon)


async def _failures(workers: Iterable[Worker], act: Callable[[Worker], Awaitable[None]]) -> dict[str, str]:
    """Runs `act` on all workers side by side; the messages of those that failed, by URL."""
    workers = list(workers)
    found = await asyncio.gather(*(act(worker) for worker in workers), return_exceptions=True)
    failures = {}
    for worker, error in zip(workers, found, strict=True):
        if isinstance(error, WorkerError):
            failures[worker.url] = str(error)
        elif error is not None:
            raise error
    return failures


def _without(workers: Iterable[Worker], failures: Mapping[str, str]) -> list[Worker]:
    return [worker for worker in workers if worker.url not in failures]


async def _post(worker: Worker, path: str, body: Mapping[str, Any] | bytes, timeout_s: float = CONTROL_S) -> None:
    """Raises WorkerError also where the server answers that it did not succeed."""
    answer = await worker.post(path, body, timeout_s=timeout_s)
    if isinstance(answer, Mapping) and answer.get("success") is False:
        raise WorkerError(f"The server {worker.url}{path} did not succeed: {answer.get('message')}.", "protocol")


async def _pause(worker: Worker) -> None:
    await _post(worker, "/pause_generation", {"mode": "retract"})


async def _continue(worker: Worker) -> None:
    try:
        await _post(worker, "/continue_generation", {})
    except WorkerError:
        await _post(worker, "/continue_generation", {})


async def _abandon(worker: Worker) -> None:
    """Lets a worker with unknown weights go on without what it was generating."""
    try:
        await _post(worker, "/abort_request", {"rid": "", "abort_all": True})
    finally:
        await _continue(worker)


async def _check_version(worker: Worker, version: int) -> None:
    found = (await worker.get("/model_info", timeout_s=CONTROL_S)).get("weight_version")
    if found != str(version):
        raise WorkerError(
            f"The server {worker.url} reports weight version {found!r} after an update to '{version}'.", "protocol"
        )


async def _tensor_parallel(worker: Worker) -> int:
    """Over how many ranks the server splits its tensors."""
    info = await worker.get("/server_info", timeout_s=CONTROL_S)
    if info.get("dp_size", 1) != 1:
        raise WorkerError(
            f"The server {worker.url} runs dp_size={info['dp_size']}, which takes no tensors by HTTP; push from disk, "
            "or start one server per replica.",
            "protocol",
        )
    return int(info.get("tp_size", 1))


def _report(
    workers: Sequence[Worker], version: int, failures: Mapping[str, str], start: float, paused: float, size: int
) -> PushReport:
    if workers and len(failures) == len(workers):
        raise InfrastructureError(
            f"No server took weight version {version}: {' '.join(failures.values())} Look at the servers' logs."
        )
    now = time.perf_counter()
    return PushReport(now - start, now - paused, size, dict(failures))
