"""Count what one run of a compiled program does, from its text: matrix FLOPs, bytes, collectives.

XLA's own cost analysis counts the body of a loop once, whatever its length, and an executable that was compiled for a
GPU without one has none. Here every loop counts as often as it runs, which is written into the text.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

COLLECTIVES = (
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
    "collective-broadcast",
)  # fmt: skip  # a list of words
_BITS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128}
# Move no data of their own: names for buffers, control flow, and the second halves of asynchronous pairs.
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all",
    "iota", "partition-id", "replica-id", "async-start", "async-update", "async-done", "copy-done",
    *(f"{name}-done" for name in COLLECTIVES),
}  # fmt: skip  # a list of words
# An operand that a fusion reads only through these is read where they read it.
_ELEMENTWISE = {"bitcast", "reshape", "convert", "copy", "transpose"}
_SLICES = {"dynamic-slice", "slice", "gather"}


@dataclass(frozen=True)
class Collective:
    """All runs of one kind of collective.

    Attributes:
        kind: as XLA names it.
        devices: devices of a group.
        per_node: most devices of a group that share a node; fewer than `devices` where it spans nodes.
        count: number of runs.
        bytes: whole (gathered, or not yet scattered) arrays, per device.
        wire_bytes: bytes that each device sends with ring algorithms.
    """

    kind: str
    devices: int
    per_node: int
    count: float
    bytes: float
    wire_bytes: float


@dataclass(frozen=True)
class ProgramCost:
    """One run of a program on one device.

    Attributes:
        flops: FLOPs of matrix products and convolutions, two per multiply-add.
        bytes: bytes that all kernels read and write, as if none found another's output in a cache.
        collectives: collectives by kind and group.
        uncounted: custom calls whose FLOPs are unknown, and loops of unknown length (counted as one run).
    """

    flops: float
    bytes: float
    collectives: tuple[Collective, ...]
    uncounted: tuple[str, ...]


def program_cost(text: str, devices_per_node: int = 8) -> ProgramCost:
    """Count a compiled program, `jax.stages.Compiled.as_text()`.

    Args:
        devices_per_node: devices i and j share a node where i // devices_per_node == j // devices_per_node.

    Raises:
        ValueError: the text has no entry computation.
    """
    computations = _computations(text)
    if "ENTRY" not in computations:
        raise ValueError("This is no compiled program: it has no ENTRY computation.")
    total = _Counter(computations, devices_per_node).run("ENTRY")
    collectives = tuple(Collective(*key, *total.collectives[key].tolist()) for key in sorted(total.collectives))
    return ProgramCost(total.flops, total.bytes, collectives, tuple(sorted(total.uncounted)))


@dataclass(frozen=True)
class _Instruction:
    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    rest: str  # the attributes
    root: bool

    @functools.cached_property
    def size(self) -> float:
        """Bytes."""
        total = 0.0
        for dtype, dims in _shapes(self.type):
            digits = re.match(r"[a-z]+(\d+)", dtype)
            bits = _BITS.get(dtype, int(digits[1]) if digits else 0)
            total += math.prod(dims) * bits / 8
        return total


@dataclass
class _Tally:
    flops: float = 0.0
    bytes: float = 0.0
    # Runs, bytes and bytes sent, by kind, devices and devices per node.
    collectives: dict[tuple[str, int, int], np.ndarray] = field(default_factory=dict)
    uncounted: set[str] = field(default_factory=set)

    def add(self, other: "_Tally", times: float = 1.0) -> None:
        self.flops += times * other.flops
        self.bytes += times * other.bytes
        for key, sums in other.collectives.items():
            self.collectives[key] = self.collectives.get(key, 0.0) + times * sums
        self.uncounted |= other.uncounted


class _Counter:
    def __init__(self, computations: Mapping[str, Sequence[_Instruction]], devices_per_node: int) -> None:
        self.computations, self.devices_per_node = computations, devices_per_node
        self.done: dict[str, _Tally] = {}

    def run(self, name: str) -> _Tally:
        """Return the tally of one run of a computation."""
        if name not in self.done:
            total = _Tally()
            instructions = self.computations[name]
            types = {instruction.name: instruction for instruction in instructions}
            for instruction in instructions:
                self.count(instruction, types, total)
            self.done[name] = total
        return self.done[name]

    def count(self, instruction: _Instruction, types: Mapping[str, _Instruction], total: _Tally) -> None:
        """Add one instruction, and all that the computations it calls do, to `total`."""
        operands = [types[name] for name in instruction.operands if name in types]
        kind = instruction.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            size, per_node = self.reach(instruction)
            taken = sum(operand.size for operand in operands)
            payload = taken * (size if kind == "all-gather" else 1)
            given = payload / (size if kind == "reduce-scatter" else 1)
            share = 1.0 if kind in ("collective-permute", "collective-broadcast") else (size - 1) / size
            wire = payload * share * (2 if kind == "all-reduce" else 1)
            total.add(_Tally(0.0, taken + given, {(kind, size, per_node): np.array([1.0, payload, wire])}))
        elif instruction.opcode == "while":
            trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', instruction.rest)
            if trips is None:
                total.uncounted.add("a loop of unknown length")
            for called in _called(instruction, "body", "condition"):
                total.add(self.run(called), float(trips[1]) if trips else 1.0)
        elif instruction.opcode == "conditional":
            # Which branch runs is not known here: the costliest.
            branches = [
                self.run(called)
                for called in _called(instruction, "branch_computations", "true_computation", "false_computation")
            ]
            total.add(max(branches, key=lambda branch: (branch.flops, branch.bytes)))
        elif instruction.opcode in ("call", "async-start"):
            for called in _called(instruction, "to_apply", "calls"):
                total.add(self.run(called))
        elif instruction.opcode == "fusion":
            for called in _called(instruction, "calls"):
                inside = self.run(called)
                total.flops += inside.flops  # its inner bytes stay in registers
                total.uncounted |= inside.uncounted
                total.bytes += _fusion_bytes(self.computations[called], operands, instruction)
        else:
            total.flops += _flops(instruction, operands)
            if instruction.opcode == "custom-call" and _is_unknown(instruction):
                total.uncounted.add(f"custom call {_target(instruction)}")
            total.bytes += _plain_bytes(instruction, operands)

    def reach(self, instruction: _Instruction) -> tuple[int, int]:
        """Return the devices of a collective's largest group, and how many of them share a node at most."""
        groups = max(_groups(instruction.rest), key=len, default=[0])
        nodes = Counter(device // self.devices_per_node for device in groups)
        return len(groups), max(nodes.values())


def _computations(text: str) -> dict[str, list[_Instruction]]:
    """Return the instructions of every computation of a program's text; the program's own is called ENTRY."""
    found: dict[str, list[_Instruction]] = {}
    current: list[_Instruction] | None = None
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        if current is None:
            if header := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line):
                current = found.setdefault("ENTRY" if header[1] else header[2], [])
        elif line.startswith("}"):
            current = None
        elif match := re.match(r"\s+(ROOT )?%?([\w.\-]+) = (.*)", line):
            root, name, body = match.groups()
            end = _closing(body, 0) if body.startswith("(") else body.index(" ")
            opened = body.index("(", end)
            closed = _closing(body, opened)
            operands = tuple(re.findall(r"%([\w.\-]+)", body[opened:closed]))
            opcode, rest = body[end:opened].strip(), body[closed:]
            current.append(_Instruction(name, body[:end], opcode, operands, rest, bool(root)))
    return found


