import functools
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from safetensors.numpy import load_file, save_file

from orchestra_jax.models import lora as lora_module
from orchestra_jax.models import saved_tokenizer, tokenizer
from orchestra_jax.models.decoder import forward, logits
from orchestra_jax.models.lora import LoRA, abstract_adapters, attach, init_adapters, load_peft, merge, save_peft
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.models.sharding import MeshSharding, make_mesh
from tests.models.trees import assert_same, drawn_params, to_params, to_tensors

CONFIG = Qwen3Config.preset("tiny", vocab_size=61, num_layers=2, hidden_size=32, intermediate_size=40, head_dim=12)
LAYOUTS = [CONFIG, CONFIG.replace(scan_layers=True)]
REMAT = [CONFIG.replace(remat="full"), CONFIG.replace(scan_layers=True, remat="dots")]  # for what is differentiated
ALL, SOME = LoRA(4, 6.0), LoRA(3, 8.0, ("v", "q", "down"))
LAST = LoRA(4, 6.0, ("q", "v", "down"), layers=1)
Q_A = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
needs_8 = pytest.mark.skipif(jax.device_count() != 8, reason="needs the 8 virtual devices of conftest.py")


def by_numpy(change, tree):
    """The tree with `change` applied to each leaf on the host: outside jit, JAX compiles a program for every shape."""
    return jax.tree.map(lambda x: jnp.asarray(change(np.asarray(x))), tree)


@functools.cache
def base_of(config: Qwen3Config):
    """Larger than the initialisation, so that attention is far from uniform."""
    params = drawn_params(config.replace(remat="none"))
    return by_numpy(lambda x: x * np.float32(1 if x.ndim == config.scan_layers + 1 else 6), params)


fresh = jax.jit(init_adapters, static_argnums=(1, 2))


@functools.cache
def trained(config: Qwen3Config, lora: LoRA):
    """Adapters whose B is not zero and whose effect is as large as the base's."""
    adapters = fresh(jax.random.key(1), config, lora)
    rng = np.random.default_rng(2)
    return by_numpy(lambda x: x + np.float32(0.1) * rng.standard_normal(x.shape, np.float32), adapters)


TOKENS = np.random.default_rng(3).integers(0, CONFIG.vocab_size, (2, 9), np.int32)
POSITIONS = np.broadcast_to(np.arange(9, dtype=np.int32), (2, 9))


@functools.partial(jax.jit, static_argnums=1)
def run(params, config):
    return logits(params, config, forward(params, config, TOKENS, POSITIONS)[0])


@functools.partial(jax.jit, static_argnums=1)
def hidden_of(params, config):
    return forward(params, config, TOKENS, POSITIONS)


def loss(params, config):
    """The negated mean log-probability of the next tokens."""
    scores = jax.nn.log_softmax(run(params, config)[:, :-1])
    return -jnp.take_along_axis(scores, TOKENS[:, 1:, None], axis=2).mean()


@pytest.mark.parametrize("config", LAYOUTS)
def test_fresh_adapters_change_nothing(config) -> None:
    adapters = fresh(jax.random.key(1), config, SOME)
    layer = adapters["layers" if config.scan_layers else "layers_1"]
    assert set(layer) == {"q", "v", "down"}
    stack = (2,) if config.scan_layers else ()
    assert layer["down"]["lora_a"].shape == (*stack, 40, 3)
    assert layer["v"]["lora_b"].shape == (*stack, 3, 24)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), adapters) == jax.tree.map(
        lambda x: (x.shape, x.dtype), abstract_adapters(config, SOME)
    )
    assert np.abs(layer["q"]["lora_b"]).max() == 0
    assert 0.9 * 32**-0.5 < np.abs(layer["q"]["lora_a"]).max() <= 32**-0.5  # PEFT's kaiming_uniform(a=sqrt(5))
    draws = [np.asarray(x).tobytes() for x in jax.tree.leaves(adapters) if np.any(np.asarray(x) != 0)]
    assert len(set(draws)) == len(draws) == 3 * len(adapters)
    base = base_of(config)
    np.testing.assert_array_equal(run(attach(base, adapters, SOME), config), run(base, config))
    assert_same(merge(base, adapters, SOME), base)


