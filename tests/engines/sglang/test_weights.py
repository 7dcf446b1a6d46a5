"""Weight pushes against servers that remember every call: order, failures, folders, and what arrives, byte for byte."""

import asyncio
import base64
import collections
import io
import itertools
import json
import pickle
import shutil
import struct
import weakref
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from aiohttp import web
from safetensors.numpy import load_file

from orchestra_jax.engines.sglang import weights as weight_push
from orchestra_jax.engines.sglang.client import Worker
from orchestra_jax.engines.sglang.tensor_bucket import request_body, split_buckets
from orchestra_jax.engines.sglang.weights import BucketPush, DiskPush
from orchestra_jax.models import qwen3
from orchestra_jax.models.checkpoint import safetensors
from orchestra_jax.models.checkpoint.hf_names import to_tensors
from orchestra_jax.models.sharding import ShardingRules, make_mesh, param_shardings
from orchestra_jax.types import InfrastructureError

CONFIG = qwen3.Qwen3Config.preset(
    "tiny", vocab_size=37, hidden_size=12, intermediate_size=20, num_layers=2, head_dim=6, num_heads=4, num_kv_heads=2
)
BUCKET = 3000  # bytes: several buckets, and the embedding of 1776 bytes beside others
SECONDS = 60
DISK, TENSOR = "/update_weights_from_disk", "/update_weights_from_tensor"
PAUSE, CONTINUE, ABORT = "/pause_generation", "/continue_generation", "/abort_request"
BEGIN, END, INFO, SERVER = "/begin_weight_update", "/end_weight_update", "/model_info", "/server_info"


def params_of(seed: int, config: qwen3.Qwen3Config = CONFIG) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: random.normal(size=leaf.shape).astype(leaf.dtype), dict(qwen3.abstract_params(config))
    )


