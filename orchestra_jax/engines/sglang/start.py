"""The engine of a run: in this process, on servers that are there, or on servers that the run starts itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.engines.base import Engine
from orchestra_jax.engines.embedded import EmbeddedEngine
from orchestra_jax.engines.sglang.engine import SGLangEngine
from orchestra_jax.engines.sglang.process import ServerConfig, SGLangProcess, reviver
from orchestra_jax.engines.sglang.weights import DiskWeightSync
from orchestra_jax.models import checkpoint
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.processes import Processes
from orchestra_jax.types import InfrastructureError


@dataclass(frozen=True)
class RunEngine:
    """An engine and the servers that were started for it.

    Attributes:
        shares_gpus: the servers' memory is the learner's between `free_gpus` and the next `engine.update_weights`.
    """

    engine: Engine
    servers: Sequence[SGLangProcess] = ()
    shares_gpus: bool = False

    async def free_gpus(self) -> None:
        """Before an update: frees the GPUs that servers share with the learner; no generation may be under way.

        Raises:
            RuntimeError: a server keeps its memory.
        """
        if self.shares_gpus and isinstance(self.engine, SGLangEngine):
            await self.engine.release_memory()

    async def close(self) -> None:
        """Ends the engine, then what was started for it."""
        await self.engine.close()
        for server in self.servers:
            await server.stop()


def first_model(cfg: WorldConfig, model: DecoderConfig, params: Params, directory: Path) -> None:
    """Writes the folder that the run's own servers start from, where it has any; of several processes one does it.

    Args:
        params: all of them in this process.
    """
    r = cfg.rollout
    if r.engine is EngineName.sglang and not r.urls:
        checkpoint.save(_model_folder(directory), model, params, dtype=r.serving_dtype, overwrite=True, alone=True)


async def start_engine(
    cfg: WorldConfig,
    model: DecoderConfig,
    params: Params,
    version: int,
    *,
    tokenizer_size: int,
    directory: Path,
    processes: Processes | None = None,
) -> RunEngine:
    """The engine, ready and holding `params` as `version`.

    The tokenizer has `tokenizer_size` ids. Servers of the run have their first weights and their logs in `directory`.
    Each of `processes` has servers of its own: those it starts, once one process has written `first_model`, or its
    share of rollout.urls.

    Raises:
        ConfigError: a server does not start, does not answer, or has another model.
    """
    r, processes = cfg.rollout, processes or Processes()
    if r.limits.max_length > model.max_position_embeddings:
        raise ConfigError(
            f"The policy was made for {model.max_position_embeddings} tokens (max_position_embeddings in its "
            f"config.json), but rollout.limits.max_length={r.limits.max_length}: lower that, or take another policy."
        )
    if r.engine is EngineName.embedded:
        return RunEngine(EmbeddedEngine(model, params, r, version=version))
    servers = [] if r.urls else _servers(cfg, version, directory, processes)
    urls = processes.mine(r.urls) or [server.url for server in servers]
    folder = r.weight_folder
    if folder is not None and processes.count > 1:
        folder = str(Path(folder) / str(processes.index))
    engine = SGLangEngine(
        urls,
        max_length=r.limits.max_length,
        vocab_size=model.vocab_size,
        weight_sync=DiskWeightSync(model, folder, dtype=r.serving_dtype),
        version=version,
        concurrency=max(1, r.slots // len(urls)),
        request_timeout_s=r.limits.deadline_s,
        revive=reviver(servers) if servers else None,
    )
    running = RunEngine(engine, servers, r.server.share_gpus)
    try:
        if processes.count == 1:
            first_model(cfg, model, params, directory)
        for number, server in enumerate(servers, 1):
            print(f"Starting SGLang server {number} of {len(servers)} ...", flush=True)
            server.launch()
        for server in servers:
            await server.start()
        for sentence in await engine.check(model, tokenizer_size, r.serving_dtype):
            print(sentence, flush=True)
        await engine.update_weights(params, version)
    except BaseException as error:
        await running.close()
        if isinstance(error, InfrastructureError | OSError | ValueError | RuntimeError):
            raise ConfigError(str(error)) from error
        raise
    return running


def _model_folder(directory: Path) -> Path:
    return directory / "server" / "model"


def _servers(cfg: WorldConfig, version: int, directory: Path, processes: Processes) -> list[SGLangProcess]:
    r, s = cfg.rollout, cfg.rollout.server
    assert s.python is not None  # config_checks
    gpus = s.gpus or [[]] * s.count
    logs = directory / "server" / (str(processes.index) if processes.count > 1 else "")
    port = s.port + processes.index * s.count if s.port else 0  # processes may share a host
    return [
        SGLangProcess(
            ServerConfig(
                python=Path(s.python).absolute(),
                model=_model_folder(directory),
                log=logs / f"{number}.log",
                port=port + number if port else 0,
                device=s.device,
                gpus=tuple(gpus[number]),
                version=version,
                dtype=r.serving_dtype,
                max_length=r.limits.max_length,
                memory_saver=s.share_gpus,
                flags=tuple(s.flags),
                ready_s=s.ready_s,
            )
        )
        for number in range(s.count)
    ]