def _closing(text: str, opened: int) -> int:
    """Return the place behind the parenthesis that closes the one at `opened`."""
    depth = 0
    for k in range(opened, len(text)):
        depth += (text[k] == "(") - (text[k] == ")")
        if depth == 0:
            return k + 1
    raise ValueError(f"Unbalanced parentheses in the program's text: {text[:80]}")


def _shapes(type_: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return element type and sizes of every array in a type: of one, or of a tuple's members."""
    return [
        (dtype, tuple(int(n) for n in dims.split(",") if n)) for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", type_)
    ]


def _called(instruction: _Instruction, *keys: str) -> Iterator[str]:
    """Yield the names of the computations that an instruction runs, under these of its attributes."""
    for key in keys:
        if found := re.search(rf"\b{key}=(\{{[^}}]*\}}|%?[\w.\-]+)", instruction.rest):
            yield from re.findall(r"[\w.\-]+", found[1])


def _groups(rest: str) -> Iterator[Sequence[int]]:
    """Yield the device groups of a collective, in any of XLA's three notations; pairs for a permutation."""
    if found := re.search(r"source_target_pairs=\{(.*?)\}\}", rest):
        yield from ([int(n) for n in pair.split(",")] for pair in re.findall(r"(\d+,\d+)", found[1]))
    elif found := re.search(r"replica_groups=mesh\[(.*?)\] ?\{(.*?)\}", rest):
        axes = re.findall(r"'?([\w.]+)'?=(\d+)", found[1])
        devices = np.arange(math.prod(int(size) for _, size in axes)).reshape([int(size) for _, size in axes])
        used = [k for k, (name, _) in enumerate(axes) if name in re.findall(r"[\w.]+", found[2])]
        kept = [k for k in range(len(axes)) if k not in used]
        yield from devices.transpose(kept + used).reshape(-1, math.prod(devices.shape[k] for k in used)).tolist()
    elif found := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest):
        shape, source = ([int(n) for n in part.split(",")] for part in (found[1], found[2]))
        order = [int(n) for n in found[3].split(",")] if found[3] else list(range(len(source)))
        yield from np.arange(math.prod(source)).reshape(source).transpose(order).reshape(shape).tolist()
    elif found := re.search(r"replica_groups=\{(.*?)\}\}", rest):
        yield from ([int(n) for n in re.findall(r"\d+", group)] for group in re.findall(r"\{([\d,]+)", found[1] + "}"))


