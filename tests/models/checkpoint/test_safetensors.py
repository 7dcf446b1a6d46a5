import gc
import json
import mmap
import shutil
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from orchestra_jax.models import saved_tokenizer, tokenizer
from orchestra_jax.models.checkpoint import load, reading, safetensors, save
from orchestra_jax.models.checkpoint.hf_names import TURNED
from orchestra_jax.models.decoder import forward, logits
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.models.sharding import MeshSharding, make_mesh
from orchestra_jax.processes.several import on_host
from tests.models.trees import assert_same, drawn_params, to_tensors

CONFIG = Qwen3Config.preset("tiny", vocab_size=300, hidden_size=16, intermediate_size=24, head_dim=8, num_layers=2)
needs_8 = pytest.mark.skipif(jax.device_count() != 8, reason="needs the 8 virtual devices of conftest.py")


def rewrite(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def set_config(folder: Path, **values) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    save(folder, CONFIG, drawn_params(CONFIG))
    return folder


@pytest.fixture
def folder(pristine, tmp_path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "model"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_round_trip_is_bit_equal(dtype, scan, tied, tmp_path) -> None:
    config = CONFIG.replace(param_dtype=dtype, dtype=dtype, scan_layers=scan, tie_word_embeddings=tied)
    params = drawn_params(config)
    folder = tmp_path / "new" / "model"
    save(folder, config, params, max_shard_bytes=6000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(folder.glob("*.safetensors"))
    assert [file.name for file in files] == [
        f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))
    ]
    assert len(files) > 2
    tensors: dict[str, np.ndarray] = {}
    for file in files:
        part = load_file(file)
        assert len(part) == 1 or sum(tensor.nbytes for tensor in part.values()) <= 6000
        assert {index["weight_map"][name] for name in part} == {file.name}
        tensors |= part
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert_same(tensors, to_tensors(params, config))
    assert ("lm_head.weight" in tensors) != tied

    got_config, got = load(folder, scan_layers=scan)
    assert got_config == config
    assert jax.tree.structure(got) == jax.tree.structure(params)
    assert_same(got, params)
    # The same files, with the layers laid out the other way.
    other = config.replace(scan_layers=not scan)
    assert_same(to_tensors(load(folder, scan_layers=not scan)[1], other), tensors)


def test_files_and_config(pristine) -> None:
    assert sorted(path.name for path in pristine.iterdir()) == ["config.json", "model.safetensors"]
    hf = json.loads((pristine / "config.json").read_text())
    assert hf["architectures"] == ["Qwen3ForCausalLM"]
    with safe_open(pristine / "model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}
    assert [path.name for path in pristine.parent.iterdir()] == ["model"]


def test_dtypes(folder, tmp_path) -> None:
    params = drawn_params(CONFIG)
    config, got = load(folder, param_dtype="bfloat16", dtype="float32", remat="full")
    assert (config.dtype, config.param_dtype, config.remat) == ("float32", "bfloat16", "full")
    assert_same(got, jax.tree.map(lambda x: np.asarray(x).astype(jnp.bfloat16), params))
    # The config written tells the parameters' dtype, whatever param_dtype says; numpy parameters are fine.
    save(tmp_path / "half", CONFIG, jax.tree.map(np.asarray, got))
    assert json.loads((tmp_path / "half/config.json").read_text())["torch_dtype"] == "bfloat16"
    config, again = load(tmp_path / "half")
    assert (config.dtype, config.param_dtype) == ("bfloat16", "bfloat16")
    assert_same(again, got)

    def mix(tensors) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float32)

    rewrite(tmp_path / "half", mix)
    config, wide = load(tmp_path / "half")
    assert config.param_dtype == "float32"
    assert_same(wide, jax.tree.map(lambda x: np.asarray(x).astype(np.float32), got))


@needs_8
@pytest.mark.parametrize("sizes", [(8, 1, 1), (2, 2, 2), (1, 4, 2)])
@pytest.mark.parametrize("scan", [False, True])
def test_sharded(sizes, scan, folder, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(reading, "_ROWS", 7)  # bands that end within a shard
    mesh = make_mesh(*sizes)
    config, params = load(folder, mesh, scan_layers=scan)
    _, local = load(folder, scan_layers=scan)
    assert_same(params, local)
    assert jax.tree.map(lambda x: x.sharding, params) == MeshSharding(mesh).params(local)
    save(tmp_path / "again", config, params)
    assert_same(load_file(tmp_path / "again/model.safetensors"), load_file(folder / "model.safetensors"))
    # Replicas may share a host buffer; donating them must not touch each other or the files.
    jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 + 7, tree), donate_argnums=0)(params)
    assert_same(load(tmp_path / "again", mesh, scan_layers=scan)[1], local)


