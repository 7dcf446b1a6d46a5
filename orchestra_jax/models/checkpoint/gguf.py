"""Conversion of a Llama model in llama.cpp's format, GGUF, to a Hugging Face folder: weights and tokenizer.

Needs the package `gguf`. llama.cpp rotates neighbouring pairs (x_2i, x_2i+1) where Hugging Face rotates halves
(x_i, x_i+d/2), and its files hold the rows of q and k in its own order: they are put back.
"""

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers import models as backends

from orchestra_jax.models.checkpoint.safetensors import check_leaves, save
from orchestra_jax.models.decoder import abstract_params
from orchestra_jax.models.llama import LlamaConfig

_MOST_FIELDS, _MOST_TENSORS, _MOST_VALUES, _MOST_NESTED, _MOST_AXES = 10_000, 100_000, 10_000_000, 4, 4
_TEXT, _ARRAY = 8, 9
_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of a number, by GGUF's type
if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_CONTROL = 3  # llama.cpp's type of a token that text never contains
_NAMES = {
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_output": "o",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
    "attn_norm": "input_norm",
    "ffn_norm": "post_norm",
}


def convert(source: Path, folder: Path, *, dtype: str = "float32", overwrite: bool = False) -> LlamaConfig:
    """Write a folder that `checkpoint.load`, `saved_tokenizer.load`, transformers and SGLang read.

    Args:
        source: the .gguf file.
        folder: the new folder; complete or absent afterwards.
        dtype: dtype of the weights; float32 keeps the file's values exactly.
        overwrite: replace an existing folder.

    Raises:
        ImportError: the package `gguf` is not installed.
        FileExistsError: the folder is there and `overwrite` is off.
        ValueError: no Llama, a tokenizer of another kind than SmolLM2's, or a file that is damaged or lies.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ImportError("Reading a .gguf file needs the package gguf: pip install 'orchestra-jax[gguf]'.") from error
    try:
        _Header(np.memmap(source, mode="r")).check()
        reader = GGUFReader(source)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        config = _config(fields, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
        _check_count(config, reader.tensors)
        params = _params(config, reader.tensors)
        check_leaves(abstract_params(config), params, "parameter", "give a whole Llama")
        tokenizer = build_tokenizer(fields)
    except OSError:
        raise
    except Exception as error:  # whatever the packages raise at a damaged file
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        said = " ".join(f"{kind}{error}".split()).rstrip(".")
        raise ValueError(f"The file {str(source)!r} cannot be converted: {said}.") from error
    save(folder, config, params, tokenizer=tokenizer, dtype=dtype, overwrite=overwrite)
    return config


def _config(fields: dict[str, Any], *, tied: bool) -> LlamaConfig:
    """Return the architecture that a GGUF file's fields tell. `tied`: its head is the embedding."""
    kind = fields.get("general.architecture")
    if kind != "llama":
        raise ValueError(f"A GGUF file of architecture {kind!r} is not supported; give one of 'llama'.")
    scaled = [name for name in fields if name.startswith("llama.rope.scaling")]
    if scaled:
        raise ValueError(f"RoPE scaling in a GGUF file ({scaled[0]}) is not supported; give the Hugging Face model.")
    hidden, heads = _size(fields, "llama.embedding_length"), _size(fields, "llama.attention.head_count")
    tokens = fields.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ValueError("the GGUF file has no tokenizer.ggml.tokens")
    epsilon = fields.get("llama.attention.layer_norm_rms_epsilon")
    if not isinstance(epsilon, float) or not 0 <= epsilon < 1:
        raise ValueError(f"llama.attention.layer_norm_rms_epsilon={epsilon!r} of the GGUF file must be a small number")
    return LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=hidden,
        intermediate_size=_size(fields, "llama.feed_forward_length"),
        num_layers=_size(fields, "llama.block_count"),
        num_heads=heads,
        num_kv_heads=_size(fields, "llama.attention.head_count_kv", heads),
        head_dim=_size(fields, "llama.attention.key_length", hidden // heads),
        rope_theta=float(fields.get("llama.rope.freq_base", 10000.0)),
        rms_norm_eps=float(np.format_float_scientific(epsilon, precision=5)),
        tie_word_embeddings=tied,
        max_position_embeddings=_size(fields, "llama.context_length"),
    )


def _size(fields: dict[str, Any], name: str, default: int | None = None) -> int:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
        raise ValueError(f"{name}={value!r} of the GGUF file must be a whole number above 0")
    return value