@pytest.mark.parametrize("lora", [ALL, SOME])
@pytest.mark.parametrize("config", LAYOUTS)
def test_attached_equals_merged(config, lora) -> None:
    base, adapters = base_of(config), trained(config, lora)
    merged = merge(base, adapters, lora)
    assert jax.tree.structure(merged) == jax.tree.structure(base)
    got, want = run(attach(base, adapters, lora), config), run(merged, config)
    assert float(jnp.abs(want - run(base, config)).max()) > 1
    np.testing.assert_allclose(got, want, atol=2e-5)
    name, index = ("layers", 1) if config.scan_layers else ("layers_1", ...)
    pair, kernel = adapters[name]["q"], np.float64(base[name]["q"]["kernel"][index])
    product = np.float64(pair["lora_a"][index]) @ np.float64(pair["lora_b"][index])
    np.testing.assert_allclose(merged[name]["q"]["kernel"][index], kernel + lora.alpha / lora.rank * product, atol=1e-6)


@pytest.mark.parametrize("config", REMAT)
def test_gradients_equal_those_of_the_full_matrices(config) -> None:
    """dA = s dW B^T and dB = s A^T dW, with dW the gradient of the merged matrix; the base is no argument at all."""
    base, adapters = base_of(config), trained(config, ALL)
    got = jax.jit(jax.grad(lambda tree: loss(attach(base, tree, ALL), config)))(adapters)
    full = jax.jit(jax.grad(loss), static_argnums=1)(merge(base, adapters, ALL), config)
    assert jax.tree.structure(got) == jax.tree.structure(adapters)
    for name, layer in adapters.items():
        for target, pair in layer.items():
            dw = np.float64(full[name][target]["kernel"])
            a, b = np.float64(pair["lora_a"]), np.float64(pair["lora_b"])
            want = {"lora_a": 1.5 * dw @ b.swapaxes(-1, -2), "lora_b": 1.5 * a.swapaxes(-1, -2) @ dw}
            for leaf, value in want.items():
                scale = np.abs(value).max()
                assert scale > 1e-4
                np.testing.assert_allclose(got[name][target][leaf] / scale, value / scale, atol=2e-5)


@pytest.mark.parametrize("config", REMAT)
def test_compute_dtype(config) -> None:
    """bf16 compute with fp32 adapters: everything that flows is bf16, and the result is near the exact one."""
    half = config.replace(dtype="bfloat16")
    base, adapters = base_of(config), trained(config, SOME)
    hidden, kv = hidden_of(attach(base, adapters, SOME), half)
    assert {hidden.dtype, *(leaf.dtype for leaf in jax.tree.leaves(kv))} == {jnp.dtype("bfloat16")}
    exact, _ = hidden_of(attach(base, adapters, SOME), config)
    without, _ = hidden_of(base, config)
    error = jnp.abs(hidden.astype(jnp.float32) - exact).mean()
    assert float(error) < 0.1 * float(jnp.abs(exact - without).mean())
    frozen = by_numpy(lambda x: x.astype(jnp.bfloat16), base)
    merged = merge(frozen, adapters, SOME)
    assert {leaf.dtype for leaf in jax.tree.leaves(merged)} == {jnp.dtype("bfloat16")}
    small = by_numpy(lambda x: np.float32(0.04) * x, adapters)  # bf16 would round it away beside the base
    grads = jax.jit(jax.grad(lambda tree: loss(attach(frozen, tree, SOME), half)))(small)
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype("float32")}
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("stored", ["bfloat16", "float32"])
@pytest.mark.parametrize("config", LAYOUTS)
def test_learner_and_engine_run_one_policy_whatever_the_base_rounds(config, stored) -> None:
    """Changes of some thousandths of a weight: bf16 rounds them away, or up to its next value."""
    base = by_numpy(lambda x: x.astype(jnp.dtype(stored)), base_of(config))
    small = by_numpy(lambda x: np.float32(0.04) * x, trained(config, ALL))
    served = merge(base, small, ALL)
    for compute in ("float32", "bfloat16"):
        computed = config.replace(dtype=compute)

        @functools.partial(jax.jit, static_argnums=1)
        def learner(base, config, adapters):
            return run(attach(base, adapters, ALL), config)

        mine, engines = (jax.nn.log_softmax(scores.astype(jnp.float32)) for scores in (
            learner(base, computed, small), run(served, computed)
        ))  # fmt: skip
        kl = float((jnp.exp(mine) * (mine - engines)).sum(-1).mean())
        assert abs(kl) < 1e-6, (compute, kl)
    # The change is there; test_compute_dtype has its gradient.
    assert float(jnp.abs(run(served, config) - run(base, config)).max()) > 1e-3


