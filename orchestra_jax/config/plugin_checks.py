"""Rules among the settings of plug-ins: adapters, servers, experts and MCP; loaded when a run sets one of them."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.ranges import shown
from orchestra_jax.config.roles import Role
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.schema import ConfigError, ModelConfig, WarmStartConfig
from orchestra_jax.config.tools import EvaluationOffer, ExpertServer, ToolsConfig


def lora_problems(model: ModelConfig, algorithm: AlgorithmConfig, warm_start: WarmStartConfig) -> Iterator[str]:
    """Yield what does not fit among the adapters, their base and the warm start."""
    lora = model.lora
    if lora.rank > 0 and model.path is None:
        yield "model.lora.rank needs a base to freeze: set model.path=FOLDER, or model.lora.rank=0."
    if lora.rank > 0 and lora.layers > 0 and model.scan_layers:
        yield "model.lora.layers needs layers of their own: set model.scan_layers=false, or model.lora.layers=0."
    if lora.rank == 0 and lora.path is not None:
        yield "model.lora.path starts from adapters: set model.lora.rank to theirs, or model.lora.path=null."
    if lora.rank > 0 and warm_start.pretrained and algorithm.loss.kl_coef > 0:
        yield (
            "Under adapters the KL's reference is their base, which has had no warm start: set "
            "algorithm.loss.kl_coef=0, or warm_start.pretrained=false."
        )


def server_problems(rollout: RolloutConfig, importance: str) -> Iterator[str]:
    """Yield what does not fit among the engine, its servers and algorithm.loss.importance."""
    server, sglang = rollout.server, rollout.engine is EngineName.sglang
    runs_ahead = rollout.max_staleness > 0 and not rollout.oversample
    far = next((url for url in rollout.urls if sglang and not on_this_host(url)), None)
    if sglang and not rollout.urls and not server.python:
        yield (
            "rollout.engine=sglang needs a server: set rollout.urls=[http://HOST:PORT], or rollout.server.python=PATH "
            "of an interpreter that has SGLang (requirements/README.md)."
        )
    if far is not None and rollout.weight_folder is None:
        yield (
            f"The server {far} cannot read this host's shared memory, where new weights lie: set "
            "rollout.weight_folder=FOLDER to a folder that the trainer and all servers see."
        )
    if importance == "none" and any("fp8" in flag for flag in server.flags):
        yield (
            "rollout.server.flags has servers that compute in fp8, whose log-probs are not the learner's: set "
            "algorithm.loss.importance=tis, or leave the flag out."
        )
    if server.share_gpus and not sglang:
        yield (
            f"rollout.server.share_gpus is for servers, but rollout.engine={rollout.engine}: set "
            "rollout.engine=sglang, or rollout.server.share_gpus=false."
        )
    if server.share_gpus and sglang and rollout.urls:
        yield (
            "rollout.server.share_gpus needs servers that the run starts itself: set rollout.urls=[] and "
            "rollout.server.python=PATH."
        )
    if server.share_gpus and runs_ahead:
        yield (
            "rollout.server.share_gpus stops the servers during an update, so no rollouts can run ahead: set "
            "rollout.max_staleness=0, go on with groups between updates "
            "(rollout.oversample), or give the servers GPUs of their own (+placement=separate)."
        )


def oversample_problems(rollout: RolloutConfig, tasks_per_step: int) -> Iterator[str]:
    """Yield what does not go with rollout.oversample."""
    more = f"rollout.oversample={rollout.oversample}"
    if not rollout.max_staleness:
        yield (
            f"{more} goes on with groups under newer weights, which makes their first tokens older: set "
            "rollout.max_staleness=1 or more, the steps in which a group may go on, or rollout.oversample=0."
        )
    if rollout.oversample > tasks_per_step:
        yield (
            f"{more} is more than the next step could go on with: make it at most algorithm.tasks_per_step="
            f"{tasks_per_step}."
        )


def checkpoint_problems(folder: str) -> Iterator[str]:
    """Yield what is wrong with the place of the checkpoints, as it is written; ask no bucket."""
    url = re.match(r"([A-Za-z][\w+.-]*):(//[^/]+/+[^/])?", folder)
    if url is None:
        return
    scheme, path = url.groups()
    if scheme != "gs":
        yield (
            f"checkpoint.folder={shown(folder)}: Orbax writes to disks and to gs:// alone, not to {shown(scheme)}://. "
            "Name gs://BUCKET/PATH, or a folder of a disk that all nodes see."
        )
    elif path is None:
        yield f"checkpoint.folder={shown(folder)} must name a path in a bucket: gs://BUCKET/PATH."


def on_this_host(url: str) -> bool:
    """Return whether a server's URL has this host's own address."""
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def offer_problems(key: str, offer: ToolsConfig | EvaluationOffer) -> Iterator[str]:
    """Yield what is wrong with the MCP servers and the experts that training (`tools`) or evaluation offers."""
    for index, entry in enumerate(offer.mcp):
        from orchestra_jax.config.mcp import mcp_server  # only now: most runs have no server

        try:
            mcp_server(entry, f"{key}.mcp[{index}]")
        except ConfigError as error:
            yield str(error)
    if unknown := sorted(set(offer.experts) - set(Role)):
        yield f"{key}.experts has the role {unknown[0]}: the roles are {', '.join(Role)}."


def expert_server_problems(server: ExpertServer) -> Iterator[str]:
    """Yield what does not fit among the limits of the experts' server."""
    reply, context = server.max_tokens, server.context_tokens or 32768
    if (reply or 1) >= context:
        yield (
            f"tools.server.max_tokens={reply} leaves no room for a question: make it smaller than "
            f"tools.server.context_tokens={context}."
        )
