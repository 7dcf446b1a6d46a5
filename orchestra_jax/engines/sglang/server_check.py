"""Check that a running server answers and fits the policy: model, shape, numerics, length of its context."""

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestra_jax.engines.sglang.protocol import CONTEXT_SPARE
from orchestra_jax.io.http_json import JsonClient
from orchestra_jax.models.base import DecoderConfig

_INFO_S = 30.0
_SHAPE = {"vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_hidden_layers": "num_layers"}
_DTYPES = {"half": "float16", "float": "float32"}  # SGLang's short names


async def check_server(server: JsonClient, config: DecoderConfig, max_length: int, dtype: str | None = None) -> str:
    """Compare what the server says about itself with the policy's config, the longest sequence and the serving dtype.

    Returns:
        The dtype it computes in, such as "bfloat16, its LM head in float32".

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
    # SGLang tells neither sizes nor vocabulary, but its model's folder does, if we can read it.
    file = Path(str(info.get("model_path"))) / "config.json"
    model = json.loads(file.read_text()) if file.is_file() else {}
    for key, ours in _SHAPE.items() if model else ():
        if model.get(key) != getattr(config, ours):
            raise ValueError(
                f"{server.url} serves a model with {key}={model.get(key)} ({file.parent}), but the policy has "
                f"{getattr(config, ours)}; start it with the policy's model."
            )
    room = details.get("max_req_input_len")
    if isinstance(room, int) and room < max_length:
        raise ValueError(
            f"{server.url} takes sequences of {room} tokens, but rollout.limits.max_length is {max_length}; start it "
            f"with --context-length {max_length + CONTEXT_SPARE} or more and enough memory, or lower "
            "rollout.limits.max_length."
        )
    found = _computes_in(details, model)
    if dtype is not None and found not in (None, dtype):
        raise ValueError(
            f"{server.url} samples in {found}, but its weights are to be {dtype} (rollout.weight_dtype): start it with "
            f"--dtype {dtype}."
        )
    head = ", its LM head in float32" if details.get("enable_fp32_lm_head") and found != "float32" else ""
    return (found or "a dtype that is not told") + head


def _computes_in(details: Mapping[str, Any], model: Mapping[str, Any]) -> str | None:
    """Return the server's dtype; None if it does not say, or says `auto` for a model whose folder is not here."""
    said = details.get("dtype")
    if said == "auto" and model:
        stored = model.get("dtype") or model.get("torch_dtype") or "float32"
        return "float16" if stored == "float32" else str(stored)  # what SGLang makes of it
    return None if said in (None, "auto") else _DTYPES.get(str(said), str(said))


def silent_servers(urls: Sequence[str]) -> list[str]:
    """Return a sentence for the first server that accepts no connection."""
    for url in urls:
        parts = urlsplit(url)
        try:
            socket.create_connection((parts.hostname, parts.port or 80), timeout=5.0).close()
        except OSError as error:
            return [
                f"No SGLang server answers at {url} ({error}): start it, set rollout.urls=[http://HOST:PORT], or let "
                "the run start its own with rollout.urls=[] rollout.server.python=PATH."
            ]
    return []