def unpickle(payload: bytes) -> dict[str, np.ndarray]:
    """What the server reads, with numpy where it has torch; refuses names that its SafeUnpickler refuses."""
    dtypes = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

    class Storage(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            assert (module, name) == ("torch", "ByteStorage")
            return np.uint8

        def persistent_load(self, pid: Any) -> Any:
            assert (pid[0], pid[1], pid[3], pid[5]) == ("storage", np.uint8, "cpu", None)
            return SimpleNamespace(key=pid[2], size=pid[4])

    def load_from_bytes(data: bytes) -> np.ndarray:
        file = io.BytesIO(data)
        assert pickle.load(file) == 0x1950A86A20F9469CFC6C
        assert pickle.load(file) == 1001
        pickle.load(file)  # what machine wrote it: torch ignores it
        storage = Storage(file).load()
        assert pickle.load(file) == [storage.key]
        assert struct.unpack("<q", file.read(8)) == (storage.size,)
        array = np.frombuffer(file.read(storage.size), np.uint8)
        assert array.size == storage.size
        assert not file.read()
        return array

    def rebuild(storage: np.ndarray, offset: int, size: Any, stride: Any, grad: bool, hooks: Any) -> np.ndarray:
        assert (offset, size, stride, grad, hooks) == (0, (storage.size,), (1,), False, {})
        return storage

    known: dict[tuple[str, str], Any] = {
        ("torch.storage", "_load_from_bytes"): load_from_bytes,
        ("torch._utils", "_rebuild_tensor_v2"): rebuild,
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata"): lambda *fields: fields,
        **{("torch", name): dtype for name, dtype in dtypes.items()},
    }

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            return known[module, name]

    found = Unpickler(io.BytesIO(payload)).load()
    flat, tensors = found["flattened_tensor"], {}
    for name, shape, dtype, start, end, size in found["metadata"]:
        assert start % np.dtype(dtype).itemsize == 0, "torch views no unaligned bytes"
        assert end - start == size
        assert name not in tensors
        tensors[name] = flat[start:end].view(dtype).reshape(shape)
    return tensors


@dataclass
class Server:
    """What a server does with control calls.

    Attributes:
        calls: (path, body) in order; a tensor payload is replaced by its tensors.
        faults: how often a path still answers with status 500.
        hang: a path that never answers; `hangs` is set when it was asked for.
    """

    calls: list[tuple[str, Any]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    hang: str = ""
    hangs: asyncio.Event = field(default_factory=asyncio.Event)
    info: dict[str, Any] = field(default_factory=lambda: {"tp_size": 1, "dp_size": 1})
    version: str = "default"
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    refuse: str = ""
    session: bool = False
    paused: bool = False
    worker: Worker = field(init=False)

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.calls]

    async def answer(self, request: web.Request) -> web.Response:
        path, body = request.path, json.loads(await request.read() or b"null")
        if path == TENSOR:
            payloads = [base64.b64decode(text, validate=True) for text in body.pop("serialized_named_tensors")]
            assert len(payloads) == self.info["tp_size"]
            assert len(set(payloads)) == 1
            body["tensors"] = unpickle(payloads[0])
        self.calls.append((path, body))
        if self.hang == path:
            self.hangs.set()
            await asyncio.sleep(2 * SECONDS)
        if self.faults[path] > 0:
            self.faults[path] -= 1
            return web.Response(status=500, text="this fault was ordered")
        if self.refuse == path:
            return web.json_response({"success": False, "message": "no"})
        return self.act(path, body)

    def act(self, path: str, body: Any) -> web.Response:
        if path in (DISK, BEGIN, TENSOR, END):
            assert self.paused
        match path:
            case "/pause_generation" | "/continue_generation":
                self.paused = path == PAUSE
            case "/abort_request":
                return web.Response()
            case "/model_info":
                return web.json_response({"weight_version": self.version})
            case "/server_info":
                return web.json_response(self.info)
            case "/update_weights_from_disk":
                self.weights = load_file(f"{body['model_path']}/model.safetensors")
                self.version = body["weight_version"]
            case "/begin_weight_update" | "/end_weight_update":
                if self.session == (path == BEGIN):
                    return web.json_response({"success": False, "message": "wrong order"}, status=400)
                self.session = path == BEGIN
            case "/update_weights_from_tensor":
                assert self.session
                assert body["load_format"] == "flattened_bucket"
                self.weights = self.weights | body["tensors"]
                self.version = body.get("weight_version", self.version)
            case _:
                return web.Response(status=404)
        return web.json_response({"success": True, "message": "Success"})


@pytest.fixture
async def servers():
    """Two servers, each with the worker that reaches it."""
    found, runners = [Server(), Server()], []
    for server in found:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", server.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.worker = Worker(f"http://127.0.0.1:{runner.addresses[0][1]}")
        runners.append(runner)
    yield found
    for server, runner in zip(found, runners, strict=True):
        await server.worker.close()
        await runner.cleanup()


@pytest.fixture(params=["disk", "bucket"])
def pusher(request, tmp_path):
    return DiskPush(CONFIG, tmp_path / "weights") if request.param == "disk" else bucket_push()


def bucket_push(**options: Any) -> BucketPush:
    return BucketPush(CONFIG, **{"bucket_bytes": BUCKET, **options})


async def push(pusher: Any, servers: list[Server], params: Any, version: int) -> weight_push.PushReport:
    async with asyncio.timeout(SECONDS):
        return await pusher.push([server.worker for server in servers], params, version)


def expect_weights(server: Server, params: Any, version: int, config: qwen3.Qwen3Config = CONFIG) -> None:
    expected = to_tensors(params, config)
    assert set(server.weights) == set(expected)
    for name, array in expected.items():
        assert server.weights[name].dtype == array.dtype
        np.testing.assert_array_equal(server.weights[name], array)
    assert server.version == str(version)
    assert not server.paused
    assert not server.session


async def test_a_push_from_disk_pauses_loads_checks_and_goes_on(servers, tmp_path):
    await push(DiskPush(CONFIG, tmp_path), servers, params_of(0), 3)
    for server in servers:
        assert server.paths == [PAUSE, DISK, INFO, CONTINUE]
        assert server.calls[0][1] == {"mode": "retract"}
        path = str(tmp_path / "weights-00000003")
        assert server.calls[1][1] == {"model_path": path, "weight_version": "3", "flush_cache": True}


async def test_a_push_of_buckets_names_the_version_with_the_last_one_only(servers):
    await push(bucket_push(), servers, params_of(0), 3)
    tensors = safetensors.host_tensors(CONFIG, params_of(0))
    count = len(split_buckets(tensors, BUCKET))
    assert count > 2
    for server in servers:
        assert server.paths == [PAUSE, SERVER, BEGIN, *[TENSOR] * count, END, INFO, CONTINUE]
        bodies = [body for path, body in server.calls if path == TENSOR]
        assert [body.get("weight_version") for body in bodies] == [None] * (count - 1) + ["3"]
        assert [body["flush_cache"] for body in bodies] == [False] * (count - 1) + [True]
        sent = [name for body in bodies for name in body["tensors"]]
        assert sent == [tensor.name for tensor in tensors]


async def test_versions_follow_each_other_and_the_report_counts(servers, pusher):
    size = sum(tensor.nbytes for tensor in safetensors.host_tensors(CONFIG, params_of(0)))
    for version in range(3):
        report = await push(pusher, servers, params_of(version), version)
        for server in servers:
            expect_weights(server, params_of(version), version)
        assert (report.bytes, report.failures) == (size, {})
        assert 0 < report.paused_seconds <= report.seconds


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("tied", [False, True])
async def test_every_tensor_arrives_once_in_its_dtype(servers, tmp_path, dtype, scan, tied):
    config = CONFIG.replace(param_dtype=dtype, scan_layers=scan, tie_word_embeddings=tied)
    for version, pusher in enumerate((DiskPush(config, tmp_path), BucketPush(config, bucket_bytes=BUCKET))):
        servers[0].weights = {}
        await push(pusher, servers[:1], params_of(version, config), version)
        expect_weights(servers[0], params_of(version, config), version, config)


@pytest.mark.skipif(jax.device_count() != 8, reason="needs the 8 virtual devices of conftest.py")
async def test_sharded_parameters_are_gathered(servers, pusher):
    mesh = make_mesh(fsdp=4, tensor=2)
    shardings = param_shardings(mesh, ShardingRules(), qwen3.abstract_params(CONFIG))
    await push(pusher, servers, jax.tree.map(jax.device_put, params_of(5), dict(shardings)), 5)
    expect_weights(servers[0], params_of(5), 5)


async def test_every_rank_of_a_split_server_gets_a_payload(servers):
    servers[1].info["tp_size"] = servers[0].info["tp_size"] = 2
    await push(bucket_push(), servers, params_of(0), 1)
    expect_weights(servers[1], params_of(0), 1)


async def test_buckets_refuse_a_server_of_replicas_and_say_what_to_do(servers):
    servers[1].info["dp_size"] = 2
    report = await push(bucket_push(), servers, params_of(0), 1)
    assert list(report.failures) == [servers[1].worker.url]
    assert "push from disk" in report.failures[servers[1].worker.url]


STAGES = [("disk", stage) for stage in (PAUSE, DISK, INFO, CONTINUE)] + [
    ("bucket", stage) for stage in (PAUSE, SERVER, BEGIN, TENSOR, END, INFO, CONTINUE)
]


@pytest.mark.parametrize(("pusher", "stage"), STAGES, indirect=["pusher"])
async def test_a_server_that_fails_once_is_tried_again(servers, pusher, stage):
    servers[1].faults[stage] = 1
    report = await push(pusher, servers, params_of(1), 1)
    assert report.failures == {}
    for server in servers:
        expect_weights(server, params_of(1), 1)
        assert ABORT not in server.paths
    assert servers[1].paths.count(stage) > servers[0].paths.count(stage)
    assert servers[0].paths.count(PAUSE) == 1


@pytest.mark.parametrize(("pusher", "stage"), STAGES, indirect=["pusher"])
async def test_a_server_that_fails_twice_is_reported_and_told_to_go_on(servers, pusher, stage):
    servers[1].faults[stage] = 1000
    report = await push(pusher, servers, params_of(1), 1)
    expect_weights(servers[0], params_of(1), 1)
    url = servers[1].worker.url
    assert list(report.failures) == [url]
    # An end that fails leaves a session that refuses the next one.
    told = f"{BEGIN} answered with status 400" if stage == END else f"{stage} answered with status 500"
    assert f"{url}{told}" in report.failures[url]
    assert servers[1].paths[-1] == CONTINUE
    assert servers[1].faults[stage] == 1000 - servers[1].paths.count(stage)
    assert not servers[1].session or stage == END
    if stage != CONTINUE:
        assert servers[1].paths.count(PAUSE) == 2
        assert servers[1].paths[-2:] == [ABORT, CONTINUE], "what it was generating has no known weights"


@pytest.mark.parametrize(("pusher", "stage"), [("disk", DISK), ("bucket", TENSOR)], indirect=["pusher"])
async def test_an_answer_without_success_is_a_failure(servers, pusher, stage):
    servers[0].refuse = stage
    report = await push(pusher, servers, params_of(1), 1)
    assert list(report.failures) == [servers[0].worker.url]
    assert servers[0].version == "default"


async def test_a_server_that_reports_another_version_is_a_failure(servers, pusher, monkeypatch):
    act = servers[0].act

    def lie(path, body):
        return web.json_response({"weight_version": "9"}) if path == INFO else act(path, body)

    monkeypatch.setattr(servers[0], "act", lie)
    report = await push(pusher, servers, params_of(1), 1)
    assert "reports weight version '9' after an update to '1'" in report.failures[servers[0].worker.url]
    assert list(report.failures) == [servers[0].worker.url]


async def test_a_server_that_is_gone_does_not_keep_the_others(servers, pusher, unused_tcp_port):
    gone = Server()
    gone.worker = Worker(f"http://127.0.0.1:{unused_tcp_port}")
    report = await push(pusher, [gone, *servers], params_of(1), 1)
    assert list(report.failures) == [gone.worker.url]
    for server in servers:
        expect_weights(server, params_of(1), 1)


async def test_a_push_that_reaches_nobody_raises_and_lets_all_go_on(servers, pusher):
    for server in servers:
        server.faults[INFO] = 1000
    with pytest.raises(InfrastructureError, match=r"No server took weight version 4: .*status 500.*logs\.$"):
        await push(pusher, servers, params_of(1), 4)
    assert [server.paused for server in servers] == [False, False]
    assert (await push(pusher, [], params_of(1), 4)).failures == {}


@pytest.mark.parametrize(("pusher", "stage"), [("disk", DISK), ("bucket", TENSOR)], indirect=["pusher"])
async def test_a_server_that_hangs_fails_by_its_time_limit(servers, pusher, stage):
    pusher.timeout_s, servers[1].hang = 3, stage
    report = await push(pusher, servers, params_of(1), 1)
    assert "gave no whole answer in 3 s" in report.failures[servers[1].worker.url]
    expect_weights(servers[0], params_of(1), 1)
    assert not servers[1].paused


@pytest.mark.parametrize(("pusher", "stage"), [("disk", DISK), ("bucket", TENSOR)], indirect=["pusher"])
async def test_a_cancelled_push_lets_the_servers_go_on(servers, pusher, stage):
    servers[0].hang = servers[1].hang = stage
    running = asyncio.ensure_future(push(pusher, servers, params_of(1), 1))
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*(server.hangs.wait() for server in servers))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for server in servers:
        assert server.paths[-2:] == [ABORT, CONTINUE]
        assert not server.session


