"""A bucket of tensors as the body of SGLang's `/update_weights_from_tensor`, written without torch.

The server wants JSON with the base64 of a pickle of {"metadata": [...], "flattened_tensor": a flat uint8 tensor}, and
its unpickler admits few names (`SafeUnpickler` of sglang 0.5.23). A CPU tensor can only come in as torch's own pickle
of one: `torch._utils._rebuild_tensor_v2` over a storage that `torch.storage._load_from_bytes` reads from a file in the
format of `torch.save(..., _use_new_zipfile_serialization=False)`, where the raw bytes come last. Neither needs torch to
be written: both are a few opcodes around the bytes of the tensors.
"""

import binascii
import io
import json
import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestra_jax.models.checkpoint.safetensors import HostTensor

# Tensors begin at multiples of 8 (the server views them in their dtype) and of 3 (base64 of parts is parts of base64).
_ALIGN = 24
_PIECE = 3 << 20  # bytes that are turned into base64 at once
_LEGACY_MAGIC, _LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of torch.save's older format


def split_buckets(tensors: Sequence[HostTensor], max_bytes: int) -> list[tuple[HostTensor, ...]]:
    """Consecutive tensors of `max_bytes` together at most; a larger one has a bucket of its own."""
    buckets: list[list[HostTensor]] = []
    size = 0
    for tensor in tensors:
        if not buckets or size + tensor.nbytes > max_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.nbytes
    return [tuple(bucket) for bucket in buckets]


