"""LoRA: low-rank adapters of a frozen base's matrices, trained alone, stored as PEFT stores them.

An adapted matrix is W + (alpha / r) A B (Hu et al. 2021, section 4.1), rounded to the base's dtype. Learner and engine
both run this matrix of `merge`; a change that a bf16 weight cannot hold is in neither. If the learner added (x A) B in
its forward pass instead, it would be a policy that no engine samples from. The gradient ignores the rounding, and the
fp32 adapters collect small changes until a weight takes its next value. Adapters are a tree of their own:

    layers_<i>, or layers           one dict per layer, or one dict whose leaves have a leading layer axis (scan_layers)
        q, k, v, o, gate, up, down  {"lora_a": [in, r], "lora_b": [r, out]}; the targets only

A PEFT folder holds `adapter_config.json` and `adapter_model.safetensors`.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PRNGKeyArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from orchestra_jax.config.choices import LoraTarget
from orchestra_jax.io.whole import open_to_readers, whole_folder
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.checkpoint.hf_names import Source, sources
from orchestra_jax.models.checkpoint.reading import check_stored, expected, read_parameter
from orchestra_jax.models.checkpoint.safetensors import HostTensor, check_leaves
from orchestra_jax.models.decoder import abstract_params

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Adapters = Mapping[str, Any]

TARGETS = tuple(target.value for target in LoraTarget)
_PEFT_TARGETS = {f"{target}_proj": target for target in TARGETS}
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Fields of adapter_config.json that change the arithmetic, and the only value that this module computes.
_ONLY: dict[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "use_rslora": False,
    "use_dora": False,
    "lora_bias": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
}


@dataclass(frozen=True)
class LoRA:
    """Rank, scale and targets of the adapters.

    Attributes:
        rank: r, columns of A and rows of B.
        alpha: the adapters' product is scaled by alpha / rank.
        targets: names of the adapted matrices of a layer, in any order; kept in the order of `TARGETS`.
        layers: number of the last layers that are adapted; the backward pass ends at the first of them. 0: all. A
            number needs layers of their own in the tree (no `scan_layers`).
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] = TARGETS
    layers: int = 0

    def __post_init__(self) -> None:
        unknown = [target for target in self.targets if target not in TARGETS]
        if unknown or not self.targets:
            what = f"Unknown LoRA target {unknown[0]!r}" if unknown else "LoRA has no targets"
            raise ValueError(f"{what}; choose from {', '.join(TARGETS)}.")
        if self.rank < 1 or not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"LoRA needs rank >= 1 and alpha > 0, not rank={self.rank} and alpha={self.alpha}.")
        object.__setattr__(self, "targets", tuple(target for target in TARGETS if target in self.targets))

    @property
    def scale(self) -> float:
        """The factor alpha / rank."""
        return self.alpha / self.rank


