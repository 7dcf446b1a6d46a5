"""The reading half of Hugging Face checkpoints: config.json, and tensors straight into shards on their devices.

Needs host memory for one device's shard of one parameter.
"""

import functools
import gc
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array
from safetensors import SafetensorError, safe_open

from orchestra_jax.io import hub
from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.checkpoint.hf_names import Source, sources
from orchestra_jax.models.checkpoint.safetensors import DTYPES, INDEX, ONE_FILE
from orchestra_jax.models.decoder import abstract_params
from orchestra_jax.models.families import FAMILIES, ModelFamily

_ROWS = 128  # read at once: transposing by narrow bands is 3x faster than as a whole, and needs no second buffer


def read_config(source: str | Path, family: ModelFamily | None = None, **overrides: Any) -> DecoderConfig:
    """Read the architecture of a checkpoint.

    Args:
        source: a model directory, its config.json, or the model's id on the hub.
        family: the family that reads it; None: the registered one that config.json names.
        overrides: fields of the config that config.json does not hold, such as scan_layers, remat or attention.

    Raises:
        FileNotFoundError: no config.json at `source`.
        ValueError: an unknown family, or a feature that the family does not compute.
    """
    path = hub.local(source, "model", ("config.json",))
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"No Hugging Face config at {path}; pass a model directory or its config.json.")
    hf = json.loads(path.read_text())
    if family is None:
        name = str(hf.get("model_type"))
        if name not in FAMILIES.names():
            known = ", ".join(FAMILIES.names())
            raise ValueError(
                f"model_type {name!r} of {path} is not supported; give a model of one of {known}, or set "
                "model.family=module:attribute of your own."
            )
        family = FAMILIES.get(name)
    return family.from_hf(hf, **overrides)


def read(
    folder: str | Path,
    mesh: Mesh | None = None,
    family: ModelFamily | None = None,
    **overrides: Any,
) -> tuple[DecoderConfig, dict[str, Any]]:
    """Read a checkpoint; with several processes, each reads only the shards of its own devices.

    Args:
        folder: holds config.json and the safetensors files; or a model's id on the hub.
        mesh: devices for the parameters; None: JAX's default device.
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
        wanted = sources(config)
        stored = {tensors[name].get_dtype() for name in expected(wanted, abstract_params(config))}
        param_dtype = overrides.get("param_dtype") or str(jnp.result_type(*(DTYPES[code] for code in stored)))
        config = config.replace(param_dtype=param_dtype, dtype=overrides.get("dtype") or param_dtype)
        abstract = abstract_params(config)
        if mesh is None:
            return config, jax.tree.map(lambda s, p: read_parameter(s, p, None, tensors), wanted, abstract)
        from orchestra_jax.models.sharding import MeshSharding

        shardings = MeshSharding(mesh).params(abstract, config.axes)
        return config, jax.tree.map(functools.partial(read_parameter, tensors=tensors), wanted, abstract, shardings)


def _open(folder: Path, opened: ExitStack) -> dict[str, Any]:
    """Return lazy slices of every tensor in the folder's files, by name; valid until `opened` closes."""
    if (folder / ONE_FILE).is_file():
        names = [ONE_FILE]
    elif (folder / INDEX).is_file():
        try:
            names = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"{str(folder / INDEX)!r} is no index of a checkpoint; download it again.") from error
    else:
        raise FileNotFoundError(f"No {ONE_FILE} or {INDEX} in {str(folder)!r}; give a folder with safetensors files.")
    if outside := [name for name in names if Path(str(name)).name != name]:
        raise ValueError(f"{str(folder / INDEX)!r} names {outside[0]!r}, which is no file of its own folder.")
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


def expected(wanted: Mapping[str, Any], abstract: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape in the file of every tensor, from trees of sources and of shapes."""
    shapes: dict[str, tuple[int, ...]] = {}

    def add(source: Source, leaf: jax.ShapeDtypeStruct) -> None:
        shape = leaf.shape[len(source.stack) :]
        shapes.update(dict.fromkeys(source.names, shape[::-1] if source.transpose else shape))

    jax.tree.map(add, wanted, abstract)
    return shapes


def check_stored(tensors: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], needs: str, fix: str) -> None:
    """Raise ValueError unless the file's tensors have these shapes, in a dtype that is read.

    Args:
        needs: who wants other shapes, such as "the config needs".
        fix: what to do about them.
    """
    for name, shape in shapes.items():
        found, dtype = tuple(tensors[name].get_shape()), tensors[name].get_dtype()
        if found != shape:
            raise ValueError(f"Tensor {name!r} has shape {found}, but {needs} {shape}; {fix}.")
        if dtype not in DTYPES:
            told = ", ".join(DTYPES.values())
            raise ValueError(f"Tensor {name!r} is stored as {dtype}; give an unquantised checkpoint ({told}).")


def _check_tensors(folder: Path, config: DecoderConfig, tensors: Mapping[str, Any]) -> None:
    needed = expected(sources(config), abstract_params(config))
    head, embed = (config.tensor_names[name] for name in ("lm_head", "embed"))
    missing = [name for name in needed if name not in tensors]
    if missing == [head]:
        raise ValueError(
            f"{str(folder)!r} has no tensor {head!r}; if its head is the embedding, set tie_word_embeddings to true "
            "in its config.json."
        )
    if missing:
        raise ValueError(
            f"{str(folder)!r} lacks {_some(missing)}; check that it is a complete {config.model_type} model."
        )
    unexpected = [name for name in tensors if name not in needed]
    if config.tie_word_embeddings and head in unexpected:
        unexpected.remove(head)
        needed[head] = needed[embed]
    if unexpected:
        raise ValueError(
            f"{str(folder)!r} has unexpected {_some(unexpected)}; give a {config.model_type} model that matches "
            "its config.json."
        )
    check_stored(tensors, needed, "the config needs", "give the config of this checkpoint")
    if head in needed and config.tie_word_embeddings:
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


def read_parameter(
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