def test_without_adapters_the_program_is_the_same() -> None:
    """No leaf and no operation more than a model that knows nothing of adapters."""
    text = run.lower(base_of(CONFIG), CONFIG).as_text()
    matrices = 7 * CONFIG.num_layers + 2 * CONFIG.num_layers + 1  # dense layers, attention's two products, the head
    assert text.count("stablehlo.dot_general") == matrices
    assert not any("lora" in jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(base_of(CONFIG)))
    attached = run.lower(attach(base_of(CONFIG), trained(CONFIG, SOME), SOME), CONFIG).as_text()
    assert attached.count("stablehlo.dot_general") == matrices + 2 * 3 * CONFIG.num_layers


@needs_8
@pytest.mark.parametrize("scan", [False, True])
def test_sharded_like_their_targets(scan, tmp_path) -> None:
    config = CONFIG.replace(scan_layers=scan)
    sharding = MeshSharding(make_mesh(1, 4, 2))
    base, adapters = base_of(config), trained(config, ALL)
    shardings = sharding.params(abstract_adapters(config, ALL))
    stack = (None,) if scan else ()
    layer = shardings["layers" if scan else "layers_0"]
    assert layer["q"]["lora_a"].spec == P(*stack, "fsdp", None)
    assert layer["q"]["lora_b"].spec == P(*stack, None, "tensor")
    assert layer["down"]["lora_a"].spec == P(*stack, "tensor", None)
    assert layer["down"]["lora_b"].spec == P(*stack, None, "fsdp")
    attached = attach(base, adapters, ALL)
    spread = jax.device_put(attached, sharding.params(attached))
    np.testing.assert_allclose(run(spread, config), run(attached, config), atol=2e-5)
    there = jax.device_put(adapters, shardings)
    save_peft(tmp_path / "adapter", config, there, ALL, "base")
    assert_same(load_peft(tmp_path / "adapter", config)[1], adapters)


@pytest.mark.parametrize("lora", [ALL, SOME, LoRA(2, 0.5, ("o",))])
@pytest.mark.parametrize("scan", [False, True])
def test_round_trip_is_bit_equal(scan, lora, tmp_path) -> None:
    config = CONFIG.replace(scan_layers=scan)
    adapters = trained(config, lora)
    folder = tmp_path / "new" / "adapter"
    save_peft(folder, config, adapters, lora, "Qwen/Qwen3-8B")
    assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["adapter"]
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777
    got_lora, got = load_peft(folder, config)
    assert got_lora == lora
    assert jax.tree.structure(got) == jax.tree.structure(adapters)
    assert_same(got, adapters)
    # The same file, with the layers laid out the other way.
    other = config.replace(scan_layers=not scan)
    _, turned = load_peft(folder, other)
    save_peft(tmp_path / "turned", other, turned, lora, "Qwen/Qwen3-8B")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "turned" / name).read_bytes() == (folder / name).read_bytes()


def test_the_tokenizer_goes_along_and_others_may_read_all_of_it(tmp_path) -> None:
    words = tokenizer.build_word_tokenizer(["two words"], "{{ messages }}")
    folder = tmp_path / "adapter"
    save_peft(folder, CONFIG, trained(CONFIG, SOME), SOME, "some/base", tokenizer=words)
    assert saved_tokenizer.load(folder).get_vocab() == words.get_vocab()
    (tmp_path / "plain").write_text("")
    assert {path.stat().st_mode for path in folder.iterdir()} == {(tmp_path / "plain").stat().st_mode}


def test_names_shapes_and_config(tmp_path) -> None:
    save_peft(tmp_path / "adapter", CONFIG, trained(CONFIG, SOME), SOME, "some/base")
    tensors = load_file(tmp_path / "adapter/adapter_model.safetensors")
    prefix = "base_model.model.model.layers"
    assert {name: tensor.shape for name, tensor in tensors.items() if ".1." in name} == {
        f"{prefix}.1.self_attn.q_proj.lora_A.weight": (3, 32),
        f"{prefix}.1.self_attn.q_proj.lora_B.weight": (48, 3),
        f"{prefix}.1.self_attn.v_proj.lora_A.weight": (3, 32),
        f"{prefix}.1.self_attn.v_proj.lora_B.weight": (24, 3),
        f"{prefix}.1.mlp.down_proj.lora_A.weight": (3, 40),
        f"{prefix}.1.mlp.down_proj.lora_B.weight": (32, 3),
    }
    assert len(tensors) == 12
    np.testing.assert_array_equal(tensors[Q_A], trained(CONFIG, SOME)["layers_1"]["q"]["lora_a"].T)
    values = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    wanted = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "some/base",
        "r": 3,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj", "down_proj"],
    }
    assert {name: values[name] for name in wanted} == wanted