def _check_count(config: LlamaConfig, tensors: Any) -> None:
    """Raise ValueError if the file has another number of tensors than a Llama of its sizes."""
    wanted = config.num_layers * len(_NAMES) + (2 if config.tie_word_embeddings else 3)
    if len(tensors) != wanted:
        raise ValueError(
            f"the GGUF file has {len(tensors)} tensors, and a Llama of block_count={config.num_layers} has {wanted}"
        )


def _params(config: LlamaConfig, tensors: Any) -> dict[str, Any]:
    """Return the parameter tree in fp32, in host memory."""
    from gguf.quants import dequantize

    params: dict[str, Any] = {f"layers_{layer}": {} for layer in range(config.num_layers)}
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    tops = {"token_embd": "embed", "output_norm": "norm", "output": "lm_head"}
    for tensor in tensors:
        array = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        *block, name, leaf = tensor.name.split(".")
        if leaf != "weight" or name not in (_NAMES if block else tops):
            raise ValueError(f"Tensor {tensor.name!r} of the GGUF file is not one of a plain Llama.")
        if not np.isfinite(array).all():
            raise ValueError(f"Tensor {tensor.name!r} of the GGUF file has values that are not finite")
        if not block:
            params[tops[name]] = array.T if name == "output" else array
            continue
        if f"layers_{block[1]}" not in params:
            raise ValueError(f"Tensor {tensor.name!r} of the GGUF file is of no layer")
        if name in heads:
            array = to_halves(array, heads[name])
        params[f"layers_{block[1]}"][_NAMES[name]] = array if array.ndim == 1 else {"kernel": array.T}
    return params


def to_halves(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows [heads * d, in] whose pairs are neighbours: the first of all pairs of a head before the second."""
    pairs = matrix.reshape(heads, -1, 2, matrix.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(matrix.shape)


def build_tokenizer(fields: dict[str, Any]) -> "PreTrainedTokenizerFast":
    """Build SmolLM2's tokenizer: single digits, then GPT-2's words as bytes.

    Args:
        fields: the file's fields, by name.

    Raises:
        ValueError: a tokenizer of another kind.
    """
    from transformers import PreTrainedTokenizerFast

    kind = (fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"A GGUF tokenizer of kind {kind} is not supported; give a file with ('gpt2', 'smollm').")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    backend = Tokenizer(backends.BPE({token: index for index, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {role: fields.get(f"tokenizer.ggml.{name}_token_id") for role, name in roles.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=fields.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **{role: tokens[index] for role, index in ids.items() if index is not None},
    )


class _Header:
    """The header of a file, given as its bytes.

    The loops of the package `gguf` believe every count. The work here is bounded: 10,000 fields, 100,000 tensors, 10
    million values.
    """

    def __init__(self, content: np.ndarray) -> None:
        self._content, self._at, self._values = content, 0, 0

    def check(self) -> None:
        """Raise ValueError, a clause, if its counts and lengths do not fit into the file."""
        magic, version, tensors, fields = self._numbers("<4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError("it does not begin like a GGUF file of version 2 or 3")
        if fields > _MOST_FIELDS or tensors > _MOST_TENSORS:
            raise ValueError(f"it says that it has {fields} fields and {tensors} tensors")
        for _ in range(fields):
            self._text()
            self._skip_value(self._numbers("<I")[0], 0)
        for _ in range(tensors):
            self._text()
            (axes,) = self._numbers("<I")
            if axes > _MOST_AXES:
                raise ValueError(f"it says that a tensor has {axes} axes")
            self._skip(8 * axes + 12)

    def _skip_value(self, kind: int, nested: int) -> None:
        if kind in _BYTES:
            self._skip(_BYTES[kind])
        elif kind == _TEXT:
            self._text()
        elif kind == _ARRAY and nested < _MOST_NESTED:
            inner, count = self._numbers("<IQ")
            self._values += count
            if self._values > _MOST_VALUES:
                raise ValueError(f"it says that a list has {count} entries")
            if inner in _BYTES:
                self._skip(_BYTES[inner] * count)
                return
            for _ in range(count):
                self._skip_value(inner, nested + 1)
        else:
            raise ValueError(f"it has a field of the unknown type {kind}")

    def _text(self) -> None:
        self._skip(self._numbers("<Q")[0])

    def _numbers(self, form: str) -> tuple[Any, ...]:
        start = self._at
        self._skip(struct.calcsize(form))
        return struct.unpack(form, self._content[start : self._at].tobytes())

    def _skip(self, count: int) -> None:
        self._at += count
        if self._at > len(self._content):
            raise ValueError("it ends in the middle of its header, or a length in it is wrong")
