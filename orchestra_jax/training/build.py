"""From a configuration to the parts of a run: world, tokenizer, policy, collector. Checks first, builds after."""

import dataclasses
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import jax
import numpy as np

from orchestra_jax.config.checks import missing_inputs
from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.data.pipeline import Flattened, TaskIterator, task_iterator
from orchestra_jax.data.preferences import sample_preference
from orchestra_jax.data.sources import Question, load_tasks
from orchestra_jax.engines.gpus import gpu_conflicts
from orchestra_jax.envs.base import Environment
from orchestra_jax.envs.qa import demonstrations as qa_players
from orchestra_jax.envs.qa import environment as qa
from orchestra_jax.envs.quickstart import demonstrations as quickstart_players
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment, build_tokenizer, good_call
from orchestra_jax.envs.quickstart.world import PREFERENCE_SHARES, QuickstartContrasts, QuickstartTasks, QuickstartWorld
from orchestra_jax.models import checkpoint
from orchestra_jax.models import tokenizer as tokenizers
from orchestra_jax.models.qwen3 import Params, Qwen3Config, init_params
from orchestra_jax.money import run as spending
from orchestra_jax.rl.setup import device_mesh
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.collector import Collector, OrchestratorPrice, Script
from orchestra_jax.rollout.watchdog import Waiting, describe
from orchestra_jax.tools.build import instance_seed, make_toolbox, price_book, toolbox_problems
from orchestra_jax.tools.catalogue import ANSWER_TOOL
from orchestra_jax.tools.python.isolation import Isolation, IsolationError, available
from orchestra_jax.types import Preference, Task, ToolCall, ToolResult

SWAP_KINDS = ("accuracy", "cost", "fast", "local")


@dataclass(frozen=True)
class World:
    """What a run acts in.

    Attributes:
        environment: makes episodes.
        train: makes the endless stream of training tasks, batches of the given size.
        demonstrations: tasks for the warm start.
        gate: fresh training tasks on which copying is measured.
        evaluation: held-out tasks.
        demonstrate: script of the warm start: right format, tools at random.
        think: what a demonstration thinks aloud before its first action.
        good_call, answer_from: what copying exactly means here, for the warm start's gate.
        swap: the same held-out questions under each kind of preference.
        baselines: scripts to compare with, by name.
    """

    environment: Environment
    train: Callable[[int], TaskIterator]
    demonstrations: Sequence[Task]
    gate: Sequence[Task]
    evaluation: Sequence[Task]
    demonstrate: Script
    think: Callable[[Task], str] | None
    good_call: Callable[[Task, str], ToolCall]
    answer_from: Callable[[Sequence[ToolResult]], str]
    swap: Mapping[str, Sequence[Task]] = field(default_factory=dict)
    baselines: Mapping[str, Script] = field(default_factory=dict)


def preflight(cfg: RunConfig) -> None:
    """Checks that everything the run needs is there, before anything is made.

    Raises:
        ConfigError: one sentence for each thing that is missing.
    """
    found = missing_inputs(cfg)
    if cfg.rollout.engine is EngineName.sglang:
        found += _unreachable(cfg.rollout.urls) + gpu_conflicts(cfg.rollout)
    try:
        device_mesh(cfg.mesh)
    except ValueError as error:
        found.append(str(error))
    if jax.process_count() > 1:
        found.append("This version's rollouts run in one process: start one, on the node that has the devices.")
    # An expert without an address, or a file that is not there, would only be told twice.
    if not any(sentence.startswith("tools.") for sentence in found):
        found += toolbox_problems(cfg)
    if found:
        raise ConfigError("\n".join(found))


def _unreachable(urls: Sequence[str]) -> list[str]:
    """A sentence for the first server that accepts no connection."""
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


def make_world(cfg: RunConfig) -> World:
    """The environment and its tasks.

    Raises:
        ConfigError: a file of questions or passages cannot be read.
    """
    return _quickstart(cfg) if cfg.env.name == "quickstart" else _questions(cfg)


