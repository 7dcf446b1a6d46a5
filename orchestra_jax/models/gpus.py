"""GPUs as data: enough to compile for one, and to tell how fast and how full it would be."""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """One GPU model.

    Attributes:
        label: name in print.
        memory: bytes of device memory, as CUDA reports them.
        bandwidth: device memory, bytes/s.
        tflops: dense bf16 tensor-core TFLOP/s with fp32 accumulation, without sparsity; TF32 runs at half of it.
        link: bytes/s that it sends to GPUs of its node: half of the vendor's NVLink (else PCIe) figure, which adds up
            both directions.
        network: bytes/s that it sends to other nodes in the vendor's reference system (one adapter per GPU).
        capability: CUDA compute capability.
        cores: streaming multiprocessors.
        fpus: fp32 lanes of one.
        clock: boost clock, GHz.
        l2: bytes of L2 cache.
        shared: bytes of shared memory of a multiprocessor; a block may have 1 KiB less.
        threads: most threads of a multiprocessor.
        source: the documents that the figures are from.
    """

    label: str
    memory: int
    bandwidth: float
    tflops: float
    link: float
    network: float
    capability: tuple[int, int]
    cores: int
    fpus: int
    clock: float
    l2: int
    shared: int
    threads: int
    source: str

    def target_config(self) -> str:
        """Return the GPU as XLA's `GpuTargetConfigProto` in text form: enough to compile for it without one.

        The versions of cuDNN and CUDA are ones that jax 0.10 accepts; they do not change what is planned.
        """
        major, minor = self.capability
        device = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 48 * 1024,
            "shared_memory_per_block_optin": self.shared - 1024,
            "shared_memory_per_core": self.shared,
            "threads_per_core_limit": self.threads,
            "core_count": self.cores,
            "fpus_per_core": self.fpus,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "memory_bandwidth": int(self.bandwidth),
            "l2_cache_size": self.l2,
            "clock_rate_ghz": self.clock,
            "device_memory_size": self.memory,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
        }
        return (
            "gpu_device_info { "
            + " ".join(f"{key}: {value}" for key, value in device.items())
            + f" cuda_compute_capability {{ major: {major} minor: {minor} }} }}\n"
            + 'platform_name: "CUDA"\n'
            + "dnn_version_info { major: 9 minor: 10 }\n"
            + "runtime_version { major: 12 minor: 9 }\n"
            + f'device_description_str: "{self.label}"\n'
        )


_XLA = "target specs of openxla/xla (xla/backends/gpu/target_config/specs)"
_HOPPER: dict[str, Any] = {"capability": (9, 0), "fpus": 128, "l2": 50 * 2**20, "shared": 228 * 1024, "threads": 2048}
_AMPERE: dict[str, Any] = {"capability": (8, 0), "fpus": 64, "l2": 40 * 2**20, "shared": 164 * 1024, "threads": 2048}
_ADA: dict[str, Any] = {"capability": (8, 9), "fpus": 128, "shared": 100 * 1024, "threads": 1536}

# Networks: DGX H100, H200 and B200 have a 400 Gbit/s adapter per GPU, DGX A100 one of 200 Gbit/s; else 200 Gbit/s.
GPUS: dict[str, Gpu] = {
    "h100-80gb": Gpu(
        "NVIDIA H100 80GB HBM3", memory=84942979072, bandwidth=3.352e12, tflops=989.4, link=450e9, network=50e9,
        cores=132, clock=1.98, source=f"NVIDIA H100 datasheet (SXM), {_XLA}", **_HOPPER,
    ),
    "h100-pcie-80gb": Gpu(
        "NVIDIA H100 PCIe", memory=84942979072, bandwidth=2.039e12, tflops=756.0, link=64e9, network=50e9,
        cores=114, clock=1.755, source=f"NVIDIA H100 datasheet (PCIe, without NVLink bridge), {_XLA}", **_HOPPER,
    ),
    "h200-141gb": Gpu(
        "NVIDIA H200 141GB HBM3e", memory=151397597184, bandwidth=4.8e12, tflops=989.4, link=450e9, network=50e9,
        cores=132, clock=1.98, source=f"NVIDIA H200 datasheet (SXM), {_XLA}", **_HOPPER,
    ),
    "b200-180gb": Gpu(
        "NVIDIA B200", memory=191514411008, bandwidth=7.672e12, tflops=2250.0, link=900e9, network=50e9,
        capability=(10, 0), cores=148, fpus=128, clock=1.965, l2=132644864, shared=228 * 1024, threads=2048,
        source=f"NVIDIA DGX B200 datasheet, {_XLA}",
    ),
    "a100-80gb": Gpu(
        "NVIDIA A100-SXM4-80GB", memory=85100068864, bandwidth=2.039e12, tflops=312.0, link=300e9, network=25e9,
        cores=108, clock=1.41, source=f"NVIDIA A100 datasheet (SXM), {_XLA}", **_AMPERE,
    ),
    "a100-40gb": Gpu(
        "NVIDIA A100-SXM4-40GB", memory=42331013120, bandwidth=1.555e12, tflops=312.0, link=300e9, network=25e9,
        cores=108, clock=1.41, source=f"NVIDIA A100 datasheet (SXM), {_XLA}", **_AMPERE,
    ),
    "l40s-48gb": Gpu(
        "NVIDIA L40S", memory=46068 * 2**20, bandwidth=0.864e12, tflops=362.0, link=32e9, network=25e9,
        cores=142, clock=2.52, l2=96 * 2**20, source="NVIDIA L40S datasheet", **_ADA,
    ),
    "l4-24gb": Gpu(
        "NVIDIA L4", memory=23034 * 2**20, bandwidth=0.3e12, tflops=121.0, link=32e9, network=25e9,
        cores=58, clock=2.04, l2=48 * 2**20, source="NVIDIA L4 datasheet", **_ADA,
    ),
    "rtx-4090-24gb": Gpu(
        "NVIDIA GeForce RTX 4090", memory=24564 * 2**20, bandwidth=1.008e12, tflops=165.2, link=32e9, network=25e9,
        cores=128, clock=2.52, l2=72 * 2**20, source="NVIDIA Ada architecture white paper", **_ADA,
    ),
}  # fmt: skip  # a few lines for each GPU: one compares them with its datasheet


def find_gpu(name: str) -> Gpu:
    """Return the GPU of that name; case and the memory's size may be left out where they say nothing ("H100").

    Raises:
        ValueError: unknown or ambiguous name; the message lists the known ones.
    """
    key = name.lower().replace("_", "-").replace(" ", "-")
    if key in GPUS:
        return GPUS[key]
    # "h100" is the card without a further word ("h100-80gb", not "h100-pcie-80gb").
    matches = [known for known in GPUS if known.rpartition("-")[0] == key]
    if len(matches) == 1:
        return GPUS[matches[0]]
    near = matches or get_close_matches(key, GPUS, n=2)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(f"Unknown GPU {name!r}: {hint}Known are {', '.join(GPUS)}.")
