"""Plain PyTorch and transformers: Qwen3ForCausalLM, the clipped surrogate, clipping, fused AdamW.

Its best form on a CPU: causal scaled_dot_product_attention without a mask, no cache, logits of the response positions
only, log-probs through the fused cross-entropy, and no entropy or other metric, which the two others do compute.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import transformers
from worker import B1, B2, CLIP, LEARNING_RATE, MAX_GRAD_NORM, WEIGHT_DECAY, Batch, serve_steps


def _build(folder: Path, batch: Batch) -> Callable[[], Mapping[str, float]]:
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    model = transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), LEARNING_RATE, betas=(B1, B2), weight_decay=WEIGHT_DECAY, fused=True
    )
    tokens = torch.from_numpy(batch.tokens.astype("int64"))
    advantages = torch.from_numpy(batch.advantages)[:, None]
    old = torch.from_numpy(batch.old_logprobs)
    response = tokens.shape[1] - batch.prompt
    targets = tokens[:, batch.prompt :].reshape(-1)

    def step() -> Mapping[str, float]:
        # The last token predicts nothing that is trained, so it is not run.
        logits = model(input_ids=tokens[:, :-1], use_cache=False, logits_to_keep=response).logits
        logprobs = -torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, reduction="none").view_as(old)
        ratio = torch.exp(logprobs - old)
        loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return {"loss": loss.item(), "grad_norm": norm.item()}

    return step


if __name__ == "__main__":
    serve_steps(_build, {"torch": torch.__version__, "transformers": transformers.__version__})
