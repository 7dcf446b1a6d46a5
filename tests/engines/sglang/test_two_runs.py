"""Two runs that name the same servers or the same folder of weights: neither samples from the other's policy."""

from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.engines.sglang.start import start_servers
from orchestra_jax.io.http_json import ServerError
from orchestra_jax.processes import Processes
from orchestra_jax.processes.lock import FILE_NAME, alone_in

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


@pytest.mark.parametrize(("count", "own"), [(1, []), (2, ["0", "1"])])
async def test_weights_of_processes_that_a_start_lacks_are_removed(servers, tmp_path: Path, count: int, own: list[str]):
    folder, urls = tmp_path / "shared", [each.url for each in servers]
    rollout = RolloutConfig(engine="sglang", limits=LIMITS, urls=urls, weight_folder=str(folder))
    for name in ("0", "1", "2", "3", "4", "5", "6", "03", "notes"):
        (folder / name / "weights-00000007").mkdir(parents=True)
        (folder / name / "weights-00000007" / "model.safetensors").write_bytes(b"16 GB")
        (folder / name / FILE_NAME).touch()
    (folder / "2" / ".weights-00000008.partial").mkdir()
    (folder / "4" / "mine.txt").touch()
    (folder / "5" / FILE_NAME).unlink()
    kept = ["03", "4", "5", "6", "notes"]
    with alone_in(folder / "6"):  # a run is at work there
        for index in range(count):
            await (await start_servers(rollout, CONFIG, masters(), 1, 50, tmp_path, Processes(index, count))).close()
    assert sorted(path.name for path in folder.iterdir() if path.name not in (FILE_NAME, "weights-00000001")) == sorted(
        own + kept
    )
    assert all((folder / name / "weights-00000007" / "model.safetensors").is_file() for name in kept)