@needs_8
def test_reads_each_distinct_shard_once(folder, monkeypatch) -> None:
    reads = []
    read = reading._read
    monkeypatch.setattr(reading, "_read", lambda *args: reads.append(args[1].shape) or read(*args))
    load(folder, make_mesh(2, 2, 2))
    assert reads.count((300, 16)) == 4  # the embedding, split by fsdp and tensor, in two replicas
    assert reads.count((8,)) == 4  # q_norm and k_norm of two layers, replicated eight times


@pytest.mark.parametrize("scan", [False, True])
def test_host_memory_is_a_few_files_or_one_parameter(scan, tmp_path, monkeypatch) -> None:
    config = Qwen3Config.preset(
        "tiny", vocab_size=8192, hidden_size=256, intermediate_size=1024, num_layers=6, scan_layers=scan
    )
    params = drawn_params(config)
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(params)]
    assert max(sizes) < sum(sizes) / 3
    tensor = 4 * 8192 * 256
    # A device has memory of its own, and JAX holds the last buffer that it copied until a garbage collection. On CPU an
    # array may share the host's buffer, or another thread lets go of it a moment later: so both are played here.
    held: list[np.ndarray] = []

    def device_put(host: np.ndarray, device: object) -> jax.Array:
        held[:] = [host]
        own = np.frombuffer(mmap.mmap(-1, host.nbytes), host.dtype).reshape(host.shape)  # tracemalloc sees no mmap
        own[...] = host
        return jnp.asarray(own)

    monkeypatch.setattr(jax, "device_put", device_put)

    def collected(phase: str, info: dict[str, int]) -> None:
        held.clear()

    save(tmp_path / "warm", config, params, max_shard_bytes=tensor // 16)  # compiles
    files = sorted(file.stat().st_size for file in (tmp_path / "warm").glob("*.safetensors"))
    largest = sum(files[-safetensors.WRITERS - 1 :])
    assert largest < sum(files) / 1.5
    gc.callbacks.append(collected)
    tracemalloc.start()
    try:
        save(tmp_path / "model", config, params, max_shard_bytes=tensor // 16)
        _, saving = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        _, got = load(tmp_path / "model", scan_layers=scan)
        _, loading = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.callbacks.remove(collected)
    assert saving < largest + 1e6
    assert loading < max(sizes) + 1.5e6
    assert_same(got, params)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("shape", [(64, 128), (65, 200), (1, 7), (300, 63), (129,)])
def test_arrays_that_lie_column_by_column_are_turned_bit_for_bit(shape, dtype) -> None:
    for own in ("float32", "bfloat16", "float16"):
        array = np.random.default_rng(0).normal(size=shape).astype(jnp.dtype(own))
        wanted = np.ascontiguousarray(array.T, jnp.dtype(dtype or own))
        found = safetensors._by_rows(array.T, dtype or own)
        assert found.flags.c_contiguous
        assert (found.dtype, found.tobytes()) == (wanted.dtype, wanted.tobytes())


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("most", [6000, 10**9])
def test_files_are_the_same_from_devices_and_from_either_layout_in_host_memory(scan, most, tmp_path) -> None:
    config = CONFIG.replace(scan_layers=scan)
    params = drawn_params(config)
    layouts = {
        "devices": params,
        "rows": on_host(params, "bfloat16"),
        "columns": on_host(params, "bfloat16", lambda path: path[-1].key in TURNED),
    }
    written = []
    for name, found in layouts.items():
        save(tmp_path / name, config, found, dtype="bfloat16", max_shard_bytes=most)
        written.append({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()})
    assert written[0] == written[1] == written[2]
    # And as the library alone writes them, one after the other.
    tensors = {tensor.name: tensor for tensor in safetensors.host_tensors(config, params, "bfloat16")}
    for name, data in written[0].items():
        if name.endswith(".safetensors"):
            names = load_file(tmp_path / "devices" / name)
            whole = {key: np.ascontiguousarray(tensors[key].gathered()) for key in names}
            save_file(whole, tmp_path / "alone", metadata={"format": "pt"})
            assert (tmp_path / "alone").read_bytes() == data
    assert len(written[0]) > 4 or most > 6000


def test_tokenizer_goes_along(tmp_path) -> None:
    words = tokenizer.build_word_tokenizer(["two words"], "{{ messages }}")
    save(tmp_path / "model", CONFIG, drawn_params(CONFIG), tokenizer=words)
    assert saved_tokenizer.load(tmp_path / "model").get_vocab() == words.get_vocab()
    hf = json.loads((tmp_path / "model/config.json").read_text())
    assert (hf["eos_token_id"], hf["pad_token_id"]) == (words.eos_token_id, words.pad_token_id)
    assert load(tmp_path / "model")[0] == CONFIG


def test_saving_is_all_or_nothing(folder, tmp_path, monkeypatch) -> None:
    new = jax.tree.map(lambda x: np.asarray(x) + 1, drawn_params(CONFIG))
    with pytest.raises(FileExistsError, match=r"model' exists; give a new folder, or overwrite=True"):
        save(folder, CONFIG, new)
    written = []

    def fail_at_third(*args, **kwargs) -> None:
        written.append(args)
        if len(written) == 3:
            raise OSError("disk full")
        save_file(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors, "save_file", fail_at_third)
        with pytest.raises(OSError, match="disk full"):
            save(folder, CONFIG, new, max_shard_bytes=6000, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert_same(load(folder)[1], drawn_params(CONFIG))

    # What a killed process left behind.
    for name in (".model.partial", ".model.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "junk.safetensors").write_text("junk")
    save(folder, CONFIG, new, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert_same(load(folder)[1], new)
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty", CONFIG, new)
    assert_same(load(tmp_path / "empty")[1], new)


def test_missing_files(folder, tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No checkpoint folder .*nowhere"):
        load(tmp_path / "nowhere")
    (folder / "config.json").rename(tmp_path / "config.json")
    with pytest.raises(FileNotFoundError, match=r"No Hugging Face config at .*config\.json"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"No model\.safetensors or model\.safetensors\.index\.json in"):
        load(folder)
    save(folder, CONFIG, drawn_params(CONFIG), max_shard_bytes=6000, overwrite=True)
    second = next(folder.glob("model-00002-of-*"))
    second.write_bytes(second.read_bytes()[:-8])
    with pytest.raises(
        ValueError, match=r"model-00002-of-\d+\.safetensors' is damaged \(.*download it or save it again"
    ):
        load(folder)
    second.unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks 'model-00002-of-\d+\.safetensors' of its index"):
        load(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match="is no index of a checkpoint"):
        load(folder)
    for outside in ("../model.safetensors", "/etc/passwd"):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": outside}}))
        with pytest.raises(ValueError, match="which is no file of its own folder"):
            load(folder)


def test_missing_unexpected_and_misshapen_tensors(folder) -> None:
    set_config(folder, num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"lacks ('model\.layers\.2\.[a-z_.]+', ){4}'[a-z_.0-9]+' and 6 more; check"):
        load(folder)
    set_config(folder, num_hidden_layers=1)
    with pytest.raises(
        ValueError, match=r"has unexpected ('model\.layers\.1\.[a-z_.]+', ){4}'[a-z_.0-9]+' and 6 more; g"
    ):
        load(folder)
    set_config(folder, num_hidden_layers=2, intermediate_size=25)
    shapes = r"shape \(16, 24\), but the config needs \(16, 25\)"
    with pytest.raises(ValueError, match=rf"'model\.layers\.0\.mlp\.down_proj\.weight' has {shapes}"):
        load(folder)
    set_config(folder, intermediate_size=24)

    def quantise(tensors) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.int8)

    rewrite(folder, quantise)
    with pytest.raises(ValueError, match=r"'model\.norm\.weight' is stored as I8; give an unquantised"):
        load(folder)


def test_tied_head(folder) -> None:
    set_config(folder, tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"no tensor 'lm_head\.weight'; if its head is the embedding, set tie_word"):
        load(folder)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].copy()}))
    assert "lm_head" in load(folder)[1]
    set_config(folder, tie_word_embeddings=True)
    assert_same(load(folder)[1], drawn_params(CONFIG))
    rewrite(folder, lambda tensors: tensors["lm_head.weight"].__setitem__((-1, -1), 9))
    with pytest.raises(ValueError, match="differs from the embedding; set tie_word_embeddings to false"):
        load(folder)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": np.zeros((4, 4), np.float32)}))
    with pytest.raises(ValueError, match=r"'lm_head\.weight' has shape \(4, 4\), but the config needs \(300, 16\)"):
        load(folder)


def test_refuses_parameters_of_another_config(tmp_path) -> None:
    params = drawn_params(CONFIG)
    with pytest.raises(
        ValueError, match=r"have no 'layers/.*; save with .* they have, not num_layers=2, scan_layers=True"
    ):
        save(tmp_path / "model", CONFIG.replace(scan_layers=True), params)
    with pytest.raises(ValueError, match=r"'embed' has shape \(300, 16\), but needs \(299, 16\)"):
        save(tmp_path / "model", CONFIG.replace(vocab_size=299), params)
    with pytest.raises(ValueError, match="'embed' is int8; cast it to one of float32, bfloat16, float16"):
        save(tmp_path / "model", CONFIG, params | {"embed": params["embed"].astype(jnp.int8)})
    assert not list(tmp_path.iterdir())


@pytest.mark.torch
@pytest.mark.parametrize("tied", [False, True])
def test_transformers_loads_it(tied, tmp_path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = CONFIG.replace(tie_word_embeddings=tied, scan_layers=not tied)
    params = jax.tree.map(lambda x: jnp.asarray(4 * np.asarray(x)), drawn_params(config))
    save(tmp_path / "model", config, params, max_shard_bytes=20_000)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report.values())
    assert isinstance(model, transformers.Qwen3ForCausalLM)
    state = model.eval().state_dict()
    wanted = to_tensors(params, config)
    assert all(np.array_equal(state[name].numpy(), tensor) for name, tensor in wanted.items())
    tokens = torch.arange(24).reshape(2, 12) * 11
    with torch.no_grad():
        want = model(tokens).logits.numpy()
    positions = jnp.broadcast_to(jnp.arange(12), (2, 12))
    hidden, _ = jax.jit(forward, static_argnums=1)(params, config, jnp.asarray(tokens.numpy()), positions)
    got = logits(params, config, hidden)
    assert np.abs(want).max() > 1
    assert np.abs(got - want).max() < 1e-4  # as in test_qwen3_transformers.py

    # And back: what transformers writes, in bfloat16 and in several files.
    model.to(torch.bfloat16).save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    theirs, back = load(tmp_path / "theirs", scan_layers=not tied)
    assert theirs == config.replace(dtype="bfloat16", param_dtype="bfloat16")
    assert_same(back, jax.tree.map(lambda x: np.asarray(x).astype(jnp.bfloat16), params))
