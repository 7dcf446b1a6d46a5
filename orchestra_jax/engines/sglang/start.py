"""Start SGLang as a run's engine: on servers that are there, or on servers that the run starts itself."""

import os
import re
import shutil
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.engines.base import RunEngine
from orchestra_jax.engines.sglang.engine import SGLangEngine
from orchestra_jax.engines.sglang.process import ServerConfig, SGLangProcess, reviver
from orchestra_jax.engines.sglang.protocol import CONTEXT_SPARE
from orchestra_jax.engines.sglang.weight_sync import WRITTEN, DiskWeightSync
from orchestra_jax.models import checkpoint
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.processes import Processes
from orchestra_jax.processes.lock import FILE_NAME, alone_in
from orchestra_jax.types import InfrastructureError

_LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_UPDATES_S = 3600.0  # an answer may wait so long for new weights; its work is limited by the collector
_NOTICE_S = 120.0  # to notice that a server is gone and to give one that was started again its weights


class SGLangRunEngine(RunEngine):
    """An SGLang engine and the servers that the run has started for it.

    Args:
        shares_gpus: the learner uses the servers' memory between `free_gpus` and the next `engine.update_weights`.
        held: what is given back when everything is closed.
    """

    engine: SGLangEngine

    def __init__(
        self,
        engine: SGLangEngine,
        servers: Sequence[SGLangProcess] = (),
        shares_gpus: bool = False,
        held: ExitStack | None = None,
    ) -> None:
        super().__init__(engine)
        self._servers, self._shares_gpus, self._held = servers, shares_gpus, held or ExitStack()

    async def free_gpus(self) -> None:
        if self._shares_gpus:
            await self.engine.release_memory()

    async def close(self) -> None:
        with self._held:
            await self.engine.close()
            for server in self._servers:
                await server.stop()


def write_model(rollout: RolloutConfig, model: DecoderConfig, params: Params, directory: Path) -> None:
    """Write the checkpoint that the run's servers start from."""
    checkpoint.save(_model_folder(directory), model, params, dtype=rollout.serving_dtype, overwrite=True, alone=True)


async def start_servers(
    rollout: RolloutConfig,
    model: DecoderConfig,
    params: Params,
    version: int,
    tokenizer_size: int,
    directory: Path,
    processes: Processes,
) -> SGLangRunEngine:
    """Start the servers of this process, check all that it uses, and give them the weights; see `start_engine`.

    SGLang refuses a context that is longer than the model's, unless its own variable says otherwise.
    """
    longest, most = rollout.limits.max_length, model.max_position_embeddings - CONTEXT_SPARE
    if not rollout.urls and longest > most and not os.environ.get(_LONGER):
        raise ConfigError(
            f"SGLang needs a context of {CONTEXT_SPARE} tokens more than rollout.limits.max_length={longest}, and the "
            f"policy was made for {model.max_position_embeddings} (max_position_embeddings in its config.json): set "
            f"rollout.limits.max_length={most} or less."
        )
    servers = [] if rollout.urls else own_servers(rollout, version, directory, processes)
    urls = processes.mine(rollout.urls) or [server.url for server in servers]
    folder, held = None, ExitStack()
    if rollout.weight_folder is not None:
        folder = Path(rollout.weight_folder, str(processes.index) if processes.count > 1 else "")
    engine = SGLangEngine(
        urls,
        max_length=rollout.limits.max_length,
        vocab_size=model.vocab_size,
        weight_sync=DiskWeightSync(model, folder, dtype=rollout.serving_dtype, run=f"{uuid.uuid4().hex[:8]}-"),
        version=version,
        concurrency=max(1, rollout.slots // len(urls)),
        request_timeout_s=rollout.limits.deadline_s + _UPDATES_S,
        down_timeout_s=rollout.server.ready_s + _NOTICE_S,
        releases=rollout.server.share_gpus,
        revive=reviver(servers) if servers else None,
    )
    running = SGLangRunEngine(engine, servers, rollout.server.share_gpus, held)
    try:
        if folder is not None:  # another run's weights there would have the same names
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(alone_in(folder, setting="rollout.weight_folder"))
            _remove_gone(Path(str(rollout.weight_folder)), processes)
        if servers and processes.count == 1:
            write_model(rollout, model, params, directory)
        for number, server in enumerate(servers, 1):
            print(f"Starting SGLang server {number} of {len(servers)} ...", flush=True)
            server.launch()
        for server in servers:
            await server.start()
        for sentence in await engine.check(model, tokenizer_size, rollout.serving_dtype):
            print(sentence, flush=True)
        await engine.update_weights(params, version)
    except BaseException as error:
        await running.close()
        if isinstance(error, InfrastructureError | OSError | ValueError | RuntimeError):
            raise ConfigError(str(error)) from error
        raise
    return running


def _remove_gone(root: Path, processes: Processes) -> None:
    """Remove the weights of processes that an earlier start of the run had and this one lacks: 16 GB each at 8B.

    A folder is left as it is if it has anything but a lock and weights, or if a run is at work in it.
    """
    for place in sorted(root.iterdir()):
        if not re.fullmatch(r"0|[1-9]\d*", place.name) or place.is_symlink() or not place.is_dir():
            continue
        number, here = int(place.name), processes.count if processes.count > 1 else 0  # one process has no number
        names = {path.name for path in place.iterdir()}
        ours = FILE_NAME in names and all(map(WRITTEN.fullmatch, names - {FILE_NAME}))
        if ours and number >= here and number % processes.count == processes.index:
            with suppress(OSError, ConfigError):
                with alone_in(place):
                    for name in names - {FILE_NAME}:
                        shutil.rmtree(place / name)
                    (place / FILE_NAME).unlink()
                place.rmdir()


def own_servers(rollout: RolloutConfig, version: int, directory: Path, processes: Processes) -> list[SGLangProcess]:
    """Return the servers that this process starts itself, not started yet."""
    options = rollout.server
    assert options.python is not None  # config.checks refuses a run without
    logs = directory / "server" / (str(processes.index) if processes.count > 1 else "")
    return [
        SGLangProcess(
            ServerConfig(
                python=Path(options.python).absolute(),
                model=_model_folder(directory),
                log=logs / f"{number}.log",
                device=options.device,
                gpus=tuple(gpus),
                version=version,
                dtype=rollout.serving_dtype,
                max_length=rollout.limits.max_length,
                memory_saver=options.share_gpus,
                flags=tuple(options.flags),
                ready_s=options.ready_s,
            )
        )
        for number, gpus in enumerate(options.gpus or [[]])
    ]


def _model_folder(directory: Path) -> Path:
    return directory / "server" / "model"
