"""Weight updates of servers that remember every call: order, failures, folders, and what arrives, byte for byte."""

import asyncio
import json
import shutil
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from aiohttp import web
from safetensors.numpy import load_file

from orchestra_jax.engines.sglang import weight_sync
from orchestra_jax.engines.sglang.weight_sync import DiskWeightSync, SyncReport
from orchestra_jax.io.http_json import JsonClient
from orchestra_jax.models import decoder
from orchestra_jax.models.checkpoint import safetensors
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.models.sharding import MeshSharding, make_mesh
from orchestra_jax.types import InfrastructureError
from tests.engines.sglang.stub import SECONDS, StubServer, soon
from tests.models.trees import to_tensors

CONFIG = Qwen3Config.preset(
    "tiny", vocab_size=37, hidden_size=12, intermediate_size=20, num_layers=2, head_dim=6, num_heads=4, num_kv_heads=2
)
DISK, INFO = "/update_weights_from_disk", "/model_info"
PAUSE, CONTINUE, ABORT = "/pause_generation", "/continue_generation", "/abort_request"
STAGES = (PAUSE, DISK, INFO, CONTINUE)


def params_of(seed: int, config: Qwen3Config = CONFIG) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: random.normal(size=leaf.shape).astype(leaf.dtype), dict(decoder.abstract_params(config))
    )


class Server(StubServer):
    """Reads the weights that it is given; `client` reaches it."""

    client: JsonClient
    weights: dict[str, np.ndarray]

    async def _update(self, request: web.Request) -> web.Response:
        answer = await super()._update(request)
        if not self.refuse_weights:
            self.weights = load_file(f"{self.updates[-1]['model_path']}/model.safetensors")
        return answer


@pytest.fixture
async def servers():
    """Two servers, each with the client that reaches it."""
    found = [Server(), Server()]
    for server in found:
        await server.start()
        server.client = JsonClient(server.url)
    yield found
    for server in found:
        await server.client.close()
        await server.kill()


@pytest.fixture
def sync(tmp_path):
    return DiskWeightSync(CONFIG, tmp_path / "weights")


async def update(sync: DiskWeightSync, servers: list[Server], params: Any, version: int) -> SyncReport:
    async with asyncio.timeout(SECONDS):
        return await sync.sync([server.client for server in servers], params, version)


def expect_weights(server: Server, params: Any, version: int, config: Qwen3Config = CONFIG) -> None:
    expected = to_tensors(params, config)
    assert set(server.weights) == set(expected)
    for name, array in expected.items():
        assert server.weights[name].dtype == array.dtype
        np.testing.assert_array_equal(server.weights[name], array)
    assert server.version == str(version)
    assert not server.paused


async def test_an_update_pauses_loads_checks_and_goes_on(servers, tmp_path):
    await update(DiskWeightSync(CONFIG, tmp_path), servers, params_of(0), 3)
    for server in servers:
        assert server.calls == [PAUSE, DISK, INFO, CONTINUE]
        path = str(tmp_path / "weights-00000003")
        assert server.updates == [{"model_path": path, "weight_version": "3", "flush_cache": True}]


async def test_versions_follow_each_other_and_the_report_counts(servers, sync):
    size = sum(tensor.nbytes for tensor in safetensors.host_tensors(CONFIG, params_of(0)))
    for version in range(3):
        report = await update(sync, servers, params_of(version), version)
        for server in servers:
            expect_weights(server, params_of(version), version)
        assert (report.bytes, report.failures) == (size, {})
        assert 0 < report.paused_seconds <= report.seconds


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("tied", [False, True])
async def test_every_tensor_arrives_once_in_its_dtype(servers, tmp_path, dtype, scan, tied):
    config = CONFIG.replace(param_dtype=dtype, scan_layers=scan, tie_word_embeddings=tied)
    await update(DiskWeightSync(config, tmp_path), servers[:1], params_of(1, config), 1)
    expect_weights(servers[0], params_of(1, config), 1, config)


