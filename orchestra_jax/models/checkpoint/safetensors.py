"""Hugging Face checkpoints, read into our parameter tree and written from it.

A folder holds `config.json` and either `model.safetensors` or `model-0000x-of-0000y.safetensors` with
`model.safetensors.index.json`. Reading needs host memory for one device's shard of one parameter, writing for one
file of `max_shard_bytes` (or for the largest tensor, if that is bigger).
"""

import functools
import gc
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from orchestra_jax.io import hub
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.checkpoint.folders import whole_folder
from orchestra_jax.models.checkpoint.hf_names import Source, sources
from orchestra_jax.models.decoder import abstract_params
from orchestra_jax.models.families import ModelFamily, read_config

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from orchestra_jax.models.sharding import ShardingRules

_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_ROWS = 128  # read at once: transposing by narrow bands is 3x faster than as a whole, and needs no second buffer


def load(
    folder: str | Path,
    mesh: Mesh | None = None,
    *,
    rules: "ShardingRules | None" = None,
    family: ModelFamily | None = None,
    **overrides: Any,
) -> tuple[DecoderConfig, dict[str, Any]]:
    """Read a checkpoint; with several processes, each reads only the shards of its own devices.

    Args:
        folder: holds config.json and the safetensors files; or a model's id on the hub.
        mesh: devices for the parameters; None: JAX's default device.
        rules: rules that split them over the mesh; None: the default `ShardingRules`.
        family: the model's family; None: the registered one that config.json names.
        overrides: fields of the config, such as scan_layers, remat or attention, which config.json does not hold.
            `param_dtype` casts while reading and is the files' own dtype if absent (the widest, if they mix);
            `dtype` is `param_dtype` if absent.

    Returns:
        The config and the parameters, as `models.decoder.init_params` shapes them.

    Raises:
        FileNotFoundError: the folder, its config.json or one of its files is missing.
        ValueError: an unknown family, a damaged file, missing or unexpected tensors, a wrong shape or dtype, or
            a tied checkpoint whose own head differs from its embedding. A head that is equal is ignored.
    """
    folder = hub.local(folder, "model")
    if not folder.is_dir():
        raise FileNotFoundError(f"No checkpoint folder {str(folder)!r}; give one with config.json and *.safetensors.")
    with ExitStack() as opened:
        tensors = _open(folder, opened)
        config = read_config(folder, family, **overrides)
        _check_tensors(folder, config, tensors)
        stored = {tensors[name].get_dtype() for name in _expected(config)}
        param_dtype = overrides.get("param_dtype") or str(jnp.result_type(*(_DTYPES[code] for code in stored)))
        config = config.replace(param_dtype=param_dtype, dtype=overrides.get("dtype") or param_dtype)
        abstract = abstract_params(config)
        if mesh is None:
            return config, jax.tree.map(lambda s, p: _place(s, p, None, tensors), sources(config), abstract)
        from orchestra_jax.models.sharding import MeshSharding, ShardingRules

        shardings = MeshSharding(mesh, rules or ShardingRules()).params(abstract, config.axes)
        place = functools.partial(_place, tensors=tensors)
        return config, jax.tree.map(place, sources(config), abstract, shardings)


def save(
    folder: str | Path,
    config: DecoderConfig,
    params: Params,
    *,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    dtype: str | None = None,
    max_shard_bytes: int = 2_000_000_000,
    overwrite: bool = False,
    alone: bool = False,
) -> None:
    """Write a checkpoint that transformers and SGLang load; a tied head is left out.

    Under its own name the folder is complete or absent, see `whole_folder`. With several processes all must call this,
    unless `alone`: parameters are gathered tensor by tensor, and process 0 writes.

    Args:
        dtype: dtype of the files; None: each parameter's own.
        tokenizer: saved into the folder; its end-of-turn and padding ids go to config.json.
        max_shard_bytes: largest file, unless one tensor alone is larger.
        overwrite: replace an existing folder, whatever it holds.
        alone: no other process takes part; this one holds the parameters whole.

    Raises:
        FileExistsError: the folder exists, is not empty, and `overwrite` is off.
        ValueError: the parameters' structure, shapes or dtype are not the config's or not storable.
    """
    folder = Path(folder).absolute()
    tensors = host_tensors(config, params, dtype)
    writer = alone or jax.process_index() == 0
    with whole_folder(folder, overwrite=overwrite) if writer else nullcontext(folder) as partial:
        _write_tensors(partial, tensors, max_shard_bytes, writer)
        if writer:
            param_dtype = str(jnp.result_type(*(tensor.dtype for tensor in tensors)))
            hf = config.replace(param_dtype=param_dtype).to_hf()
            if tokenizer is not None:
                ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
                hf |= {key: value for key, value in ids.items() if value is not None}
                tokenizer.save_pretrained(partial)
            (partial / "config.json").write_text(json.dumps(hf, indent=2) + "\n")
    if jax.process_count() > 1 and not alone:
        multihost_utils.sync_global_devices(f"saved {folder}")