def init_adapters(key: PRNGKeyArray, config: DecoderConfig, lora: LoRA) -> dict[str, Any]:
    """Return fresh adapters: A uniform in +-1/sqrt(in) as PEFT draws it, B zero, so that the adapted model is the base.

    They are fp32 whatever the base's dtype is, since a bf16 weight would swallow the optimizer's small steps.
    """
    abstract = abstract_adapters(config, lora)
    keys = iter(jax.random.split(key, len(jax.tree.leaves(abstract))))

    def draw(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.Array:
        bound = leaf.shape[-2] ** -0.5
        own = next(keys)
        if path[-1].key == "lora_b":
            return jnp.zeros(leaf.shape, leaf.dtype)
        return jax.random.uniform(own, leaf.shape, leaf.dtype, -bound, bound)

    return cast(dict[str, Any], jax.tree_util.tree_map_with_path(draw, abstract))


def abstract_adapters(config: DecoderConfig, lora: LoRA) -> dict[str, Any]:
    """Return the tree of `init_adapters` with shapes and dtypes only; allocates nothing."""
    return _abstract_for(abstract_params(config), lora)


def attach(base: Params, adapters: Adapters, lora: LoRA) -> dict[str, Any]:
    """Return `merge`'s parameters with the adapters beside their matrices, lora_b times alpha / rank, for `forward`.

    The output is that of the merged matrices to the bit. Only the adapters have a gradient, through (x A) B. Arrays
    that are not adapted are the base's own, not copies.

    Raises:
        ValueError: the adapters are not of this base's layers, targets or shapes, or not of this rank.
    """

    def join(kernel: Any, pair: Mapping[str, Any]) -> dict[str, Any]:
        merged = jax.lax.stop_gradient(_merged(kernel, pair, lora))
        return {"kernel": merged, "lora_a": pair["lora_a"], "lora_b": pair["lora_b"] * lora.scale}

    return _with_adapters(base, adapters, lora, join)


def merge(base: Params, adapters: Adapters, lora: LoRA) -> dict[str, Any]:
    """Return plain parameters whose matrices are W + (alpha / r) A B, summed in fp32, in the base's dtype.

    Raises:
        ValueError: as `attach`.
    """

    def add(kernel: Any, pair: Mapping[str, Any]) -> dict[str, Any]:
        return {"kernel": _merged(kernel, pair, lora)}

    return _with_adapters(base, adapters, lora, add)


def save_peft(
    folder: str | Path,
    config: DecoderConfig,
    adapters: Adapters,
    lora: LoRA,
    base_name: str,
    *,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    overwrite: bool = False,
) -> None:
    """Write the adapters as PEFT does, in their own dtype.

    Under its own name the folder is complete or absent, see `whole_folder`. With several processes all must call this;
    process 0 writes.

    Args:
        base_name: the base's folder or Hub name, for PEFT's `base_model_name_or_path`.
        tokenizer: saved into the folder.
        overwrite: replace an existing folder, whatever it holds.

    Raises:
        FileExistsError: the folder exists, is not empty, and `overwrite` is off.
        ValueError: the adapters are not those of `config` and `lora`.
    """
    folder = Path(folder).absolute()
    _check_tree(abstract_adapters(config, lora), adapters)
    tensors: dict[str, np.ndarray] = {}

    def collect(source: Source, leaf: Any) -> None:
        for name, place in source.tensors():
            tensor = HostTensor(name, leaf, place, source.transpose, str(leaf.dtype))
            tensors[name] = tensor.to_host()

    jax.tree.map(collect, _adapter_sources(config, lora), dict(adapters))
    if jax.process_index() == 0:
        values = _ONLY | {
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base_name,
            "r": lora.rank,
            "lora_alpha": int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha,
            "lora_dropout": 0.0,
            "layers_to_transform": _last(lora.layers, config.num_layers),
            "target_modules": [name for name, target in _PEFT_TARGETS.items() if target in lora.targets],
            "init_lora_weights": True,
            "inference_mode": True,
        }
        with whole_folder(folder, overwrite=overwrite) as partial:
            save_file(tensors, partial / _WEIGHTS, metadata={"format": "pt"})
            if tokenizer is not None:
                tokenizer.save_pretrained(partial)
            (partial / _CONFIG).write_text(json.dumps(values, indent=2) + "\n")
            open_to_readers(partial)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"saved {folder}")


def adapter_base(folder: str | Path) -> str:
    """Return the base's folder or Hub name that the adapters in a PEFT folder name.

    Raises:
        ValueError: they do not name it.
    """
    try:
        base = json.loads((Path(folder) / _CONFIG).read_text())["base_model_name_or_path"]
        if isinstance(base, str) and base:
            return base
    except (ValueError, LookupError, TypeError):
        pass
    raise ValueError(f"{str(Path(folder) / _CONFIG)!r} does not name the base of its adapters; set it there.")


def load_peft(folder: str | Path, config: DecoderConfig) -> tuple[LoRA, dict[str, Any]]:
    """Read the adapters that `save_peft` or PEFT wrote, in the layout (`scan_layers`) of `config`.

    Returns:
        Their settings, and the adapters in fp32, bit-equal to an fp32 file.

    Raises:
        FileNotFoundError: the folder or one of its two files is missing.
        ValueError: not LoRA, a variant that this module does not compute, a damaged file, missing or unexpected
            tensors, or a wrong shape or dtype.
    """
    folder = Path(folder)
    absent = [name for name in (_CONFIG, _WEIGHTS) if not (folder / name).is_file()]
    if absent:
        raise FileNotFoundError(f"No {absent[0]} in {str(folder)!r}; give a folder that PEFT's save_pretrained wrote.")
    lora = _read_config(folder / _CONFIG, config.num_layers)
    try:
        with safe_open(folder / _WEIGHTS, framework="numpy") as file:
            tensors = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return lora, _read_tensors(folder, config, lora, tensors)
    except SafetensorError as error:
        raise ValueError(f"{str(folder / _WEIGHTS)!r} is damaged ({error}); save or download it again.") from error


def _merged(kernel: Any, pair: Mapping[str, Any], lora: LoRA) -> jax.Array:
    """Return W + (alpha / r) A B, summed in fp32 and rounded once."""
    # HIGHEST: a GPU would multiply fp32 matrices in TF32.
    a, b = (pair[name].astype(jnp.float32) for name in ("lora_a", "lora_b"))
    change = jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST) * lora.scale
    return cast(jax.Array, (kernel.astype(jnp.float32) + change).astype(kernel.dtype))


def _layers(params: Params, lora: LoRA) -> list[str]:
    """Return the names of the adapted layers in the tree.

    Raises:
        ValueError: fewer layers than are to be adapted, or some of a stack.
    """
    names = sorted((name for name in params if name.startswith("layers")), key=lambda name: (len(name), name))
    if lora.layers and names == ["layers"]:
        raise ValueError("model.lora.layers adapts some layers of a stack: set model.scan_layers=false, or it to 0.")
    if lora.layers > len(names):
        raise ValueError(f"model.lora.layers={lora.layers}, but the policy has {len(names)} layers.")
    return names[-lora.layers :]