@pytest.mark.skipif(jax.device_count() != 8, reason="needs the 8 virtual devices of conftest.py")
async def test_sharded_parameters_are_gathered(servers, sync):
    mesh = make_mesh(fsdp=4, tensor=2)
    shardings = MeshSharding(mesh).params(decoder.abstract_params(CONFIG))
    await update(sync, servers, jax.tree.map(jax.device_put, params_of(5), dict(shardings)), 5)
    expect_weights(servers[0], params_of(5), 5)


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.skipif(jax.device_count() != 8, reason="needs the 8 virtual devices of conftest.py")
async def test_fp32_masters_travel_in_the_serving_dtype(servers, tmp_path, scan):
    config = CONFIG.replace(scan_layers=scan)
    shardings = MeshSharding(make_mesh(fsdp=8)).params(decoder.abstract_params(config))
    masters = jax.tree.map(jax.device_put, params_of(6, config), dict(shardings))
    report = await update(DiskWeightSync(config, tmp_path, dtype="bfloat16"), servers, masters, 6)
    halves = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), params_of(6, config))
    for server in servers:
        expect_weights(server, halves, 6, config)
    assert report.bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(masters)) // 2
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"
    # What leaves a device is the cast tensor, and not a master that the host casts.
    tensor = safetensors.host_tensors(config, masters, "bfloat16")[0]
    assert safetensors._cut(tensor.param, tensor.place, transpose=False, dtype=tensor.dtype).dtype == "bfloat16"
    assert tensor.to_host().nbytes == tensor.nbytes


@pytest.mark.parametrize("stage", STAGES)
async def test_a_server_that_fails_once_is_tried_again(servers, sync, stage):
    servers[1].sick[stage] = 1
    report = await update(sync, servers, params_of(1), 1)
    assert report.failures == {}
    for server in servers:
        expect_weights(server, params_of(1), 1)
        assert ABORT not in server.calls
    assert servers[1].calls.count(stage) > servers[0].calls.count(stage)
    assert servers[0].calls.count(PAUSE) == 1


@pytest.mark.parametrize("stage", STAGES)
async def test_a_server_that_fails_twice_is_reported_and_told_to_go_on(servers, sync, stage):
    servers[1].sick[stage] = 1000
    report = await update(sync, servers, params_of(1), 1)
    expect_weights(servers[0], params_of(1), 1)
    url = servers[1].client.url
    assert list(report.failures) == [url]
    assert f"{url}{stage} answered with status 500" in report.failures[url]
    assert servers[1].calls[-1] == CONTINUE
    assert servers[1].sick[stage] == 1000 - servers[1].calls.count(stage)
    if stage != CONTINUE:
        assert servers[1].calls.count(PAUSE) == 2
        assert servers[1].calls[-2:] == [ABORT, CONTINUE], "what it was generating has no known weights"


async def test_an_answer_without_success_is_a_failure(servers, sync):
    servers[0].refuse_weights = 200
    report = await update(sync, servers, params_of(1), 1)
    assert list(report.failures) == [servers[0].client.url]
    assert servers[0].version == "0"


async def test_a_server_that_reports_another_version_is_a_failure(servers, sync):
    servers[0].info = {"weight_version": "9"}
    report = await update(sync, servers, params_of(1), 1)
    assert "reports weight version '9' after an update to '1'" in report.failures[servers[0].client.url]
    assert list(report.failures) == [servers[0].client.url]


async def test_a_server_that_is_gone_does_not_keep_the_others(servers, sync, unused_tcp_port):
    gone = SimpleNamespace(client=JsonClient(f"http://127.0.0.1:{unused_tcp_port}"))
    report = await update(sync, [gone, *servers], params_of(1), 1)
    assert list(report.failures) == [gone.client.url]
    for server in servers:
        expect_weights(server, params_of(1), 1)


async def test_an_update_that_no_server_takes_raises_and_lets_all_go_on(servers, sync):
    for server in servers:
        server.sick[INFO] = 1000
    with pytest.raises(InfrastructureError, match=r"No server took weight version 4: .*status 500.*logs\.$"):
        await update(sync, servers, params_of(1), 4)
    assert [server.paused for server in servers] == [False, False]
    assert (await update(sync, [], params_of(1), 4)).failures == {}


