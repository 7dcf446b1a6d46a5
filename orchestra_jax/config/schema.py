"""The whole configuration of a run as typed dataclasses, built once and passed on.

Hydra fills this tree from `conf/` and the command line; `config.checks.load` turns the result into a `RunConfig`. A
field's range stands beside its default (`config.ranges`), a list of names in `config.choices`; rules between fields are
in `config.checks.problems`.
"""

from dataclasses import dataclass, field
from typing import Any

from orchestra_jax.config.algorithm import AlgorithmConfig, OptimizerConfig
from orchestra_jax.config.choices import (
    AttentionBackend,
    Compiler,
    DType,
    LoraTarget,
    OnBadRow,
    OptimizerName,
    QuestionFormat,
    Remat,
    ReplayMode,
    Schedule,
    ToolFeature,
)
from orchestra_jax.config.ranges import LARGE, Settings, above, at_least, seconds, several, text, within
from orchestra_jax.config.ranges import ConfigError as ConfigError
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.synthesis import SynthesisConfig
from orchestra_jax.config.tools import ToolsConfig


@dataclass(frozen=True)
class LoraConfig(Settings):
    """Adapters that are trained instead of the policy itself; the policy at model.path is their frozen base."""

    rank: int = at_least(0, 0)  # rank of the adapters; 0 trains the whole policy
    alpha: float = above(32.0, 0)  # the adapters' product is scaled by alpha / rank
    targets: list[LoraTarget] = field(default_factory=lambda: list(LoraTarget))  # the matrices that get one
    layers: int = at_least(0, 0)  # number of last layers that get adapters and gradients; 0: all
    path: str | None = None  # folder of adapters in PEFT's format that training starts from; null: fresh ones


@dataclass(frozen=True)
class ModelConfig(Settings):
    """The policy."""

    family: str | None = None  # kind of decoder, or module:attribute; null: what `path` says, qwen3 without one
    preset: str = "tiny"  # size: a preset of the family; ignored where `path` has a config.json
    path: str | None = None  # folder of a Hugging Face checkpoint (config.json, *.safetensors)
    random_init: bool = False  # start from random weights when there is no `path`, after a warm start
    tokenizer: str | None = None  # folder with tokenizer.json; "environment": of its own words; null: that of `path`
    chat_template: str | None = None  # Jinja file, or the name of one in conf/chat_template; null: the tokenizer's
    dtype: DType = DType.float32  # compute dtype
    param_dtype: DType = DType.float32  # storage dtype of the parameters
    scan_layers: bool = False  # scan over stacked layers: compiles fast on a GPU; unrolled runs faster on a CPU
    remat: Remat = Remat.none  # what the backward pass recomputes
    attention: AttentionBackend = AttentionBackend.auto  # backend of attention
    lora: LoraConfig = field(default_factory=LoraConfig)


@dataclass(frozen=True)
class MeshConfig(Settings):
    """Devices of all processes along each axis of the mesh; -1 for one axis takes all that are left."""

    data: int = at_least(1, -1)  # devices that split the batch
    fsdp: int = at_least(1, -1)  # devices that split the batch and the parameters
    tensor: int = at_least(1, -1)  # devices that split heads and MLP
    coordinator: str | None = text(None, address=True)  # HOST:PORT of the first process; null: srun or mpirun says
    processes: int | None = at_least(None, 1)  # processes of the run; null: srun or mpirun says, else one
    process: int | None = at_least(None, 0)  # index of this process; null: srun or mpirun says


@dataclass(frozen=True)
class RewardConfig(Settings):
    """Multipliers of every instance's preference vector P (Eq. 2), each in [0, 1]."""

    outcome: float = within(1.0, 0, 1)  # factor of p_outcome
    compute: float = within(1.0, 0, 1)  # factor of p_compute (dollars)
    latency: float = within(1.0, 0, 1)  # factor of p_latency (seconds)
    tools: float = within(1.0, 0, 1)  # factor of every p_tool
    tool_feature: ToolFeature = ToolFeature.count  # m_t: calls, 0/1, or share of all calls
    normalize_outcome: bool = True  # min-max within the group as in Eq. 2; false: an all-right group keeps p_outcome
    cost_power: float = above(1.0, 0)  # power of the dollars; .5: a very dear call does not make cheap ones look equal


