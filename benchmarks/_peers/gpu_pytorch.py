"""The same step in PyTorch and transformers, in its best form on one device.

The sequences are equally long and come as the rows of a batch, so that causal attention needs no mask and runs in the
flash kernels: flash-attn where it is installed, else scaled_dot_product_attention, which has them built in. Gradient
checkpointing per layer, logits in chunks that the backward pass recomputes, fused AdamW.
"""

import contextlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping

import torch
import transformers
from gpu_worker import Job, run
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from worker import B1, B2, CLIP, LEARNING_RATE, MAX_GRAD_NORM, WEIGHT_DECAY


def _build(job: Job) -> tuple[Callable[[], float], Callable[[], float | None], Mapping[str, str]]:
    cuda = job.device == "gpu"
    if cuda and not torch.cuda.is_available():
        raise SystemExit("This PyTorch sees no GPU: install a CUDA build of torch into its environment.")
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(0)
    flash = cuda and importlib.util.find_spec("flash_attn") is not None
    config = transformers.Qwen3Config(**{k: v for k, v in job.config.items() if k not in ("architectures", "dtype")})
    config._attn_implementation = "flash_attention_2" if flash else "sdpa"
    with device:
        torch.set_default_dtype(getattr(torch, job.master))
        model = transformers.Qwen3ForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    if job.compile:
        for layer in model.model.layers:
            layer.compile()
    optimizer = torch.optim.AdamW(
        model.parameters(), LEARNING_RATE, betas=(B1, B2), weight_decay=WEIGHT_DECAY, fused=True
    )
    autocast = contextlib.nullcontext()
    if job.master == "float32":
        autocast = torch.autocast(device.type, torch.bfloat16)
    ids, advantage, old_logprobs = job.batch()
    tokens = torch.from_numpy(ids).long().to(device)
    advantages = torch.from_numpy(advantage).to(device)[:, None]
    old = torch.from_numpy(old_logprobs).to(device)
    targets = tokens[:, -job.response :].reshape(-1)

    def score(hidden: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return -cross_entropy(model.lm_head(hidden).float(), chosen, reduction="none")

    def step() -> float:
        with autocast:
            hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state[:, -job.response - 1 : -1]
            parts = zip(hidden.flatten(0, 1).split(job.chunk), targets.split(job.chunk), strict=True)
            logprobs = torch.cat([checkpoint(score, *part, use_reentrant=False) for part in parts]).view_as(old)
        ratio = torch.exp(logprobs - old)
        loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if cuda:
            torch.cuda.synchronize()
        return loss.item()

    def peak() -> float | None:
        return float(torch.cuda.max_memory_allocated()) if cuda else None

    about = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "attention": str(config._attn_implementation),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
    }
    return step, peak, about


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run(_build)