def _target(instruction: _Instruction) -> str:
    """Return the name of the library function that a custom call runs."""
    found = re.search(r'custom_call_target="([^"]+)"', instruction.rest)
    return found[1] if found else "?"


def _is_gemm(instruction: _Instruction) -> bool:
    """Return whether an instruction hands a matrix product to a library."""
    return instruction.opcode == "custom-call" and ("gemm" in _target(instruction) or "matmul" in _target(instruction))


def _is_unknown(instruction: _Instruction) -> bool:
    """Return whether a custom call may do arithmetic that nothing here can count."""
    # Helpers of XLA whose arithmetic does not count.
    helpers = ("AllocateBuffer", "Sharding", "SPMD", "TopK", "annotate", "Pin", "Unpin", "MoveTo")
    return not _is_gemm(instruction) and not any(word in _target(instruction) for word in helpers)


def _flops(instruction: _Instruction, operands: Sequence[_Instruction]) -> float:
    """Return the FLOPs of a product or a convolution, two for each multiply-add; 0 for all else."""
    if instruction.opcode == "convolution":
        window = math.prod(_shapes(operands[1].type)[0][1]) / max(_shapes(instruction.type)[0][1][-1], 1)
        return 2.0 * math.prod(_shapes(instruction.type)[0][1]) * window
    if instruction.opcode != "dot" and not _is_gemm(instruction):
        return 0.0
    contracted = re.search(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)', instruction.rest)
    lhs = _shapes(operands[0].type)[0][1]
    dims = [int(n) for n in re.findall(r"\d+", contracted[1])] if contracted else [len(lhs) - 1]
    return 2.0 * math.prod(_shapes(instruction.type)[0][1]) * math.prod(lhs[d] for d in dims)


def _plain_bytes(instruction: _Instruction, operands: Sequence[_Instruction]) -> float:
    """Return the bytes that an instruction outside a fusion reads and writes."""
    if instruction.opcode in _FREE:
        return 0.0
    if instruction.opcode in _SLICES:
        return 2 * instruction.size
    if instruction.opcode == "dynamic-update-slice":
        return 2 * operands[1].size
    if instruction.opcode == "scatter":
        return sum(operand.size for operand in operands[1:]) + 2 * operands[-1].size  # reads and writes these rows
    return instruction.size + sum(operand.size for operand in operands)


def _fusion_bytes(inside: Sequence[_Instruction], operands: Sequence[_Instruction], fusion: _Instruction) -> float:
    """Return the bytes of a fusion; an array that it only slices or updates in place counts with that part."""
    by_name = {instruction.name: instruction for instruction in inside}
    users: dict[str, list[_Instruction]] = {}
    for instruction in inside:
        for name in instruction.operands:
            users.setdefault(name, []).append(instruction)

    def read(name: str) -> float:
        total = 0.0
        for user in users.get(name, []):
            if user.opcode in _SLICES and user.operands[0] == name:
                total += user.size
            elif user.opcode == "dynamic-update-slice" and user.operands[0] == name:
                continue
            elif user.opcode == "scatter" and user.operands[0] == name:
                total += by_name[user.operands[-1]].size
            elif user.opcode in _ELEMENTWISE:
                total += read(user.name)
            else:
                return math.inf
        return total

    def written(name: str) -> float:
        instruction = by_name[name]
        if instruction.opcode == "dynamic-update-slice":
            return by_name[instruction.operands[1]].size
        if instruction.opcode == "scatter":
            return by_name[instruction.operands[-1]].size
        if instruction.opcode in ("bitcast", "tuple"):
            return sum(written(operand) for operand in instruction.operands)
        return instruction.size

    root = next(instruction.name for instruction in inside if instruction.root)
    parameters = [p for p in inside if p.opcode == "parameter"]
    sizes = sum(min(p.size, read(p.name)) for p in parameters)
    return sizes + min(fusion.size, written(root))