@dataclass(frozen=True)
class EnvConfig(Settings):
    """The environment that the policy acts in."""

    name: str = "quickstart"  # name of an environment (docs/add_an_environment.md), or module:class of your own
    seed: int = at_least(0, 0)  # seed of a generated world, kept apart from the run's
    tokenizer: str | None = "environment"  # for a policy that starts from random weights: see model.tokenizer
    options: dict[str, Any] = field(default_factory=dict)  # settings of an environment of your own


@dataclass(frozen=True)
class RandomPricesConfig(Settings):
    """The price schedule of each instance (section 3.3); rewards count by it, budgets by what is really paid."""

    lists: list[str] = field(default_factory=list)  # one of these files of conf/pricing; empty: pricing.name
    low: float = above(1.0, 0)  # least factor; each price is multiplied by its own, log-uniform from low to high
    high: float = above(1.0, 0)  # largest factor


@dataclass(frozen=True)
class PricingConfig(Settings):
    """The price list in force."""

    name: str = "quickstart"  # conf/pricing/<name>.yaml: what is really paid
    randomise: RandomPricesConfig = field(default_factory=RandomPricesConfig)
    orchestrator: str = "orchestrator"  # the policy's entry in the price lists, where the two keys below are null
    orchestrator_input: float | None = at_least(0.2, 0)  # $ per million prompt tokens of the policy in any list
    orchestrator_output: float | None = at_least(0.2, 0)  # $ per million sampled tokens
    orchestrator_cached_input: float | None = at_least(None, 0)  # $ of cached ones; null: as the two above say
    orchestrator_seconds_per_token: float | None = at_least(None, 0)  # simulated seconds; null: the measured clock


@dataclass(frozen=True)
class BudgetConfig(Settings):
    """The most that may be spent on outside calls, checked before each with its worst case; null: no limit."""

    run_usd: float | None = at_least(None, 0)  # dollars of the run: it stops, saved, and goes on once this is raised
    run_tokens: int | None = within(None, 0, LARGE)  # prompt and reply tokens of the run: stops as at run_usd
    run_calls: int | None = within(None, 0, LARGE)  # calls of the run: stops as at run_usd
    step_usd: float | None = at_least(None, 0)  # dollars of one training step: stops the run too
    step_tokens: int | None = within(None, 0, LARGE)  # tokens of one training step: stops the run too
    step_calls: int | None = within(None, 0, LARGE)  # calls of one training step: stops the run too
    trajectory_usd: float | None = at_least(None, 0)  # dollars of one trajectory: a call beyond is refused
    trajectory_tokens: int | None = within(None, 0, LARGE)  # of one trajectory: a call beyond is refused
    trajectory_calls: int | None = within(None, 0, LARGE)  # of one trajectory: a call beyond is refused


@dataclass(frozen=True)
class ReplayConfig(Settings):
    """The record of tool calls; docs/money.md."""

    mode: ReplayMode = ReplayMode.off  # replay: no network, no key, no cost
    path: str | None = None  # file of the record


@dataclass  # not frozen: OmegaConf would not let the command line change an entry of a list
class SourceConfig(Settings):
    """One file or folder of tasks."""

    source: QuestionFormat = QuestionFormat.auto  # format
    path: str = text("", blank=True)  # file or folder
    weight: float = above(1.0, 0)  # relative share of the samples


