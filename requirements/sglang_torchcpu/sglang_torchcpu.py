"""SGLang's entry point: names the platform's class without importing it, as SGLang is not ready for that yet."""


def platform() -> str:
    return "sglang_torchcpu_platform.TorchCpu"
