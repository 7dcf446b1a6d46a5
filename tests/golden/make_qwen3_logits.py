"""Makes qwen3_logits.npz: two tiny Qwen3 models of transformers with weights, inputs and fp32 logits. Needs torch.

    python tests/golden/make_qwen3_logits.py

Weights are stored as float16 and were rounded to it before the forward pass, so the logits belong to them exactly.
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers

CONFIGS = {
    "tied": {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
    "untied": {
        "vocab_size": 48,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 20,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
    },
}


def main() -> None:
    torch.manual_seed(0)
    arrays: dict[str, np.ndarray] = {}
    for name, fields in CONFIGS.items():
        fields = dict(fields)
        rope = {"rope_type": "default", "rope_theta": fields.pop("rope_theta")}
        config = transformers.Qwen3Config(**fields, rope_parameters=rope, attn_implementation="eager")
        model = transformers.Qwen3ForCausalLM(config).eval()
        with torch.no_grad():
            for key, weight in model.named_parameters():
                noise = torch.randn_like(weight)
                weight.copy_((1 + 0.3 * noise if "norm" in key else 0.15 * noise).half().float())
            tokens = torch.randint(0, config.vocab_size, (2, 13))
            logits = model(tokens).logits
        arrays[f"{name}/config"] = np.array(json.dumps(config.to_dict()))
        arrays[f"{name}/tokens"] = tokens.numpy().astype(np.int32)
        arrays[f"{name}/logits"] = logits.numpy()
        for key, weight in model.named_parameters():
            arrays[f"{name}/weights/{key}"] = weight.detach().half().numpy()
    np.savez_compressed(Path(__file__).with_name("qwen3_logits.npz"), **arrays)


if __name__ == "__main__":
    main()