def _quickstart(cfg: RunConfig) -> World:
    world = QuickstartWorld(cfg.env.seed)
    length, wishes = 100_000, cfg.data.wishes
    if cfg.algorithm.tasks_per_step % wishes or wishes > len(PREFERENCE_SHARES):
        raise ConfigError(
            f"data.wishes={wishes} must divide algorithm.tasks_per_step={cfg.algorithm.tasks_per_step} and be at most "
            f"{len(PREFERENCE_SHARES)}: change one of them."
        )
    train = QuickstartContrasts(world, length, wishes)
    swapped = [world.swap_tasks(index, SWAP_KINDS) for index in range(cfg.evaluation.swap_questions)]
    isolation = cast(Isolation, cfg.tools.sandbox_isolation)
    if isolation == "auto" and cfg.model.tokenizer == "quickstart" and not available():
        # Its words cannot spell an import, a file or an underscore: this policy writes arithmetic and nothing else.
        isolation = "none"
    try:
        environment = QuickstartEnvironment(
            world, workers=cfg.tools.sandbox_workers, timeout_s=cfg.tools.sandbox_timeout_s, isolation=isolation
        )
    except IsolationError as error:
        raise ConfigError(f"{error} (tools.sandbox_isolation)") from None
    return World(
        environment,
        lambda size: Flattened(task_iterator(train, seed=cfg.seed, batch_size=size // wishes)),
        QuickstartTasks(world, "train", cfg.warm_start.demonstrations, first=length),  # type: ignore[arg-type]
        QuickstartTasks(world, "train", 128, first=length + cfg.warm_start.demonstrations),  # type: ignore[arg-type]
        QuickstartTasks(world, "eval", cfg.evaluation.questions),  # type: ignore[arg-type]
        quickstart_players.random_tools(cfg.seed),
        quickstart_players.think_aloud,
        good_call,
        quickstart_players.answer_from,
        {kind: [tasks[k] for tasks in swapped] for k, kind in enumerate(SWAP_KINDS)} if swapped else {},
        quickstart_players.BASELINES,
    )


def _questions(cfg: RunConfig) -> World:
    try:
        sources = cfg.data.training()
        training = [load_tasks(source.path, source.source) for source in sources]
        held_out = cfg.data.evaluation()
        if held_out is not None:
            evaluation = load_tasks(held_out.path, held_out.source)
        else:
            count = min(cfg.data.eval_questions, len(training[0]) // 2)
            evaluation = training[0][len(training[0]) - count :]
            training[0] = training[0][: len(training[0]) - count]
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error
    toolbox = make_toolbox(cfg, [question.answer[0] for question in training[0][:64]])
    terminal = cfg.tools.form == "released" or ANSWER_TOOL.name in cfg.tools.names
    environment = qa.QAEnvironment(
        system=qa.SYSTEM_TERMINAL if terminal else qa.SYSTEM,
        catalogue=toolbox.catalogue,
        judge=toolbox.judge,
        on_close=toolbox.close,
    )

    def pose(split: str) -> Callable[[Question, np.random.Generator], Task]:
        def build(question: Question, rng: np.random.Generator) -> Task:
            # In training the place in the stream draws too, so that another epoch offers other tools and prices.
            draw = int(rng.integers(2**32)) if split == "train" else 0
            instance = toolbox.catalogue.instance(instance_seed(cfg.seed, question.id, draw))
            calls = [spec for spec in instance.tools if spec.name != ANSWER_TOOL.name] or instance.tools
            wish = sample_preference(calls, rng, split) if cfg.data.preferences else Preference("accuracy", "")
            task = question.task(instance.tools, wish)
            return dataclasses.replace(task, extra={**task.extra, "instance": instance.record})

        return build

    questions = [question for source in training for question in source]
    rng = np.random.default_rng(cfg.seed)
    return World(
        environment,
        lambda size: task_iterator(
            *training,
            seed=cfg.seed,
            batch_size=size,
            build=pose("train"),
            weights=[source.weight for source in sources],
        ),
        [pose("train")(question, rng) for question in questions[: cfg.warm_start.demonstrations]],
        [pose("train")(question, rng) for question in questions[-32:]],
        [pose("eval")(question, rng) for question in evaluation[: cfg.evaluation.questions]],
        qa_players.random_tool,
        None,
        qa_players.good_call,
        qa_players.answer_from,
    )


def load_prices(cfg: RunConfig) -> OrchestratorPrice:
    """The price list of the run, with the policy's own tokens at the configured price."""
    return OrchestratorPrice(price_book(cfg).base, "orchestrator", cfg.pricing.orchestrator_seconds_per_token)


def make_chat(cfg: RunConfig) -> ChatFormat:
    """Tokenizer and chat format.

    Raises:
        ConfigError: the tokenizer cannot be read.
    """
    if cfg.model.tokenizer == "quickstart":
        return ChatFormat(build_tokenizer(QuickstartWorld(cfg.env.seed)), compact_menu=True)
    try:
        tokenizer = tokenizers.load(str(cfg.model.tokenizer))
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from error
    return ChatFormat(tokenizer, history="keep")


def make_policy(cfg: RunConfig, chat: ChatFormat) -> tuple[Qwen3Config, Params]:
    """Architecture and starting weights: a checkpoint's, or random ones with a vocabulary of the tokenizer's size.

    Raises:
        ConfigError: the checkpoint cannot be read.
    """
    numerics = cfg.model.numerics
    if cfg.model.path is None:
        config = Qwen3Config.preset(cfg.model.preset, vocab_size=len(chat.tokenizer), **numerics)
        return config, init_params(config, jax.random.key(cfg.seed))
    try:
        return checkpoint.load(cfg.model.path, **numerics)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error


def make_collector(cfg: RunConfig, world: World, chat: ChatFormat) -> Collector:
    """Episodes of the world under the run's limits and prices."""
    return Collector(
        world.environment,
        chat,
        cfg.rollout.limits,
        load_prices(cfg),
        allowance=spending.limits(cfg.budget, "trajectory"),
        on_slow=_report_slow,
        slow_after_s=cfg.rollout.slow_after_s,
    )


def _report_slow(waiting: Sequence[Waiting]) -> None:
    print(describe(waiting), file=sys.stderr, flush=True)


def config_record(cfg: RunConfig) -> dict[str, Any]:
    """The config as plain containers, for the checkpoint's meta."""
    return dataclasses.asdict(cfg)