@dataclass(frozen=True)
class DataConfig(Settings):
    """The tasks. `path` wins over `mixture`; without `eval_path`, rows of `path` are held out."""

    source: QuestionFormat = QuestionFormat.auto  # format of `path`
    path: str | None = None  # file or folder of training questions
    mixture: list[SourceConfig] = field(default_factory=list)  # several sources, where `path` is null
    eval_source: QuestionFormat = QuestionFormat.auto  # format of `eval_path`
    eval_path: str | None = None  # file or folder of evaluation questions
    on_bad_row: OnBadRow = OnBadRow.error  # a row that no question can be made of; skip: left out and counted
    eval_questions: int = at_least(256, 0)  # rows of `path` held out for evaluation, but at most half
    preferences: bool = True  # append a user preference to every question
    preferences_file: str | None = None  # wordings of experiments/synthesize.py; null: those that come with us
    preferences_per_question: int = at_least(1, 1)  # wishes that a step poses each training question under

    def training(self) -> list[SourceConfig]:
        """Return the files to train on: `path`, else the mixture; none for a generated world."""
        return [SourceConfig(self.source, self.path)] if self.path is not None else list(self.mixture)

    def evaluation(self) -> SourceConfig | None:
        """Return the file to evaluate on, or None if `eval_questions` rows of the training file are held out."""
        return SourceConfig(self.eval_source, self.eval_path) if self.eval_path is not None else None


@dataclass(frozen=True)
class WarmStartConfig(Settings):
    """Supervised steps on scripted demonstrations, for a policy with random weights."""

    steps: int = at_least(600, 0)  # optimizer steps at most; 0 skips it
    pretrained: bool = False  # also warm-start the policy at model.path, or the adapters on it
    batch_size: int = at_least(64, 1)  # demonstrations of a step
    growing_steps: int = at_least(0, 0)  # first steps, whose prompts grow: from the shortest quarter of them to all
    packing: bool = True  # demonstrations side by side in rows; false: a row each, as wide as algorithm.prefix_widths
    demonstrations: int = at_least(8000, 1)  # scripted trajectories made before the first step
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(
            learning_rate=2e-2,
            adam_learning_rate=1e-2,
            name=OptimizerName.muon,
            warmup_steps=20,
            schedule=Schedule.cosine,
            final_fraction=0.05,
        )
    )
    min_copy_accuracy: float = within(0.95, 0, 1)  # share of arguments copied exactly that ends the warm start
    check_every: int = at_least(100, 1)  # steps between two measurements


@dataclass(frozen=True)
class EndpointConfig(Settings):
    """The model that experiments/evaluate.py asks where `policy` is an address: its name there and its price here."""

    model: str | None = None  # its name at the endpoint
    price: str | None = None  # its entry of pricing.name; null: the one called as the model
    input: float | None = at_least(None, 0)  # instead of an entry: $ per million prompt tokens
    cached_input: float | None = at_least(None, 0)  # $ per million cached prompt tokens; null: as input
    output: float | None = at_least(None, 0)  # $ per million tokens of answers, reasoning included
    api_key_env: str | None = None  # environment variable with its key; null: it wants none
    timeout_s: float = seconds(300.0)  # seconds for one request
    retries: int = at_least(4, 0)  # further requests after a failed one
    concurrency: int = at_least(32, 1)  # requests under way at once, of all processes together
    requests_per_minute: float | None = above(None, 0)  # requests a minute of all processes together; null: no limit
    max_tokens_field: str | None = None  # max_tokens or max_completion_tokens; null: as conf/models.yaml says
    extra: dict[str, Any] = field(default_factory=dict)  # further fields of the request, such as reasoning_effort


@dataclass(frozen=True)
class EvaluationConfig(Settings):
    """Benchmarks before, during and after training."""

    benchmarks: list[str] = several(["held_out", "preference_swap"])  # benchmarks by name, or module:function
    questions: int = at_least(256, 0)  # number of held-out questions; 0 skips all benchmarks
    seed: int = at_least(7, 0)  # seed of menus, preferences and samples in evaluations, whatever the run's seed
    preferences: bool | None = None  # append a preference to real questions; null: as data.preferences
    every: int = at_least(0, 0)  # training steps between evaluations; 0: before and after only
    temperature: float = at_least(1.0, 0)  # 0 is greedy
    samples: int = at_least(1, 1)  # samples of each question at evaluation.temperature; several give pass^k and pass@k
    greedy: bool = True  # evaluate at temperature 0 too
    swap_questions: int = at_least(0, 0)  # number of questions of preference_swap; 0 skips it
    turn_caps: list[int] = several(low=1)  # other rollout.limits.max_turns to give figures for, too; evaluate.py
    limit: int | None = at_least(None, 1)  # most tasks of each benchmark (--limit); null: all
    dry_run: bool = False  # only print what it will cost (--dry-run of experiments/evaluate.py)
    judge_sample: str | None = None  # file of {question, reference, answer, correct} (--sample of judge.py)
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)


