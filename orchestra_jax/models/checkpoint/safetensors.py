"""The format of Hugging Face checkpoints, and its writing half; `models.checkpoint.reading` reads them.

A folder holds `config.json` and either `model.safetensors` or `model-0000x-of-0000y.safetensors` with
`model.safetensors.index.json`. Threads write files side by side while the next one is gathered. This needs host memory
for five files of `max_shard_bytes` (or for tensors that are bigger). A tensor that is in host memory already, in the
file's dtype and layout, needs none.
"""

import functools
import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from huggingface_hub import StateDictSplit, split_state_dict_into_shards_factory
from jax.experimental import multihost_utils
from jaxtyping import Array
from safetensors.numpy import save_file

from orchestra_jax.io.whole import open_to_readers, whole_folder
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.checkpoint.hf_names import Source, sources
from orchestra_jax.models.decoder import abstract_params

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 500_000_000
WRITERS = 4  # threads; each writes a file
_BLOCK = 64  # rows and columns that are turned together: both sides of such a block stay in a core's cache
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def save(
    folder: str | Path,
    config: DecoderConfig,
    params: Params,
    *,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    dtype: str | None = None,
    max_shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
    alone: bool = False,
) -> None:
    """Write a checkpoint that transformers and SGLang load; a tied head is left out.

    Under its own name the folder is complete or absent, see `whole_folder`. With several processes all must call this,
    unless `alone`: parameters are gathered tensor by tensor, and each process writes its share of the files.

    Args:
        dtype: dtype of the files; None: each parameter's own.
        tokenizer: saved into the folder; its end-of-turn and padding ids go to config.json, if the policy knows them.
        max_shard_bytes: largest file, unless one tensor alone is larger.
        overwrite: replace an existing folder, whatever it holds.
        alone: no other process takes part; this one holds the parameters whole.

    Raises:
        FileExistsError: the folder exists, is not empty, and `overwrite` is off.
        ValueError: the parameters' structure, shapes or dtype are not the config's or not storable.
    """
    folder = Path(folder).absolute()
    tensors = host_tensors(config, params, dtype)
    files = split_state_dict_into_shards_factory(
        {tensor.name: tensor for tensor in tensors},
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_bytes,
    )
    place = whole_folder(folder, overwrite=overwrite)
    several = jax.process_count() > 1 and not alone
    if several:
        from orchestra_jax.models.checkpoint.together import written_together

        place = written_together(place, folder, functools.partial(write_files, tensors=tensors, files=files))
    with place as partial:
        if several and jax.process_index() > 0:
            return  # the first process writes the rest
        if not several:
            write_files(partial, tensors, files)
        if files.is_sharded:
            index = {"metadata": files.metadata, "weight_map": files.tensor_to_filename}
            (partial / INDEX).write_text(json.dumps(index, indent=2) + "\n")
        param_dtype = str(jnp.result_type(*(tensor.dtype for tensor in tensors)))
        hf = config.replace(param_dtype=param_dtype).to_hf()
        if tokenizer is not None:
            ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
            hf |= {key: value for key, value in ids.items() if value is not None and value < config.vocab_size}
            tokenizer.save_pretrained(partial)
        (partial / "config.json").write_text(json.dumps(hf, indent=2) + "\n")
        open_to_readers(partial)


@dataclass(frozen=True)
class HostTensor:
    """One tensor as the files hold it: a parameter, or a part of a stacked one, on the devices of the parameter."""

    name: str  # Hugging Face's
    param: Any  # on its devices or in host memory
    place: tuple[int, ...]  # numbers along the leading axes of a stacked parameter
    transpose: bool  # True where the tensor is [out, in] and the parameter [in, out]
    dtype: str  # float32, bfloat16 or float16

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
        """Return the tensor in host memory, row after row; a collective where the parameter spans several processes."""
        return _by_rows(self.gathered(), self.dtype)

    def gathered(self) -> np.ndarray:
        """Return the tensor in host memory, where it may lie column by column in another dtype; a collective, too."""
        if not isinstance(self.param, jax.Array):
            part = self.param[self.place] if self.place else self.param
            return np.asarray(part.T if self.transpose else part)
        part = _cut(self.param, self.place, transpose=self.transpose, dtype=self.dtype)
        if not part.is_fully_addressable and not part.is_fully_replicated:
            part = multihost_utils.process_allgather(part, tiled=True)
        return np.asarray(part)