def test_other_dtypes(tmp_path) -> None:
    adapters = by_numpy(lambda x: x.astype(jnp.bfloat16), trained(CONFIG, SOME))
    save_peft(tmp_path / "half", CONFIG, jax.tree.map(np.asarray, adapters), SOME, "base")
    assert str(load_file(tmp_path / "half/adapter_model.safetensors")[Q_A].dtype) == "bfloat16"
    assert_same(load_peft(tmp_path / "half", CONFIG)[1], by_numpy(lambda x: x.astype(np.float32), adapters))
    with pytest.raises(ValueError, match=r"Adapter 'layers_0/down/lora_a' is int8; cast it to one of float32, bfloat"):
        save_peft(tmp_path / "int", CONFIG, by_numpy(lambda x: x.astype(np.int8), adapters), SOME, "base")
    assert [path.name for path in tmp_path.iterdir()] == ["half"]


def test_saving_is_all_or_nothing(tmp_path, monkeypatch) -> None:
    old, new = trained(CONFIG, SOME), fresh(jax.random.key(9), CONFIG, SOME)
    folder = tmp_path / "adapter"
    save_peft(folder, CONFIG, old, SOME, "base")
    with pytest.raises(FileExistsError, match=r"adapter' exists; give a new folder, or overwrite=True"):
        save_peft(folder, CONFIG, new, SOME, "base")

    def fail_half_way(tensors, path, **kwargs) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(lora_module, "save_file", fail_half_way)
        with pytest.raises(OSError, match="disk full"):
            save_peft(folder, CONFIG, new, SOME, "base", overwrite=True)
        with pytest.raises(OSError, match="disk full"):
            save_peft(tmp_path / "fresh", CONFIG, new, SOME, "base")
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]
    assert_same(load_peft(folder, CONFIG)[1], old)

    for name in (".adapter.partial", ".adapter.old"):  # what a killed process left behind
        (tmp_path / name).mkdir()
        (tmp_path / name / "junk").write_text("junk")
    save_peft(folder, CONFIG, new, SOME, "base", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]
    assert len(list(folder.iterdir())) == 2
    assert_same(load_peft(folder, CONFIG)[1], new)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rank": 0, "alpha": 1.0}, "rank >= 1 and alpha > 0, not rank=0"),
        ({"rank": 2, "alpha": float("nan")}, "not rank=2 and alpha=nan"),
        ({"rank": 2, "alpha": 1.0, "targets": ("q", "lm_head")}, "Unknown LoRA target 'lm_head'; choose from q, k, v"),
        ({"rank": 2, "alpha": 1.0, "targets": ()}, "no targets; choose from q, k, v"),
    ],
)
def test_wrong_settings(values, message) -> None:
    with pytest.raises(ValueError, match=message):
        LoRA(**values)


def test_adapters_of_another_base_are_refused(tmp_path) -> None:
    base, adapters = base_of(CONFIG), trained(CONFIG, SOME)
    for function in (attach, merge):
        with pytest.raises(ValueError, match=r"have no 'layers_0/gate/lora_a'; give those of this base"):
            function(base, adapters, LoRA(3, 8.0))
        with pytest.raises(ValueError, match=r"have an unexpected 'layers_0/down/lora_a'"):
            function(base, adapters, LoRA(3, 8.0, ("q", "v")))
        with pytest.raises(ValueError, match=r"have no 'layers/down/lora_a'"):
            function(base_of(LAYOUTS[1]), adapters, SOME)
        with pytest.raises(ValueError, match=r"'layers_0/down/lora_a' has shape \(40, 3\), but needs \(40, 5\)"):
            function(base, adapters, LoRA(5, 8.0, SOME.targets))
    with pytest.raises(ValueError, match=r"have an unexpected 'layers_1/down/lora_a'"):
        save_peft(tmp_path / "adapter", CONFIG.replace(num_layers=1), adapters, SOME, "base")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("peft") / "adapter"
    save_peft(folder, CONFIG, trained(CONFIG, SOME), SOME, "base")
    return folder


@pytest.fixture
def folder(pristine, tmp_path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "adapter"))


def set_config(folder: Path, **values) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def rewrite(folder: Path, change) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