@dataclass(frozen=True)
class CheckpointConfig(Settings):
    """Checkpoints that a killed run continues from, and the policy that it leaves."""

    every: int = at_least(50, 1)  # training steps
    keep: int = at_least(2, 1)  # newest checkpoints kept
    folder: str | None = None  # where they lie, a path or gs://BUCKET/PATH; null: checkpoints/ in output_dir
    grace_s: float = within(120.0, 0, 1e9)  # after Ctrl-C, SIGTERM or SIGHUP: seconds for the step under way to end
    export: bool = True  # at the end, write the policy in Hugging Face format (with LoRA: the adapters in PEFT's)


@dataclass(frozen=True)
class LoggerConfig(Settings):
    """Loggers of a run's figures; metrics.jsonl is written in any case."""

    names: list[str] = field(default_factory=lambda: ["jsonl"])  # loggers by name, or module:attribute
    project: str = "orchestra_jax"  # project of Weights & Biases
    trajectories: int = at_least(2, 0)  # trajectories per step written in readable form
    rollouts: bool = True  # write every trajectory in full, for experiments/view.py
    speed: bool = True  # tokens a second, FLOPs, shares of the step's time and lengths, in every step


@dataclass(frozen=True)
class ProfileConfig(Settings):
    """Steps whose work is recorded in detail; docs/metrics.md."""

    steps: list[int] = field(default_factory=list)  # steps of which jax.profiler writes a trace into profile/


@dataclass(frozen=True)
class PlanConfig(Settings):
    """Questions to experiments/plan.py beside the run itself; training reads gpus_per_node alone."""

    gpu: str = "h100-80gb"  # a GPU of models/gpus.py
    mfu: float = within(0.4, 0.001, 1)  # assumed share of its dense bf16 peak
    gpus_per_node: int = at_least(8, 1)  # GPUs that share a node
    compiler: Compiler = Compiler.auto  # auto: cuda where jax[cuda12] is installed
    tokens: int | None = at_least(None, 1)  # mean tokens of a trajectory at its end; null: rollout.limits.max_length
    response: float = within(0.25, 0, 1)  # share of them that the policy sampled
    turns: int | None = at_least(None, 1)  # assumed generations of a trajectory, its answer included; null: calls + 1
    calls: int = at_least(3, 0)  # assumed calls of paid tools per trajectory, for the forecast of their cost
    call_input: int = at_least(2000, 0)  # assumed prompt tokens of such a call
    call_output: int = at_least(1000, 0)  # assumed tokens of its reply
    bandwidth: float = within(0.6, 0.001, 1)  # assumed share of a GPU's memory bandwidth that decoding reaches
    server_gpus: int = at_least(1, 1)  # GPUs of each server of rollout.urls, of the kind plan.gpu


POLICY_FOLDER = "policy"  # of a run: the trained policy, as transformers and SGLang load it


@dataclass(frozen=True)
class WorldConfig(Settings):
    """Settings that environments, tools, money and evaluations read; `RunConfig` adds those of the training."""

    seed: int = at_least(0, 0)  # seed of everything random in the run
    output_dir: str = "outputs/${name}"  # folder of the run's files
    policy: str | None = None  # to evaluate: a checkpoint, a run's folder, http://HOST/v1, or baseline:NAME
    reward: RewardConfig = field(default_factory=RewardConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    tools: ToolsConfig = field(default_factory=ToolsConfig)
    pricing: PricingConfig = field(default_factory=PricingConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    data: DataConfig = field(default_factory=DataConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


@dataclass(frozen=True)
class RunConfig(WorldConfig):
    """One training run. The same name is the same folder: running it again resumes it."""

    name: str = "quickstart"  # name of the run
    steps: int = at_least(250, 0)  # training steps
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    compilation_cache: str | None = "~/.cache/orchestra_jax"  # folder of compiled programs for later starts; null: none
    mesh: MeshConfig = field(default_factory=MeshConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    synthesis: SynthesisConfig = field(default_factory=SynthesisConfig)
