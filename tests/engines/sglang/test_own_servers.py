"""Several trainer processes: each starts and feeds servers of its own."""

from pathlib import Path

import pytest

from orchestra_jax.config.rollout import RolloutConfig, ServerOptions
from orchestra_jax.engines.sglang import start as engines
from orchestra_jax.engines.sglang.start import start_servers, write_model
from orchestra_jax.processes import Processes

from .test_start import CONFIG, LIMITS, Started, masters


def sglang(**settings) -> RolloutConfig:
    return RolloutConfig(engine="sglang", limits=LIMITS, **settings)


async def test_urls_are_dealt_out_and_each_process_pushes_into_a_folder_of_its_own(servers, tmp_path: Path):
    rollout = sglang(urls=[server.url for server in servers], weight_folder=str(tmp_path / "push"))
    for index, server in enumerate(servers):
        running = await start_servers(rollout, CONFIG, masters(), 1, 50, tmp_path, Processes(index, len(servers)))
        assert running.engine.servers_up == [server.url]
        await running.close()
        (update,) = server.updates
        assert Path(update["model_path"]).parent == tmp_path / "push" / str(index)
    assert not (tmp_path / "server").exists()


async def test_own_servers_share_the_model_folder_and_nothing_else(servers, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(engines, "SGLangProcess", Started)
    monkeypatch.setattr(Started, "seen", [servers[0]])
    rollout = sglang(server=ServerOptions(python="p"), weight_folder=str(tmp_path / "push"))
    write_model(rollout, CONFIG, masters(), tmp_path)
    written = (tmp_path / "server" / "model" / "config.json").stat().st_mtime_ns
    running = await start_servers(rollout, CONFIG, masters(), 1, 50, tmp_path, Processes(1, 2))
    await running.close()
    config = Started.seen[1]
    assert (config.model, config.log) == (tmp_path / "server" / "model", tmp_path / "server" / "1" / "0.log")
    assert (tmp_path / "server" / "model" / "config.json").stat().st_mtime_ns == written  # the first process's to write


@pytest.mark.parametrize("index", [0, 1])
async def test_a_server_that_comes_back_is_fed_without_the_other_processes(servers, tmp_path: Path, index: int):
    """The weights are in this process's memory: nothing waits for an update that all processes make together."""
    rollout = sglang(urls=[server.url for server in servers], weight_folder=str(tmp_path / "push"))
    running = await start_servers(rollout, CONFIG, masters(), 1, 50, tmp_path, Processes(index, 2))
    pool = running.engine._pool
    pool.lose(pool.servers[0], "gone")
    servers[index].version = "0"
    while not pool.servers[0].up:
        await pool.servers[0].watch
    await running.close()
    assert len(servers[index].updates) == 2
    assert len(servers[1 - index].updates) == 0