async def test_wrong_parameters_touch_no_server(servers, pusher):
    with pytest.raises(ValueError, match="shape"):
        await push(pusher, servers, params_of(1) | {"norm": np.zeros(3, np.float32)}, 1)
    assert [server.calls for server in servers] == [[], []]


@pytest.mark.parametrize("keep", [1, 2, 5])
async def test_old_folders_go_and_foreign_files_stay(servers, tmp_path, keep):
    (tmp_path / ".weights-00000000.partial").mkdir()
    for name in ("weights-best", "notes"):
        (tmp_path / name).mkdir()
    pusher = DiskPush(CONFIG, tmp_path, keep=keep)
    for version in (1, 2, 3, 3):
        await push(pusher, servers, params_of(version), version)
    expect_weights(servers[0], params_of(3), 3)
    kept = {f"weights-0000000{version}" for version in range(max(4 - keep, 1), 4)}
    assert {path.name for path in tmp_path.iterdir()} == kept | {"weights-best", "notes"}


async def test_a_full_folder_stops_the_push_before_it_begins(servers, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(InfrastructureError, match=r"0\.0 GB free, but the weights need .*another path\.$"):
        await push(DiskPush(CONFIG, tmp_path), servers, params_of(1), 1)
    assert [server.calls for server in servers] == [[], []]
    assert list(tmp_path.iterdir()) == []


async def test_a_folder_that_was_not_finished_is_never_loaded(servers, tmp_path, monkeypatch):
    def torn(folder, *args, **kwargs):
        raise OSError("the disk broke")

    monkeypatch.setattr(safetensors, "save_file", torn)
    with pytest.raises(OSError, match="the disk broke"):
        await push(DiskPush(CONFIG, tmp_path), servers, params_of(1), 1)
    assert [server.calls for server in servers] == [[], []]
    assert list(tmp_path.iterdir()) == []


async def test_the_folder_is_complete_before_a_server_is_paused(servers, tmp_path, monkeypatch):
    seen, act = [], servers[0].act

    def look(path, body):
        seen.append((path, (tmp_path / "weights-00000001" / "config.json").is_file()))
        return act(path, body)

    monkeypatch.setattr(servers[0], "act", look)
    await push(DiskPush(CONFIG, tmp_path), servers, params_of(1), 1)
    assert seen[0] == (PAUSE, True)


async def test_without_a_folder_shared_memory_serves_this_host_only(servers, tmp_path, monkeypatch):
    monkeypatch.setattr(weight_push, "_SHARED_MEMORY", tmp_path)
    pusher = DiskPush(CONFIG)
    await push(pusher, servers, params_of(1), 1)
    expect_weights(servers[0], params_of(1), 1)
    assert len(list(tmp_path.glob("orchestra_jax-*/weights-00000001"))) == 1
    del pusher
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"http://10\.0\.0\.7:30000 cannot read a temporary folder.*shared disk\.$"):
        await DiskPush(CONFIG).push([Worker("http://10.0.0.7:30000")], params_of(1), 1)