def _open(folder: Path, opened: ExitStack) -> dict[str, Any]:
    """Return lazy slices of every tensor in the folder's files, by name; valid until `opened` closes."""
    if (folder / _ONE_FILE).is_file():
        names = [_ONE_FILE]
    elif (folder / _INDEX).is_file():
        try:
            names = sorted(set(json.loads((folder / _INDEX).read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"{str(folder / _INDEX)!r} is no index of a checkpoint; download it again.") from error
    else:
        raise FileNotFoundError(f"No {_ONE_FILE} or {_INDEX} in {str(folder)!r}; give a folder with safetensors files.")
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise FileNotFoundError(f"{str(folder)!r} lacks {_some(absent)} of its index; download the missing file(s).")
    tensors: dict[str, Any] = {}
    for name in names:
        try:
            file = opened.enter_context(safe_open(folder / name, framework="numpy"))
        except SafetensorError as error:
            raise ValueError(f"{str(folder / name)!r} is damaged ({error}); download it or save it again.") from error
        tensors |= {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    return tensors


def _expected(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape in the file of every tensor that the config needs."""
    shapes: dict[str, tuple[int, ...]] = {}

    def add(source: Source, leaf: jax.ShapeDtypeStruct) -> None:
        shape = leaf.shape[len(source.stack) :]
        shapes.update(dict.fromkeys(source.names, shape[::-1] if source.transpose else shape))

    jax.tree.map(add, sources(config), abstract_params(config))
    return shapes


def _check_tensors(folder: Path, config: DecoderConfig, tensors: Mapping[str, Any]) -> None:
    expected = _expected(config)
    head, embed = (config.tensor_names[name] for name in ("lm_head", "embed"))
    missing = [name for name in expected if name not in tensors]
    if missing == [head]:
        raise ValueError(
            f"{str(folder)!r} has no tensor {head!r}; if its head is the embedding, set tie_word_embeddings to true "
            "in its config.json."
        )
    if missing:
        raise ValueError(
            f"{str(folder)!r} lacks {_some(missing)}; check that it is a complete {config.model_type} model."
        )
    unexpected = [name for name in tensors if name not in expected]
    if config.tie_word_embeddings and head in unexpected:
        unexpected.remove(head)
        expected[head] = expected[embed]
    if unexpected:
        raise ValueError(
            f"{str(folder)!r} has unexpected {_some(unexpected)}; give a {config.model_type} model that matches "
            "its config.json."
        )
    for name, shape in expected.items():
        found = tuple(tensors[name].get_shape())
        if found != shape:
            raise ValueError(
                f"Tensor {name!r} has shape {found}, but the config needs {shape}; give the config of this checkpoint."
            )
        if tensors[name].get_dtype() not in _DTYPES:
            raise ValueError(
                f"Tensor {name!r} is stored as {tensors[name].get_dtype()}; give an unquantised checkpoint "
                f"({', '.join(_DTYPES.values())})."
            )
    if head in expected and config.tie_word_embeddings:
        size = config.vocab_size
        rows = (slice(start, min(start + _ROWS, size)) for start in range(0, size, _ROWS))
        if not all(np.array_equal(tensors[head][part], tensors[embed][part]) for part in rows):
            raise ValueError(
                f"{str(folder)!r} says tie_word_embeddings but its {head!r} differs from the embedding; set "
                "tie_word_embeddings to false in its config.json."
            )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def _place(
    source: Source, leaf: jax.ShapeDtypeStruct, sharding: NamedSharding | None, tensors: Mapping[str, Any]
) -> Array:
    """Put one parameter on its devices, read one distinct shard after the other."""
    if sharding is None:
        whole = (slice(None),) * leaf.ndim
        return _put(_read(source, leaf, whole, tensors), [None])[0]
    # Not jax.make_array_from_callback: it reads a shard once per replica and holds all of them before it places one.
    devices_of: dict[str, tuple[tuple[slice, ...], list[jax.Device | None]]] = {}
    for device, index in sharding.addressable_devices_indices_map(leaf.shape).items():
        if index is not None:
            devices_of.setdefault(str(index), (index, []))[1].append(device)
    shards: list[Array] = []
    for index, devices in devices_of.values():
        shards += _put(_read(source, leaf, index, tensors), devices)
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, shards)


def _put(host: np.ndarray, devices: Sequence[jax.Device | None]) -> list[Array]:
    arrays = [jax.device_put(host, device) for device in devices]
    return jax.block_until_ready(arrays)


def _read(
    source: Source, leaf: jax.ShapeDtypeStruct, index: tuple[slice, ...], tensors: Mapping[str, Any]
) -> np.ndarray:
    """Return the part of a parameter at `index` (a slice per axis), in the parameter's dtype."""
    ranges = [range(*part.indices(size)) for part, size in zip(index, leaf.shape, strict=True)]
    # JAX drops its reference to the last buffer that it copied at a later call or at a garbage collection.
    gc.collect(0)
    out = np.empty([len(part) for part in ranges], leaf.dtype)
    stack, ranges = ranges[: len(source.stack)], ranges[len(source.stack) :]
    rows, *rest = ranges[::-1] if source.transpose else ranges
    columns = tuple(slice(part.start, part.stop) for part in rest)
    for name, place in source.tensors():
        if any(at not in part for at, part in zip(place, stack, strict=True)):
            continue
        tensor, target = tensors[name], out[tuple(part.index(at) for at, part in zip(place, stack, strict=True))]
        in_file = target.T if source.transpose else target
        for start in range(0, len(rows), _ROWS):
            band = rows[start : start + _ROWS]
            in_file[start : start + _ROWS] = tensor[(slice(band.start, band.stop), *columns)]
    return out


@dataclass(frozen=True)
class HostTensor:
    """One tensor as the files hold it: a parameter, or a part of a stacked one, on the devices of the parameter.

    Attributes:
        name: Hugging Face's name.
        param: the parameter, on its devices or in host memory.
        place: its numbers along the leading axes of a stacked parameter.
        transpose: whether the tensor is [out, in] where the parameter is [in, out].
        dtype: dtype of the tensor: float32, bfloat16 or float16.
    """

    name: str
    param: Any
    place: tuple[int, ...]
    transpose: bool
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        shape: tuple[int, ...] = self.param.shape[len(self.place) :]
        return shape[::-1] if self.transpose else shape

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        return math.prod(self.shape) * jnp.dtype(self.dtype).itemsize

    def to_host(self) -> np.ndarray:
        """Return the tensor in host memory; a collective where the parameter spans several processes."""
        if not isinstance(self.param, jax.Array):
            part = self.param[self.place] if self.place else self.param
            return np.ascontiguousarray(part.T if self.transpose else part, jnp.dtype(self.dtype))
        part = _cut(self.param, self.place, transpose=self.transpose, dtype=self.dtype)
        if not part.is_fully_addressable and not part.is_fully_replicated:
            part = multihost_utils.process_allgather(part, tiled=True)
        return np.ascontiguousarray(part)


@functools.partial(jax.jit, static_argnames=("transpose", "dtype"))
def _cut(param: Array, place: tuple[int, ...], *, transpose: bool, dtype: str) -> Array:
    """Copy and cast a part on the devices: converting the parameter itself would cache its host copy for its life."""
    part = param
    for number in place:
        part = jax.lax.dynamic_index_in_dim(part, number, keepdims=False)
    part = part.astype(dtype)
    return part.T if transpose else jnp.copy(part)


def host_tensors(config: DecoderConfig, params: Params, dtype: str | None = None) -> list[HostTensor]:
    """Return every tensor of a checkpoint, none of them cast or gathered yet.

    Args:
        dtype: dtype of the tensors; None: each parameter's own.

    Raises:
        ValueError: the parameters' structure, shapes or dtype are not the config's or not storable.
    """
    wanted, found = sources(config), dict(params)
    if [path for path, _ in jax.tree.leaves_with_path(wanted)] != [
        path for path, _ in jax.tree.leaves_with_path(found)
    ]:
        raise ValueError(
            f"The parameters are not those of the config (num_layers={config.num_layers}, scan_layers="
            f"{config.scan_layers}, tie_word_embeddings={config.tie_word_embeddings}); save with the config they have."
        )
    tensors: list[HostTensor] = []

    def add(path: tuple[Any, ...], source: Source, leaf: jax.ShapeDtypeStruct, param: Any) -> None:
        where = jax.tree_util.keystr(path, simple=True, separator="/")
        if param.shape != leaf.shape:
            raise ValueError(
                f"Parameter {where!r} has shape {param.shape}, but the config needs {leaf.shape}; save with the config "
                "it has."
            )
        if str(param.dtype) not in _DTYPES.values():
            raise ValueError(f"Parameter {where!r} is {param.dtype}; cast it to one of {', '.join(_DTYPES.values())}.")
        own = dtype or str(param.dtype)
        for name, place in source.tensors():
            tensors.append(HostTensor(name, param, place, source.transpose, own))

    jax.tree_util.tree_map_with_path(add, wanted, abstract_params(config), found)
    return tensors


def _write_tensors(folder: Path, tensors: Sequence[HostTensor], max_bytes: int, writer: bool) -> None:
    files = list(_split(tensors, max_bytes))
    weight_map: dict[str, str] = {}
    for number, group in enumerate(files, 1):
        name = _ONE_FILE if len(files) == 1 else f"model-{number:05}-of-{len(files):05}.safetensors"
        weight_map |= dict.fromkeys((tensor.name for tensor in group), name)
        host = {}
        for tensor in group:
            array = tensor.to_host()
            if writer:
                host[tensor.name] = array
        if writer:
            # transformers refuses files that do not name a framework.
            save_file(host, folder / name, metadata={"format": "pt"})
    if writer and len(files) > 1:
        total = sum(tensor.nbytes for tensor in tensors)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _split(tensors: Sequence[HostTensor], max_bytes: int) -> Iterator[list[HostTensor]]:
    group: list[HostTensor] = []
    size = 0
    for tensor in tensors:
        if group and size + tensor.nbytes > max_bytes:
            yield group
            group, size = [], 0
        group.append(tensor)
        size += tensor.nbytes
    yield group