def _abstract_for(base: Params, lora: LoRA) -> dict[str, Any]:
    def pair(kernel: Any) -> dict[str, jax.ShapeDtypeStruct]:
        *stack, inputs, outputs = kernel.shape
        return {
            "lora_a": jax.ShapeDtypeStruct((*stack, inputs, lora.rank), jnp.float32),
            "lora_b": jax.ShapeDtypeStruct((*stack, lora.rank, outputs), jnp.float32),
        }

    names = _layers(base, lora)
    layer = base[names[0]]
    absent = [target for target in lora.targets if target not in layer]
    if absent:
        have = ", ".join(target for target in TARGETS if target in layer)
        raise ValueError(f"A layer of this model has no {', '.join(absent)}; set model.lora.targets to some of {have}.")
    return {name: {target: pair(base[name][target]["kernel"]) for target in lora.targets} for name in names}


def _with_adapters(
    base: Params, adapters: Adapters, lora: LoRA, change: Callable[[Any, Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Return the base with the leaves of `change(kernel, adapter pair)` in every adapted matrix's dict."""
    _check_tree(_abstract_for(base, lora), adapters)
    changed = dict(base)
    for name, pairs in adapters.items():
        layer = base[name]
        adapted = {target: {**layer[target], **change(layer[target]["kernel"], pair)} for target, pair in pairs.items()}
        changed[name] = {**layer, **adapted}
    return changed


def _check_tree(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    check_leaves(wanted, found, "adapter", "give those of this base, its scan_layers and its LoRA's rank")


def _adapter_sources(config: DecoderConfig, lora: LoRA) -> dict[str, Any]:
    """Return a tree shaped like the adapters, with the names of PEFT's tensors; all are transposes of our matrices."""

    def named(source: Source, letter: str) -> Source:
        names = (f"base_model.model.{name.removesuffix('weight')}lora_{letter}.weight" for name in source.names)
        return Source(tuple(names), True, source.stack)

    def pair(source: Source) -> dict[str, Source]:
        return {"lora_a": named(source, "A"), "lora_b": named(source, "B")}

    base = sources(config)
    names = _layers(base, lora)
    return {name: {target: pair(base[name][target]["kernel"]) for target in lora.targets} for name in names}


def _last(count: int, layers: int) -> list[int] | None:
    """Return PEFT's `layers_to_transform` for the last `count` of so many layers."""
    return list(range(layers - count, layers)) if count else None


def _read_config(path: Path, layers: int) -> LoRA:
    """Read adapter_config.json of PEFT; refuse what our adapters cannot express."""
    try:
        values = json.loads(path.read_text())
        rank, alpha, targets = values["r"], values["lora_alpha"], values["target_modules"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r} is no LoRA config of PEFT ({error!r}); save or download it again.") from error
    for name, only in _ONLY.items():
        # PEFT leaves out what is newer than its version, and writes null for an empty pattern.
        found = values.get(name, only)
        if found != only and (found or only):
            raise ValueError(f"{str(path)!r} has {name}={found!r}; only adapters with {name}={only!r} can be read.")
    some = values.get("layers_to_transform") or []
    if some and some != _last(len(some), layers):
        raise ValueError(
            f"{str(path)!r} has layers_to_transform={some}; only adapters with layers_to_transform=null or the last of "
            f"{layers} layers can be read."
        )
    unknown = [targets] if isinstance(targets, str) else [name for name in targets if name not in _PEFT_TARGETS]
    if unknown:
        raise ValueError(
            f"{str(path)!r} has the target module {unknown[0]!r}; only lists of {', '.join(_PEFT_TARGETS)} can be read."
        )
    return LoRA(rank, float(alpha), tuple(_PEFT_TARGETS[name] for name in targets), len(some))


def _read_tensors(folder: Path, config: DecoderConfig, lora: LoRA, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Read the adapters from lazy slices of the file's tensors."""
    wanted, abstract = _adapter_sources(config, lora), abstract_adapters(config, lora)
    shapes = expected(wanted, abstract)
    differences = ("lacks", shapes.keys() - tensors.keys()), ("has an unexpected", tensors.keys() - shapes.keys())
    for what, wrong in differences:
        if wrong:
            raise ValueError(
                f"{str(folder / _WEIGHTS)!r} {what} {min(wrong)!r} ({len(wrong)} in all); give adapters of this base "
                f"that match their {_CONFIG}."
            )
    check_stored(tensors, shapes, f"the config and r={lora.rank} need", "give adapters of this base")
    return cast(dict[str, Any], jax.tree.map(lambda s, a: read_parameter(s, a, None, tensors), wanted, abstract))
