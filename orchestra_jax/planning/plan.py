"""Compile the real update for a named GPU, without the GPU: does a run fit, and how fast could it be?

With jax[cuda12] installed, XLA compiles for the GPU itself (`jax.experimental.topologies`); otherwise for as many
virtual CPU devices, whose memory figures are too high for bf16 models. Nothing is allocated or run either way.
"""

import contextlib
import dataclasses
import importlib.util
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

from orchestra_jax.config.algorithm import OptimizerConfig
from orchestra_jax.config.choices import Compiler
from orchestra_jax.config.schema import ConfigError, PlanConfig
from orchestra_jax.models.attention.base import DENSE_SCORES
from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.flops import forward_flops
from orchestra_jax.models.gpus import Gpu
from orchestra_jax.models.lora import LoRA
from orchestra_jax.models.sharding import MeshSharding, make_mesh
from orchestra_jax.planning.fused import SHARED, attention_flops, stand_in_attention, uses_cudnn
from orchestra_jax.planning.hlo import Collective, ProgramCost, program_cost
from orchestra_jax.rl.batching import BatchShape, PackShapes, bin_parts
from orchestra_jax.rl.distributed import abstract_batch
from orchestra_jax.rl.learner import LearnerConfig
from orchestra_jax.rl.mesh_learner import MeshLearner
from orchestra_jax.rl.optimizer import make_optimizer
from orchestra_jax.rl.shared import room, row_sequences

USABLE = 0.92  # share of a GPU's memory that JAX may take; CUDA, NCCL and the libraries need the rest


@dataclass(frozen=True)
class Job:
    """One training step to plan.

    Attributes:
        model, learner, optimizer, adapters: the policy and its update.
        mesh: devices along data, fsdp and tensor.
        shape: the part of a micro-batch on one batch shard.
        sequences: trajectories of a step.
        tokens: length of each trajectory's longest sequence.
        response: share of the tokens that was sampled and carries loss.
        epochs, minibatches: passes over the step's trajectories, and optimizer steps of one.
        reference: dtype of the reference policy that scores every trajectory once, sharded as the policy is; None: no
            KL. With adapters their base is the reference, or carries the small adapters that are.
        offload: whether the reference waits in host memory during the updates.
        forks: sequences of a trajectory; its k-th sequence has k / forks of `tokens`, as its context grows evenly.
        row_sequences: most sequences of a packed row; None: as many as fit.
        share: whether packed rows run what a trajectory's sequences begin with once (`rl.shared`).
        scored: forward passes over the step's tokens in which the learner scores them beside the updates.
        engine: bytes of the embedded engine on the first device, which stay there during the update.
    """

    model: DecoderConfig
    learner: LearnerConfig
    optimizer: OptimizerConfig
    mesh: tuple[int, int, int]
    shape: BatchShape
    sequences: int
    tokens: int
    response: float = 0.25
    epochs: int = 1
    minibatches: int = 1
    reference: str | None = None
    offload: bool = False
    adapters: LoRA | None = None
    forks: int = 1
    row_sequences: int | None = None
    share: bool = False
    scored: float = 0.0
    engine: int = 0

    @property
    def devices(self) -> int:
        """Number of devices."""
        return math.prod(self.mesh)

    @property
    def shards(self) -> int:
        """Number of batch shards."""
        return self.mesh[0] * self.mesh[1]

    @property
    def lengths(self) -> list[int]:
        """Tokens of the sequences of one trajectory."""
        return [math.ceil(self.tokens * (k + 1) / self.forks) for k in range(self.forks)]

    @property
    def update_tokens(self) -> int:
        """Tokens of all sequences of a step."""
        return self.sequences * sum(self.lengths)

    @property
    def families(self) -> list[tuple[int, int]]:
        """The tokens that one epoch runs of a trajectory, and the sequences, by what lies together in a row.

        Where sequences share beginnings, each adds what it sampled and what came into the context before it.
        """
        if not self.share:
            return [(length, 1) for length in self.lengths]
        sampled = math.ceil(self.response * sum(self.lengths) / self.forks)
        found: list[tuple[int, int]] = []
        for before, length in zip((0, *self.lengths), self.lengths, strict=False):
            whole, added = found[-1] if found else (self.shape.length, 0), min(length, length - before + sampled)
            fits = whole[0] + added <= self.shape.length and whole[1] < row_sequences(self.packing)
            found[len(found) - fits :] = [(whole[0] + added, whole[1] + 1)] if fits else [(length, 1)]
        return found

    @property
    def run_tokens(self) -> int:
        """Tokens that one epoch runs: those of all sequences, but for shared beginnings."""
        return self.sequences * sum(length for length, _ in self.families)

    @property
    def packing(self) -> PackShapes:
        """The shapes of packed micro-batches."""
        return PackShapes(self.shape.length, self.shape.rows, self.shape.sequences, row_sequences=self.row_sequences)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one training step, all epochs together; unpacked rows all count at the full width."""
        families = self.families * math.ceil(self.sequences / self.minibatches)
        if self.shape.pieces:
            rooms = [room(*family, self.packing) if self.share else family[0] for family in families]
            parts = len(bin_parts(rooms, self.packing))
        else:
            parts = math.ceil(len(families) / min(self.shape.rows, self.shape.sequences))
        return self.epochs * self.minibatches * math.ceil(parts / self.shards)

    @property
    def parts(self) -> float:
        """Micro-batches of one epoch, counted on each batch shard."""
        return self.micro_batches / self.epochs * self.shards

    @property
    def squares(self) -> int:
        """The sum of the squares of all sequences' lengths, which attention grows with."""
        return self.sequences * sum(length**2 for length in self.lengths)

    @property
    def forward_flops(self) -> float:
        """Model FLOPs of one forward pass over the step's tokens (`models.flops.forward_flops`)."""
        return forward_flops(self.model, self.run_tokens, self.update_tokens * self.response, self.squares)

    @property
    def update_flops(self) -> float:
        """Model FLOPs of the updates of a training step, without recomputation: what MFU is measured by.

        The backward pass is two forward passes, one where LoRA freezes the weights (attention aside, which is small
        beside them).
        """
        return self.forward_flops * self.epochs * (3.0 if self.adapters is None else 2.0)

    @property
    def model_flops(self) -> float:
        """Model FLOPs of a training step; the reference policy adds one forward pass, the learner's scores theirs."""
        return self.update_flops + self.forward_flops * ((1.0 if self.reference else 0.0) + self.scored)