async def test_a_server_that_hangs_fails_by_its_time_limit(servers, sync, monkeypatch):
    """It is not tried again, which would take as long, but is told to go on."""
    servers[1].hangs, post, asked = [DISK], servers[1].client.post, []

    def in_short(path, body, *, timeout_s):
        asked.append((path, timeout_s))
        if path == DISK:
            assert timeout_s == 600.0
            timeout_s = 0.3
        return post(path, body, timeout_s=timeout_s)

    monkeypatch.setattr(servers[1].client, "post", in_short)
    report = await update(sync, servers, params_of(1), 1)
    assert "gave no whole answer in 0.3 s" in report.failures[servers[1].client.url]
    expect_weights(servers[0], params_of(1), 1)
    assert not servers[1].paused
    paths, limits = zip(*asked, strict=True)
    assert paths == ("/pause_generation", DISK, "/abort_request", "/continue_generation")
    assert max(limits[2:]) <= 10


async def test_a_cancelled_update_lets_the_servers_go_on(servers, sync):
    servers[0].hangs = servers[1].hangs = [DISK]
    running = asyncio.ensure_future(update(sync, servers, params_of(1), 1))
    await soon(lambda: all(DISK in server.calls for server in servers))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for server in servers:
        assert server.calls[-2:] == [ABORT, CONTINUE]


async def test_wrong_parameters_touch_no_server(servers, sync):
    with pytest.raises(ValueError, match="shape"):
        await update(sync, servers, params_of(1) | {"norm": np.zeros(3, np.float32)}, 1)
    assert [server.calls for server in servers] == [[], []]


async def test_old_folders_go_and_foreign_files_stay(servers, tmp_path):
    (tmp_path / ".weights-00000000.partial").mkdir()
    for name in ("weights-best", "notes"):
        (tmp_path / name).mkdir()
    sync = DiskWeightSync(CONFIG, tmp_path)
    for version in (1, 2, 3, 3):
        await update(sync, servers, params_of(version), version)
    expect_weights(servers[0], params_of(3), 3)
    assert {path.name for path in tmp_path.iterdir()} == {"weights-00000003", "weights-best", "notes"}


async def test_a_full_folder_stops_the_update_before_it_begins(servers, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(InfrastructureError, match=r"0\.0 GB free, but the weights need .*rollout.weight_folder.*\.$"):
        await update(DiskWeightSync(CONFIG, tmp_path), servers, params_of(1), 1)
    assert [server.calls for server in servers] == [[], []]
    assert list(tmp_path.iterdir()) == []


async def test_a_folder_that_was_not_finished_is_never_loaded(servers, tmp_path, monkeypatch):
    def torn(folder, *args, **kwargs):
        raise OSError("the disk broke")

    monkeypatch.setattr(safetensors, "save_file", torn)
    with pytest.raises(OSError, match="the disk broke"):
        await update(DiskWeightSync(CONFIG, tmp_path), servers, params_of(1), 1)
    assert [server.calls for server in servers] == [[], []]
    assert list(tmp_path.iterdir()) == []


async def test_the_folder_is_complete_before_a_server_is_paused(servers, tmp_path, monkeypatch):
    seen, post = [], servers[0].client.post

    def look(path, body, **options):
        seen.append((path, (tmp_path / "weights-00000001" / "config.json").is_file()))
        return post(path, body, **options)

    monkeypatch.setattr(servers[0].client, "post", look)
    await update(DiskWeightSync(CONFIG, tmp_path), servers, params_of(1), 1)
    assert seen[0] == (PAUSE, True)


async def test_without_a_folder_shared_memory_serves_this_host_only(servers, tmp_path, monkeypatch):
    monkeypatch.setattr(weight_sync, "_SHARED_MEMORY", tmp_path)
    (tmp_path / "orchestra_jax-weights-killed" / "weights-00000009").mkdir(parents=True)  # of a run that was killed
    sync = DiskWeightSync(CONFIG)
    await update(sync, servers, params_of(1), 1)
    expect_weights(servers[0], params_of(1), 1)
    assert len(list(tmp_path.glob("orchestra_jax-*/weights-00000001"))) == 1
    sync.close()
    sync.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(
        ValueError,
        match=r"http://10\.0\.0\.7:30000 cannot read .*set rollout.weight_folder .*shared disk\.$",
    ):
        await DiskWeightSync(CONFIG).sync([JsonClient("http://10.0.0.7:30000")], params_of(1), 1)
