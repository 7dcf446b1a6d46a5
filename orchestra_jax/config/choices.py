"""Fixed lists of names that a setting can take, one list per concept; open lists are registries."""

from enum import StrEnum

from orchestra_jax.config.ranges import ConfigError, unknown_choice


class Choice(StrEnum):
    """Base of the lists: a name is its own value, so that configurations hold and print plain words.

    Raises:
        ConfigError: a name that is not in the list.
    """

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ConfigError(unknown_choice(cls.__name__, str(value), list(cls)))

    def __repr__(self) -> str:
        return repr(str(self))


class DType(Choice):
    """Floating-point type of arrays."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Remat(Choice):
    """Recomputation in the backward pass of a layer: nothing, all of it, or all but outputs of matrix products."""

    none = "none"
    full = "full"
    dots = "dots"


class AttentionBackend(Choice):
    """Kernel of attention."""

    auto = "auto"  # cuDNN for long rows on GPUs that have it, else XLA
    xla = "xla"
    cudnn = "cudnn"


class LoraTarget(Choice):
    """A matrix of a layer that can have an adapter."""

    q = "q"
    k = "k"
    v = "v"
    o = "o"
    gate = "gate"
    up = "up"
    down = "down"


class OptimizerName(Choice):
    """The update rule. `muon`: orthogonalised momentum for matrices, Adam for the rest."""

    adamw = "adamw"
    muon = "muon"


class Schedule(Choice):
    """Course of the learning rate after the warm-up."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"


class KL(Choice):
    """Estimator of the KL to the reference policy, with d = ref - new: -d, d^2 / 2 and exp(d) - d - 1."""

    k1 = "k1"
    k2 = "k2"
    k3 = "k3"


class Aggregation(Choice):
    """Mean over tokens, mean over sequences of their token means, or sum divided by a constant."""

    token = "token"
    sequence = "sequence"
    constant = "constant"


class Importance(Choice):
    """Correction for rollout log-probs: none, truncated weights (tis), or weights that are 0 outside (icepop)."""

    none = "none"
    tis = "tis"
    icepop = "icepop"


class RatioLevel(Choice):
    """Extent of the ratio of learner to engine: a token, a sequence's product, or its geometric mean."""

    token = "token"
    sequence = "sequence"
    geometric = "geometric"


class FilteredRows(Choice):
    """Rows without advantage (of groups that the filter dropped, mostly) while there is a KL or an entropy bonus.

    drop: they are left out, as DAPO leaves out such groups: KL and bonus are over the rows of the policy term, and no
    row is run for them alone. regularise: KL and bonus are over all rows, the policy term is divided by those with an
    advantage. count: all terms are divided by all rows, as in GRPO without a filter.
    """

    drop = "drop"
    regularise = "regularise"
    count = "count"  # type: ignore[assignment]  # a method of str


class InvalidMode(Choice):
    """Treatment of members of a group that are malformed or gave no answer."""

    drop = "drop"
    zero_reward = "zero_reward"


class ToolFeature(Choice):
    """The feature m_t of Eq. 2: calls of the tool, 0 or 1, or its share of all calls."""

    count = "count"  # type: ignore[assignment]  # a method of str
    used = "used"
    share = "share"


class EngineName(Choice):
    """The sampler: the embedded engine in this process, or SGLang servers."""

    embedded = "embedded"
    sglang = "sglang"


class Device(Choice):
    """Device of the servers that the run starts."""

    cuda = "cuda"
    cpu = "cpu"


class History(Choice):
    """Treatment of the reasoning of earlier turns.

    keep: a trajectory is one sequence that only grows. strip_thinking: the chat template renders every turn anew;
    Qwen3's drops the reasoning before the last user message, and keeps that of the tool calls since. drop_thinking: the
    reasoning of all earlier turns is dropped: the context holds calls and results, and every turn that thought forks.
    """

    keep = "keep"
    strip_thinking = "strip_thinking"
    drop_thinking = "drop_thinking"


class QuestionFormat(Choice):
    """Format of a file of tasks; auto: known by the fields of its rows."""

    auto = "auto"
    gsm8k = "gsm8k"
    frames = "frames"
    hle = "hle"
    general_thought = "general_thought"
    nq = "nq"
    hotpot = "hotpot"
    jsonl = "jsonl"
    quickstart = "quickstart"  # no file: the generated world makes its own


class OnBadRow(Choice):
    """Treatment of a row that no question can be made of."""

    error = "error"
    skip = "skip"


class MenuForm(Choice):
    """Form of the menu: a tool for each expert, the paper's three released functions, or nothing."""

    separate = "separate"
    released = "released"
    none = "none"


class WebProvider(Choice):
    """Provider of web search."""

    tavily = "tavily"
    wikipedia = "wikipedia"


class SandboxIsolation(Choice):
    """Isolation of the sandbox's programs from the machine; auto: the strongest that there is."""

    auto = "auto"
    bubblewrap = "bubblewrap"
    namespaces = "namespaces"
    none = "none"


class ReplayMode(Choice):
    """Use of the record of calls."""

    off = "off"
    record = "record"
    replay = "replay"
    replay_or_record = "replay_or_record"


class Compiler(Choice):
    """Compiler of a plan."""

    auto = "auto"
    cuda = "cuda"
    cpu = "cpu"


class SynthesisTarget(Choice):
    """Product of experiments/synthesize.py."""

    world = "world"
    preferences = "preferences"