def _by_rows(found: np.ndarray, dtype_name: str) -> np.ndarray:
    """Return an array row after row in a dtype. One that lies column by column is turned block by block."""
    dtype = jnp.dtype(dtype_name)
    if found.ndim != 2 or found.flags.c_contiguous:
        return np.ascontiguousarray(found, dtype)
    out = np.empty(found.shape, dtype)
    source, target = found, out
    if found.dtype == dtype:  # NumPy copies integers faster than bfloat16, which it does not know
        source, target = (each.view(f"u{dtype.itemsize}") for each in (found, out))
    for row in range(0, found.shape[0], _BLOCK):
        for column in range(0, found.shape[1], _BLOCK):
            block = slice(row, row + _BLOCK), slice(column, column + _BLOCK)
            target[block] = source[block]
    return out


@functools.partial(jax.jit, static_argnames=("transpose", "dtype"))
def _cut(param: Array, place: tuple[int, ...], *, transpose: bool, dtype: str) -> Array:
    """Copy and cast a part on the devices: converting the parameter itself would cache its host copy for its life."""
    part = param
    for number in place:
        part = jax.lax.dynamic_index_in_dim(part, number, keepdims=False)
    part = part.astype(dtype)
    return part.T if transpose else jnp.copy(part)


def host_tensors(config: DecoderConfig, params: Params, dtype: str | None = None) -> list[HostTensor]:
    """Return every tensor of a checkpoint, none of them cast or gathered yet; arguments and errors as in `save`."""
    has = f"num_layers={config.num_layers}, scan_layers={config.scan_layers}"
    fix = f"save with the config they have, not {has}, tie_word_embeddings={config.tie_word_embeddings}"
    check_leaves(abstract_params(config), params, "parameter", fix)
    tensors: list[HostTensor] = []

    def add(source: Source, param: Any) -> None:
        own = dtype or str(param.dtype)
        for name, place in source.tensors():
            tensors.append(HostTensor(name, param, place, source.transpose, own))

    jax.tree.map(add, sources(config), dict(params))
    return tensors


def check_leaves(wanted: Mapping[str, Any], found: Mapping[str, Any], kind: str, fix: str) -> None:
    """Raise ValueError unless `found` has the leaves and shapes of `wanted`, in a dtype that a file can hold."""
    wanted, found = (
        {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in jax.tree.leaves_with_path(tree)}
        for tree in (dict(wanted), dict(found))
    )
    missing, unexpected = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    if missing or unexpected:
        what = "no" if missing else "an unexpected"
        raise ValueError(f"The {kind}s have {what} {min(missing or unexpected)!r}; {fix}.")
    for path, leaf in wanted.items():
        name = f"{kind.capitalize()} {path!r}"
        if found[path].shape != leaf.shape:
            raise ValueError(f"{name} has shape {found[path].shape}, but needs {leaf.shape}; {fix}.")
        if str(found[path].dtype) not in DTYPES.values():
            raise ValueError(f"{name} is {found[path].dtype}; cast it to one of {', '.join(DTYPES.values())}.")


def write_files(
    folder: Path, tensors: Sequence[HostTensor], files: StateDictSplit, own: Callable[[int], bool] | None = None
) -> None:
    """Write the files of tensors; with `own` all processes call this, and each writes those with numbers of its own."""
    by_name = {tensor.name: tensor for tensor in tensors}
    failed: BaseException | None = None
    with ThreadPoolExecutor(WRITERS) as pool:
        writing = deque[Future[None]]()
        for number, (file, names) in enumerate(files.filename_to_tensors.items()):
            found = [(by_name[name], by_name[name].gathered()) for name in names]
            if len(writing) == WRITERS:
                failed = failed or writing.popleft().exception()
            if failed and own is None:
                break  # with `own` it goes on: the other processes count on it to gather
            if not failed and (own is None or own(number)):
                writing.append(pool.submit(_write_file, folder / file, found))
        for written in writing:
            failed = failed or written.exception()
    if failed:
        raise failed


def _write_file(path: Path, found: Sequence[tuple[HostTensor, np.ndarray]]) -> None:
    host = {tensor.name: _by_rows(array, tensor.dtype) for tensor, array in found}
    # transformers refuses files that do not name a framework.
    save_file(host, path, metadata={"format": "pt"})
