"""Settings of the engine, the servers and the collector."""

from dataclasses import dataclass, field

from orchestra_jax.config.choices import Device, DType, EngineName, History
from orchestra_jax.config.ranges import Settings, above, at_least, seconds, several


@dataclass(frozen=True)
class RolloutLimits(Settings):
    """Bounds of one trajectory."""

    max_turns: int = at_least(50, 1)  # generations of the policy, the answer included
    max_calls: int = at_least(50, 1)  # tool calls, refused ones included
    max_length: int = at_least(32_000, 2)  # tokens of one sequence, prompt included
    max_new_tokens: int = at_least(8_000, 1)  # tokens of one generation
    retries: int = at_least(2, 0)  # new tries of a generation, call or score after an infrastructure failure
    # Seconds of work, without waits for a place or for new weights.
    deadline_s: float = seconds(600.0)  # seconds of work of a trajectory: then it ends without an answer
    turn_deadline_s: float | None = seconds(None)  # seconds of one generation, then it is tried again; null: deadline_s
    tool_deadline_s: float | None = seconds(None)  # seconds of one tool call, then it is tried again; null: deadline_s
    user_deadline_s: float | None = seconds(None)  # seconds of one turn of the user, then asked again; null: deadline_s

    @property
    def turns_used_up(self) -> str:
        """The reason of a trajectory that may take no more turns."""
        return f"no answer within {self.max_turns} turns"

    @property
    def calls_used_up(self) -> str:
        """The reason of a trajectory whose next calls would be too many."""
        return f"more than {self.max_calls} tool calls"


@dataclass(frozen=True)
class ServerOptions(Settings):
    """SGLang servers that the run starts itself, where rollout.urls is empty; see requirements/README.md."""

    python: str | None = None  # interpreter of the environment that SGLang is installed in
    device: Device = Device.cuda  # cpu: for tests
    gpus: list[list[int]] = several(low=0)  # GPUs of each server, by number; empty: one server, on those it finds
    share_gpus: bool = False  # on the trainer's GPUs, in turns: they release their memory for every update
    flags: list[str] = field(default_factory=list)  # further flags of sglang.launch_server
    ready_s: float = seconds(600.0)  # seconds to load


@dataclass(frozen=True)
class RolloutConfig(Settings):
    """The engine and the multi-turn collector."""

    engine: EngineName = EngineName.embedded  # what samples: this process, or SGLang servers
    urls: list[str] = several(url=True)  # SGLang servers that are there; empty: the run starts its own
    server: ServerOptions = field(default_factory=ServerOptions)
    weight_folder: str | None = None  # folder of new weights that all servers see; null: shared memory of this host
    weight_dtype: DType | None = None  # dtype of the servers' weights and sampling; null: bfloat16, on a CPU float32
    limits: RolloutLimits = field(
        default_factory=lambda: RolloutLimits(max_calls=3, max_length=2048, max_new_tokens=256)
    )
    slots: int = at_least(64, 1)  # trajectories under way at once
    temperature: float = above(1.0, 0)  # temperature of sampling and of the learner's log-probs
    history: History = History.keep  # whether earlier turns keep their reasoning
    chunk: int = at_least(8, 1)  # tokens the embedded engine decodes between two admissions
    widths: list[int] = several([16, 64, 256, 1024], low=1, some=True)  # compiled prompt widths of that engine
    threads: int = at_least(1, 1)  # parts of the embedded engine's slots that run side by side: a CPU's cores
    lockstep: bool = True  # the embedded engine waits for all open trajectories: bit-reproducible runs
    max_staleness: int = at_least(0, 0)  # largest age of a trained token, in versions; above 0 rollouts run ahead
    oversample: int = at_least(0, 0)  # groups beyond a step's; those not whole at its end go on in the next one

    @property
    def serving_dtype(self) -> DType:
        """The dtype that servers sample in; they do not choose it, as SGLang's `auto` makes float16 of float32."""
        on_cpu = not self.urls and self.server.device is Device.cpu
        return self.weight_dtype or (DType.float32 if on_cpu else DType.bfloat16)
