"""Two runs that name the same servers or the same folder of weights: neither samples from the other's policy."""

from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.engines.sglang.start import start_servers
from orchestra_jax.io.http_json import ServerError
from orchestra_jax.processes import Processes

from .stub import one, soon
from .test_start import CONFIG, LIMITS, masters


async def start(url: str, folder: Path, run: Path):
    rollout = RolloutConfig(engine="sglang", limits=LIMITS, urls=[url], weight_folder=str(folder))
    return await start_servers(rollout, CONFIG, masters(), 1, 50, run, Processes())


async def test_weights_of_another_run_with_the_same_version_are_noticed(servers, tmp_path: Path):
    """Two seeds that start together count alike: a server that both push to tells both the version they expect."""
    first = await start(servers[0].url, tmp_path / "first", tmp_path / "a")
    second = await start(servers[0].url, tmp_path / "second", tmp_path / "b")
    for running in (first, second):
        await running.engine.update_weights(masters(), 2)
    with pytest.raises(ServerError, match="cannot be used: it was sampled by weight version"):
        await one(first.engine)
    # It gets the weights anew, and samples from them.
    pushed = len(servers[0].updates)
    await soon(lambda: len(servers[0].updates) > pushed and first.engine.servers_up)
    assert (await one(first.engine)).weight_version == 2
    assert Path(servers[0].updates[-1]["model_path"]).parent == tmp_path / "first"
    await first.close()
    await second.close()


async def test_a_folder_of_weights_belongs_to_one_run(servers, tmp_path: Path):
    folder = tmp_path / "shared"
    first = await start(servers[0].url, folder, tmp_path / "a")
    with pytest.raises(ConfigError, match=r"Another run is at work in .*, or choose another rollout\.weight_folder="):
        await start(servers[1].url, folder, tmp_path / "b")
    assert servers[1].updates == []
    assert [path.name for path in folder.glob("weights-*")] == ["weights-00000001"]
    await first.close()
    await (await start(servers[1].url, folder, tmp_path / "b")).close()