@dataclass(frozen=True)
class Program:
    """A compiled program on one device: seconds to compile, bytes, and what one run costs."""

    seconds: float
    arguments: int
    outputs: int
    aliased: int
    temp: int
    cost: ProgramCost

    @property
    def peak(self) -> int:
        """Bytes at the peak of a run: arguments, temporaries, and outputs that reuse no argument."""
        return self.arguments + self.temp + self.outputs - self.aliased


@dataclass(frozen=True)
class Plan:
    """The answer of the planner.

    Attributes:
        job, gpu: the step that was asked about, and the GPU.
        usable: bytes per device that the run may take.
        compiled_for: "cuda" or "cpu".
        notes: remarks on the figures.
        programs: "gradients" of one micro-batch, and "update".
        state: bytes per device of arrays that live through the step: parameters, base, reference, optimizer, gradients.
        mfu: assumed share of the GPU's peak.
    """

    job: Job
    gpu: Gpu
    usable: int
    compiled_for: str
    notes: tuple[str, ...]
    programs: Mapping[str, Program]
    state: Mapping[str, int]
    mfu: float

    @property
    def peaks(self) -> dict[str, int]:
        """Bytes per device while each program runs, with all that waits beside it."""
        gradients, update = self.programs["gradients"], self.programs["update"]
        state, waiting = self.state, self.batches + self.job.engine + self.state["reference"]
        inputs = gradients.arguments - state["parameters"] - state["base"] - state["gradients"]
        return {
            "gradients": gradients.peak - inputs + state["optimizer"] + waiting,
            "update": update.peak + state["base"] + waiting,
        }

    @property
    def batches(self) -> int:
        """Bytes per device of an epoch's micro-batches: a mesh holds all, one device the one that runs."""
        leaves = jax.tree.leaves(abstract_batch(self.job.shape))
        count = 1 if self.job.devices == 1 else self.job.micro_batches // self.job.epochs
        return count * sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)

    @property
    def peak(self) -> int:
        """Bytes per device at the peak of the step."""
        return max(self.peaks.values())

    @property
    def fits(self) -> bool:
        """True if the peak is within what the run may take."""
        return self.peak <= self.usable

    @property
    def updates(self) -> int:
        """Optimizer steps of a training step."""
        return self.job.epochs * self.job.minibatches

    def per_step(self, figure: str) -> float:
        """Return `flops` or `bytes` of one device in a whole training step, as compiled."""
        return self.job.micro_batches * float(getattr(self.programs["gradients"].cost, figure)) + self.updates * float(
            getattr(self.programs["update"].cost, figure)
        )

    @property
    def collectives(self) -> list[Collective]:
        """Collectives of one device in a whole training step."""
        total: dict[tuple[str, int, int], np.ndarray] = {}
        for name, times in (("gradients", self.job.micro_batches), ("update", self.updates)):
            for each in self.programs[name].cost.collectives:
                key = (each.kind, each.devices, each.per_node)
                sums = np.array([each.count, each.bytes, each.wire_bytes])
                total[key] = total.get(key, 0.0) + times * sums
        return [Collective(*key, *total[key].tolist()) for key in sorted(total)]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of a training step for arithmetic at the assumed MFU, for all bytes of memory, and for all links.

        Caches make the second one shorter, and overlap with arithmetic hides much of the third.
        """
        # fp32 products run as TF32.
        rate = self.gpu.tflops * 1e12 * (1.0 if self.job.model.dtype == "bfloat16" else 0.5)
        return {
            "compute": self.job.model_flops / self.job.devices / (rate * self.mfu),
            "memory": self.per_step("bytes") / self.gpu.bandwidth,
            "links": sum(each.wire_bytes / self.rate(each) for each in self.collectives),
        }

    def rate(self, collective: Collective) -> float:
        """Return the bytes/s that a device sends in a collective: its link's, or its share of the node's adapters."""
        if collective.per_node == collective.devices:
            return self.gpu.link
        # NCCL runs one ring over each adapter, so a group's members in a node share all of theirs.
        return min(self.gpu.link, collective.per_node * self.gpu.network)


def make_plan(job: Job, gpu: Gpu, options: PlanConfig) -> Plan:
    """Compile the step of `job` for `gpu` and count.

    Args:
        job: the step.
        gpu: the GPU to compile for.
        options: the settings mfu, gpus_per_node and compiler.

    Raises:
        ConfigError: the mesh has no fixed size or does not fill its nodes, the compiler does not start, or JAX already
            runs with fewer CPU devices than the mesh has.
    """
    if min(job.mesh) < 1:
        raise ConfigError(
            f"mesh {job.mesh} takes all devices that are left, and a plan has none: name a number, e.g. mesh.fsdp=16."
        )
    devices, compiled_for, notes = _devices(job.devices, gpu, options)
    compiled_model, kernel_flops = job.model, 0.0
    if uses_cudnn(job.model, gpu):
        compiled_model = job.model.replace(attention=stand_in_attention)
        if job.shape.length**2 > DENSE_SCORES:
            kernel_flops = attention_flops(job.model, job.shape.length, job.shape.rows) / job.mesh[2]
            if job.share:
                kernel_flops = SHARED * attention_flops(job.model, 1, job.squares / job.parts) / job.mesh[2]
        notes = (*notes, "cuDNN's attention is counted by the arrays it reads and writes, and by its causal FLOPs.")
    mesh = make_mesh(*job.mesh, devices=devices)
    learner = MeshLearner(compiled_model, job.learner, make_optimizer(job.optimizer), mesh=mesh, adapters=job.adapters)
    lowered = learner.lowered(abstract_batch(job.shape, MeshSharding(mesh).batch_shards))
    programs, shardings = {}, {}
    for name, program in lowered.items():
        began = time.perf_counter()
        compiled = program.compile()
        seconds = time.perf_counter() - began
        stats, text = compiled.memory_analysis(), compiled.as_text()
        assert stats is not None, "both compilers know their memory"
        assert text is not None
        cost = program_cost(text, options.gpus_per_node)
        programs[name] = Program(
            seconds=seconds,
            arguments=stats.argument_size_in_bytes,
            outputs=stats.output_size_in_bytes,
            aliased=stats.alias_size_in_bytes,
            temp=stats.temp_size_in_bytes,
            cost=dataclasses.replace(cost, flops=cost.flops + kernel_flops) if name == "gradients" else cost,
        )
        shardings[name] = compiled.input_shardings[0]
    state = _state_bytes(job, lowered, shardings)
    uncounted = sorted({what for program in programs.values() for what in program.cost.uncounted})
    if uncounted:
        notes = (*notes, f"FLOPs of these are not in the compiled count: {', '.join(uncounted)}.")
    return Plan(
        job=job,
        gpu=gpu,
        usable=int(gpu.memory * USABLE),
        compiled_for=compiled_for,
        notes=notes,
        programs=programs,
        state=state,
        mfu=options.mfu,
    )


def _state_bytes(job: Job, lowered: Mapping[str, jax.stages.Lowered], shardings: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes per device of the long-lived arrays, as the programs take them."""
    sums, params, base, *_ = lowered["gradients"].args_info[0]
    of_sums, of_params, of_base, *_ = shardings["gradients"]
    state, of_state = lowered["update"].args_info[0][0], shardings["update"][0]
    parameters = _bytes(params, of_params)
    frozen = _bytes(base, of_base)
    own = job.reference is not None and job.adapters is None and not job.offload
    ratio = np.dtype(job.reference).itemsize / np.dtype(job.model.param_dtype).itemsize if own else 0
    return {
        "parameters": parameters,
        "base": frozen,
        "reference": int(parameters * ratio),
        "optimizer": _bytes(state.opt_state, of_state.opt_state),
        "gradients": _bytes(sums[0], of_sums[0]),
    }