def request_body(tensors: Sequence[HostTensor], fields: Mapping[str, Any], copies: int = 1) -> bytes:
    """JSON of one update request; needs host memory for itself and for the largest tensor.

    Tensors are gathered one after the other: a collective where they span several processes.

    Args:
        tensors: at least one.
        fields: the request's further fields, such as `weight_version`.
        copies: how many ranks of tensor parallelism the server has; each reads a copy of its own.
    """
    starts, total = _layout(tensors)
    head, tail = _pickle_around(tensors, starts, total)
    prefix = json.dumps(dict(fields) | {"load_format": "flattened_bucket"})[:-1] + ', "serialized_named_tensors": ["'
    between = '", "'
    text = 4 * (-(-(len(head) + total + len(tail)) // 3))
    size = len(prefix) + copies * text + (copies - 1) * len(between) + len('"]}')
    # Made in full size at once: growing would copy, and getvalue() hands out the very buffer where the size is right.
    body = io.BytesIO()
    body.seek(size - 1)
    body.write(b"}")
    body.seek(0)
    body.write(prefix.encode())
    body.write(_base64(head))
    for tensor in tensors:
        _write(tensor, body)
    body.write(_base64(tail))
    if copies > 1:
        first = bytes(body.getbuffer()[len(prefix) : len(prefix) + text])
        for _ in range(copies - 1):
            body.write(between.encode())
            body.write(first)
    body.write(b'"]}')
    return body.getvalue()


def _write(tensor: HostTensor, body: io.BytesIO) -> None:
    """In a scope of its own: what is left of a loop would hold this tensor while the next one is gathered."""
    for piece in _pieces(tensor.to_host()):
        body.write(_base64(piece))


def _layout(tensors: Sequence[HostTensor]) -> tuple[list[int], int]:
    """Where each tensor begins in the flat tensor, and the flat tensor's size; in bytes."""
    starts, total = [], 0
    for tensor in tensors:
        starts.append(total)
        total += -(-tensor.nbytes // _ALIGN) * _ALIGN
    return starts, total


def _pieces(array: np.ndarray) -> Iterator[memoryview | bytes]:
    """The array's bytes with zeros up to the next tensor, in parts whose sizes are multiples of 3."""
    flat = array.reshape(-1).view(np.uint8).data
    whole = len(flat) // _ALIGN * _ALIGN
    for start in range(0, whole, _PIECE):
        yield flat[start : min(start + _PIECE, whole)]
    if whole < len(flat):
        yield bytes(flat[whole:]).ljust(_ALIGN, b"\0")


def _base64(data: memoryview | bytes) -> bytes:
    return binascii.b2a_base64(data, newline=False)


@dataclass(frozen=True, slots=True)
class _Global:
    """Something of the server's modules, by name."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class _Call:
    """The result of calling a global."""

    function: _Global
    args: tuple[Any, ...]


_REBUILD = _Global("torch._utils", "_rebuild_tensor_v2")
_READ_STORAGE = _Global("torch.storage", "_load_from_bytes")
_METADATA = _Global("sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata")
_NO_HOOKS = _Call(_Global("collections", "OrderedDict"), ())


def _pickle_around(tensors: Sequence[HostTensor], starts: Sequence[int], total: int) -> tuple[bytes, bytes]:
    """What stands before and after the flat tensor's bytes; the former's size is a multiple of 3."""
    file_head = _storage_file_head(total)
    metadata = [
        _Call(
            _METADATA,
            (
                tensor.name,
                tensor.shape,
                _Global("torch", tensor.dtype),
                start,
                start + tensor.nbytes,
                tensor.nbytes,
            ),
        )
        for tensor, start in zip(tensors, starts, strict=True)
    ]
    head = b"".join(
        (
            pickle.EMPTY_DICT + pickle.MARK,
            _opcodes("metadata") + _opcodes(metadata) + _opcodes("flattened_tensor"),
            # The call of _rebuild_tensor_v2, up to the only argument of the call that makes its first argument.
            _opcodes(_REBUILD) + pickle.MARK + _opcodes(_READ_STORAGE),
            pickle.BINBYTES8 + struct.pack("<Q", len(file_head) + total) + file_head,
        )
    )
    protocol = pickle.PROTO + bytes([4])
    nothing = pickle.NONE + pickle.POP  # two bytes that do nothing: none, one or two of them reach a multiple of 3
    fill = nothing * next(n for n in range(3) if (len(protocol) + len(nothing) * n + len(head)) % 3 == 0)
    rest = (0, (total,), (1,), False, _NO_HOOKS)  # offset, size, stride, requires_grad, backward hooks
    tail = b"".join(
        (
            pickle.TUPLE1 + pickle.REDUCE,
            *map(_opcodes, rest),
            pickle.TUPLE + pickle.REDUCE + pickle.SETITEMS + pickle.STOP,
        )
    )
    return protocol + fill + head, tail


def _storage_file_head(size: int) -> bytes:
    """All of a torch file with one byte storage but its bytes, which follow."""
    storage = ("storage", _Global("torch", "ByteStorage"), "0", "cpu", size, None)
    return b"".join(
        (
            # Protocol 2 is what torch writes, and its restricted loader knows no later one.
            *(pickle.dumps(value, 2) for value in (_LEGACY_MAGIC, _LEGACY_PROTOCOL, {"little_endian": True})),
            pickle.PROTO + bytes([2]) + _opcodes(storage) + pickle.BINPERSID + pickle.STOP,
            pickle.dumps(["0"], 2),
            struct.pack("<q", size),
        )
    )


def _opcodes(value: Any) -> bytes:
    """Pickle opcodes that push a value."""
    match value:
        case _Global(module, name):
            return pickle.GLOBAL + f"{module}\n{name}\n".encode()
        case _Call(function, args):
            return _opcodes(function) + _opcodes(args) + pickle.REDUCE
        case None:
            return pickle.NONE
        case bool():
            return pickle.NEWTRUE if value else pickle.NEWFALSE
        case int():
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return pickle.LONG1 + bytes([len(data)]) + data
        case str():
            text = value.encode()
            return pickle.BINUNICODE + struct.pack("<I", len(text)) + text
        case tuple():
            return pickle.MARK + b"".join(map(_opcodes, value)) + pickle.TUPLE
        case list():
            return pickle.EMPTY_LIST + pickle.MARK + b"".join(map(_opcodes, value)) + pickle.APPENDS
    raise TypeError(f"A {type(value).__name__} has no place in the pickle of a bucket; give numbers, text or lists.")
