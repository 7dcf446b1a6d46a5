"""Whether a running server fits the policy: its model, the model's shape, and the length of its context."""

import json
from pathlib import Path

from orchestra_jax.engines.sglang.protocol import CONTEXT_SPARE
from orchestra_jax.http_json import JsonClient
from orchestra_jax.models.base import DecoderConfig

_INFO_S = 30.0
_SHAPE = {"vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_hidden_layers": "num_layers"}


async def check_server(server: JsonClient, config: DecoderConfig, max_length: int) -> None:
    """Compares what the server says of itself with the policy's config and the longest sequence.

    Raises:
        ValueError: one sentence about what does not fit.
        ServerError: it does not answer.
    """
    info = await server.get("/model_info", timeout_s=_INFO_S)
    details = await server.get("/server_info", timeout_s=_INFO_S)
    if info.get("architectures") not in (None, [config.architecture]):
        raise ValueError(
            f"{server.url} serves {info['architectures']}, but the policy is a {config.architecture}; start it "
            "with the policy's model."
        )
    # SGLang tells neither sizes nor vocabulary; its model's folder does, where we can read it.
    file = Path(str(info.get("model_path"))) / "config.json"
    if file.is_file():
        found = json.loads(file.read_text())
        for key, ours in _SHAPE.items():
            if found.get(key) != getattr(config, ours):
                raise ValueError(
                    f"{server.url} serves a model with {key}={found.get(key)} ({file.parent}), but the policy has "
                    f"{getattr(config, ours)}; start it with the policy's model."
                )
    room = details.get("max_req_input_len")
    if isinstance(room, int) and room < max_length:
        raise ValueError(
            f"{server.url} takes sequences of {room} tokens, but rollout.limits.max_length is {max_length}; start it "
            f"with --context-length {max_length + CONTEXT_SPARE} or more and enough memory, or lower "
            "rollout.limits.max_length."
        )
