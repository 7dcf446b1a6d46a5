"""A CPU that SGLang does not know: it then takes the pure-torch path of every op, and needs no compiled kernels."""

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class TorchCpu(CpuDeviceMixin, SRTPlatform):
    _enum = PlatformEnum.OOT  # "out of tree"

    def get_default_attention_backend(self) -> str:
        return "torch_native"