def test_wrong_tensors_are_named(folder) -> None:
    tensor = np.zeros((3, 31), np.float32)
    for change, message in [
        (lambda t: t.update({Q_A: tensor}), rf"'{Q_A}' has shape \(3, 31\), but the config and r=3 need \(3, 32\)"),
        (lambda t: t.update({Q_A: np.zeros((3, 32), np.int8)}), rf"'{Q_A}' is stored as I8; give an unquantised"),
        (lambda t: t.pop(Q_A), rf"lacks '{Q_A}' \(1 in all\); give adapters of this base"),
        (lambda t: t.update({Q_A: tensor, "lm_head.lora_A.weight": tensor}), r"has an unexpected 'lm_head\.lora_A\.w"),
    ]:
        rewrite(folder, change)
        with pytest.raises(ValueError, match=message):
            load_peft(folder, CONFIG)
    with pytest.raises(ValueError, match=r"lacks 'base_model\.model\.model\.layers\.2\.mlp"):
        load_peft(folder, CONFIG.replace(num_layers=3))
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors' is damaged \(.*save or download it again"):
        load_peft(folder, CONFIG)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"No adapter_model\.safetensors in '.*adapter'; give a folder that"):
        load_peft(folder, CONFIG)


@pytest.mark.parametrize(
    "values",
    [
        {"peft_type": "IA3"},
        {"use_rslora": True},
        {"use_dora": True},
        {"bias": "all"},
        {"modules_to_save": ["lm_head"]},
        {"rank_pattern": {"q_proj": 8}},
        {"layers_to_transform": [0]},
    ],
    ids=str,
)
def test_variants_are_refused_by_name(values, folder) -> None:
    set_config(folder, **values)
    (name,) = values
    with pytest.raises(ValueError, match=rf"adapter_config\.json' has {name}=.*; only adapters with {name}="):
        load_peft(folder, CONFIG)


def test_wrong_config_files(folder, tmp_path) -> None:
    set_config(folder, rank_pattern=None, alpha_pattern=None)  # an older PEFT's empty patterns
    assert load_peft(folder, CONFIG)[0] == SOME
    for targets in (["q_proj", "lm_head"], "lm_head"):
        set_config(folder, target_modules=targets)
        with pytest.raises(ValueError, match=r"has the target module 'lm_head'; only lists of q_proj, k_proj"):
            load_peft(folder, CONFIG)
    for content in ("{}", "[]", "{"):
        (folder / "adapter_config.json").write_text(content)
        with pytest.raises(ValueError, match=r"adapter_config\.json' is no LoRA config of PEFT"):
            load_peft(folder, CONFIG)
    with pytest.raises(FileNotFoundError, match=r"No adapter_config\.json in '.*nowhere'"):
        load_peft(tmp_path / "nowhere", CONFIG)


@pytest.mark.torch
@pytest.mark.parametrize(("scan", "lora"), [(False, ALL), (False, SOME), (False, LAST), (True, ALL), (True, SOME)])
def test_peft_computes_the_same(scan, lora, tmp_path) -> None:
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = CONFIG.replace(scan_layers=scan)
    base, adapters = base_of(config), trained(config, lora)
    save_peft(tmp_path / "adapter", config, adapters, lora, "base")
    hf = transformers.Qwen3Config(**config.to_hf(), attn_implementation="eager")
    model = transformers.Qwen3ForCausalLM(hf).eval()
    state = {name: torch.tensor(tensor) for name, tensor in to_tensors(base, config).items()}
    assert set(model.load_state_dict(state, strict=False).missing_keys) <= {"lm_head.weight"}  # tied
    tokens = torch.tensor(np.asarray(TOKENS))
    with torch.no_grad():
        without = model(tokens).logits.numpy()
        adapted = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
        want = adapted(tokens).logits.numpy()
    assert np.abs(want - without).max() > 1
    np.testing.assert_allclose(run(base, config), without, atol=1e-4)
    got = run(attach(base, adapters, lora), config)
    assert np.abs(got - want).max() < 1e-4

    # And back: what PEFT writes.
    adapted.save_pretrained(tmp_path / "theirs")
    back_lora, back = load_peft(tmp_path / "theirs", config)
    assert back_lora == lora
    assert_same(back, adapters)
    # And merged, as both do it.
    with torch.no_grad():
        merged = {name: weight.numpy() for name, weight in adapted.merge_and_unload().state_dict().items()}
    ours, theirs = merge(base, adapters, lora), to_params(merged, config)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), ours, theirs)