def test_settings_that_make_no_sense_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"keep is 0.*at least 1\.$"):
        DiskPush(CONFIG, tmp_path, keep=0)
    with pytest.raises(ValueError, match=r"bucket_bytes is 0.*\.$"):
        BucketPush(CONFIG, bucket_bytes=0)


@dataclass
class Tensor:
    """A tensor that knows how many of its kind are in host memory."""

    name: str
    array: np.ndarray
    alive: list[weakref.ref]

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: str(self.array.dtype))
    nbytes = property(lambda self: self.array.nbytes)

    def to_host(self) -> np.ndarray:
        assert all(array() is None for array in self.alive), "one tensor at a time"
        copy = self.array.copy()
        self.alive.append(weakref.ref(copy))
        return copy


@pytest.mark.parametrize("limit", [1, 100, 999, 1000, 10**6])
def test_buckets_keep_the_order_and_their_limit(limit):
    sizes = [4, 96, 100, 500, 500, 1, 2000, 3]
    tensors: Any = [SimpleNamespace(name=str(i), nbytes=size) for i, size in enumerate(sizes)]
    buckets = split_buckets(tensors, limit)
    assert [tensor for bucket in buckets for tensor in bucket] == tensors
    assert all(len(bucket) == 1 or sum(t.nbytes for t in bucket) <= limit for bucket in buckets)
    for bucket, after in itertools.pairwise(buckets):
        assert sum(t.nbytes for t in bucket) + after[0].nbytes > limit, "a bucket is not closed early"


@pytest.mark.parametrize("sizes", [[1], [3, 5], [24, 12, 0, 7], [1_600_001, 2]])
def test_a_body_reads_back_whatever_its_sizes_with_one_tensor_in_memory(sizes):
    random, alive = np.random.default_rng(0), []
    arrays = {f"t{i}.weight": random.normal(size=size).astype(ml_dtypes.bfloat16) for i, size in enumerate(sizes)}
    arrays["wide"] = random.normal(size=(2, 3)).astype(np.float32)
    tensors: Any = [Tensor(name, array, alive) for name, array in arrays.items()]
    body = json.loads(request_body(tensors, {"weight_version": 'a"b'}, copies=3))
    payloads = body.pop("serialized_named_tensors")
    assert body == {"weight_version": 'a"b', "load_format": "flattened_bucket"}
    assert len(payloads) == 3
    assert len(set(payloads)) == 1
    found = unpickle(base64.b64decode(payloads[0], validate=True))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].tobytes() == array.tobytes()
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