def _bytes(tree: Any, shardings: Any) -> int:
    leaves, split = jax.tree.leaves(tree), jax.tree.leaves(shardings)
    return sum(
        math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, sharding in zip(leaves, split, strict=True)
    )


def _devices(count: int, gpu: Gpu, options: PlanConfig) -> tuple[Sequence[Any], str, tuple[str, ...]]:
    """Return the devices to compile for, "cuda" or "cpu", and notes."""
    per_node, compiler = options.gpus_per_node, options.compiler
    nodes, alone = max(1, math.ceil(count / per_node)), min(count, per_node)
    if nodes * alone != count:
        raise ConfigError(
            f"{count} devices do not fill nodes of {per_node}: change mesh.* or the number of GPUs of a node."
        )
    has_plugin = any(_installed(f"jax_plugins.xla_cuda{version}") for version in (12, 13))
    if compiler is Compiler.cuda or (compiler is Compiler.auto and has_plugin):
        try:
            topology = topologies.get_topology_desc(
                platform="cuda", topology=f"1x{nodes}x{alone}", target_config=gpu.target_config()
            )
        except Exception as error:
            if compiler is Compiler.cuda:
                raise ConfigError(f"The GPU compiler does not start (install jax[cuda12]): {error}") from error
            reason = f"the GPU compiler does not start: {error}"
        else:
            return topology.devices, "cuda", ("Compiled by XLA for the GPU itself, without autotuning.",)
    else:
        reason = "asked for" if compiler is Compiler.cpu else "jax[cuda12] is not installed"
    return _cpu_devices(count), "cpu", (_CPU_NOTE.format(reason=reason, gpu=gpu.label),)


_CPU_NOTE = (
    "Compiled for virtual CPU devices ({reason}), not for {gpu}: XLA:CPU computes bf16 in fp32 copies and fuses less, "
    "so temporary memory, bytes and the peak are upper bounds there. Install jax[cuda12] for the GPU's own figures."
)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def reserve_cpu_devices(count: int) -> None:
    """Make JAX start with that many virtual CPU devices; this does nothing if it runs already."""
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", count)


def _cpu_devices(count: int) -> Sequence[Any]:
    reserve_cpu_devices(count)
    available = jax.devices("cpu")
    if len(available) < count:
        raise ConfigError(
            f"JAX runs with {len(available)} CPU devices already, and the plan needs {count}: plan in a process of its "
            f"own, or set XLA_FLAGS=--xla_force_host_platform_device_count={count}."
        )
    return available[:count]
