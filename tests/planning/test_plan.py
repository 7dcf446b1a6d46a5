"""The planner, end to end on virtual CPU devices, and what it concludes."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from rich.console import Console

from orchestra_jax.config.algorithm import OptimizerConfig
from orchestra_jax.config.choices import History
from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.config.schema import ConfigError, LoraConfig, MeshConfig, ModelConfig, PlanConfig, RunConfig
from orchestra_jax.engines.embedded import EmbeddedEngine
from orchestra_jax.models.gpus import GPUS, Gpu, find_gpu
from orchestra_jax.models.lora import LoRA
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.models.qwen3_moe import Qwen3MoeConfig
from orchestra_jax.models.sharding import make_mesh
from orchestra_jax.models.sizes import num_params
from orchestra_jax.planning import report as plan_report
from orchestra_jax.planning.fused import attention_flops
from orchestra_jax.planning.plan import Job, Plan, make_plan
from orchestra_jax.planning.report import advice, job_of, model_config, show, smallest_gpu
from orchestra_jax.rl.batching import BatchShape, PackShapes, TokenSequence
from orchestra_jax.rl.learner import LearnerConfig
from orchestra_jax.rl.losses import LossConfig
from orchestra_jax.rl.mesh_learner import MeshLearner
from orchestra_jax.rl.optimizer import make_optimizer
from orchestra_jax.rl.packing import policy_batches
from tests.training.test_trainer import config

ROOT = Path(__file__).resolve().parents[2]
# Every axis divides by 8, so that each of 8 devices holds exactly an eighth of every matrix.
CONFIG = Qwen3Config(512, 64, 128, 4, 8, 8, 8, scan_layers=True, remat="full")
MATRICES = 2 * 512 * 64 + 4 * (4 * 64 * 64 + 3 * 64 * 128)
NORMS = 64 + 4 * (2 * 64 + 2 * 8)
H100 = find_gpu("h100")
CPU = PlanConfig(compiler="cpu")


def make_job(shape: BatchShape | None = None, **changes: object) -> Job:
    """A tiny job on 8 devices."""
    shape = shape or PackShapes(64, rows=2, sequences=4).batch_shape()
    cfg, optimizer = LearnerConfig(LossConfig("sequence"), chunk=32), OptimizerConfig(1e-3)
    job = Job(CONFIG, cfg, optimizer, (1, 8, 1), shape, sequences=64, tokens=32, response=0.5)
    return dataclasses.replace(job, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The tiny job, planned."""
    return make_plan(make_job(reference="bfloat16"), H100, CPU)


def with_memory(plan: Plan, size: int) -> Plan:
    """The same plan where only `size` bytes are usable."""
    return dataclasses.replace(plan, usable=size)


def test_every_device_holds_its_part_of_the_state(plan: Plan) -> None:
    assert num_params(CONFIG) == MATRICES + NORMS
    share = MATRICES // 8 + NORMS  # norms are not split

    assert plan.state["parameters"] == plan.state["gradients"] == 4 * share
    assert plan.state["reference"] == 2 * share
    assert plan.state["optimizer"] == pytest.approx(2 * 4 * share, abs=64)  # and a few counters
    assert plan.state["base"] == 0


def test_peak_is_what_runs_and_what_waits_beside_it(plan: Plan) -> None:
    gradients, update = plan.programs["gradients"], plan.programs["update"]
    state = plan.state

    # The gradient's program takes parameters, gradients and a batch, the update everything but the batch.
    assert gradients.arguments > state["parameters"] + state["gradients"]
    assert update.arguments == pytest.approx(sum(state.values()) - state["reference"], abs=256)
    # Donated buffers are written in place, so neither program doubles what it changes.
    assert gradients.aliased >= state["gradients"]
    assert update.aliased >= state["parameters"] + state["optimizer"]
    inputs = gradients.arguments - state["parameters"] - state["gradients"]
    assert 0 < inputs < plan.batches
    assert plan.peaks["gradients"] == gradients.peak - inputs + state["optimizer"] + state["reference"] + plan.batches
    assert plan.peaks["update"] == update.peak + state["reference"] + plan.batches
    assert plan.peak == max(plan.peaks.values())


@pytest.mark.parametrize("share", [False, True])
def test_the_micro_batches_that_wait_on_a_device_are_counted(
    plan: Plan, share: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = PackShapes(64, rows=2, sequences=4, shared=share)
    row = (False,) * 16 + (True,) * 16, (0.0,) * 32, 15, 1.0
    sequences = [TokenSequence((n + 1, *range(2, 33)), *row) for n in range(64)]
    cfg = dataclasses.replace(plan.job.learner, count_all=False)
    learner = MeshLearner(CONFIG, cfg, make_optimizer(plan.job.optimizer), mesh=make_mesh(1, 8))
    placed = learner.place(policy_batches(sequences, shapes, learner.shards))
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(placed))
    job = make_job(shapes.batch_shape(pieces=4 if share else 1), share=share)
    assert (job.micro_batches, dataclasses.replace(plan, job=job).batches) == (len(placed), held)
    alone = dataclasses.replace(job, mesh=(1, 1, 1))  # one device: they wait in host memory
    assert dataclasses.replace(plan, job=alone).batches == held // len(placed)
    # Counting the tokens that carry loss leaves no further masks there during the step.
    monkeypatch.setattr(
        learner, "_step", lambda *given: sum(x.shape == placed[0].mask.shape for x in jax.live_arrays())
    )
    assert learner.policy_step(None, placed) == 4 * len(placed)


def test_what_the_embedded_engine_keeps_on_its_device_is_counted(plan: Plan, tmp_path: Path) -> None:
    cfg = config(tmp_path, "rollout.slots=5", "rollout.threads=2", "rollout.limits.max_length=64")
    job = job_of(cfg)
    engine = EmbeddedEngine(job.model, None, cfg.rollout)
    held = sum(leaf.nbytes for cache in engine._caches for leaf in jax.tree.leaves(cache._cache))
    assert job.engine == held
    split = job_of(dataclasses.replace(cfg, mesh=MeshConfig(fsdp=8)))  # it needs the policy whole
    assert split.engine == held + 4 * num_params(job.model)
    beside = dataclasses.replace(plan, job=dataclasses.replace(plan.job, engine=held))
    assert beside.peak == plan.peak + held
    assert any(line.startswith("rollout=sglang") for line in advice(beside))


def test_a_step_is_its_micro_batches(plan: Plan) -> None:
    # 8 shards x 2 rows of 64 tokens hold 32 trajectories of 32.
    assert plan.job.micro_batches == 2
    assert make_job(epochs=3, minibatches=2).micro_batches == 6
    assert make_job(tokens=64).micro_batches == 4
    assert make_job(PackShapes(64, rows=2, sequences=2).batch_shape()).micro_batches == 4  # slots, not tokens

    cost, update = plan.programs["gradients"].cost, plan.programs["update"].cost
    assert plan.per_step("flops") == 2 * cost.flops + update.flops
    gathers = [c for c in plan.collectives if c.kind == "all-gather"]
    assert sum(c.count for c in gathers) == sum(2 * c.count for c in cost.collectives if c.kind == "all-gather") + sum(
        c.count for c in update.collectives if c.kind == "all-gather"
    )
    # Forward and recomputation gather each layer's matrices: at least twice all that is split into layers.
    layers = MATRICES - 2 * 512 * 64
    assert sum(c.bytes for c in gathers) >= 2 * 2 * layers * 4


def test_model_flops_by_hand() -> None:
    job = make_job()
    tokens, layers, head = 64 * 32, 4 * (4 * 64 * 64 + 3 * 64 * 128) + NORMS, 512 * 64
    # Scores and mix: 2 * T^2 / 2 * width multiply-adds per layer and sequence, causal.
    attention = 64 * 4 * 2 * 2 * (32 * 32 / 2) * 64

    forward = 2 * layers * tokens + 2 * head * tokens * 0.5 + attention

    assert job.forward_flops == pytest.approx(forward)
    assert job.model_flops == pytest.approx(3 * forward)
    assert dataclasses.replace(job, reference="float32", epochs=2).model_flops == pytest.approx(7 * forward)
    assert dataclasses.replace(job, adapters=LoRA(4, 8.0)).model_flops == pytest.approx(2 * forward)


def test_a_mixture_computes_what_a_token_passes() -> None:
    model = Qwen3MoeConfig(512, 64, 128, 4, 8, 8, 8, expert_size=16, num_experts=8, experts_per_token=2)
    router, expert = 4 * 64 * 8, 4 * 3 * 64 * 16
    attention = make_job().forward_flops - 2 * 64 * 32 * 4 * 3 * 64 * 128
    assert num_params(model) == MATRICES + NORMS - 4 * 3 * 64 * 128 + router + 8 * expert
    assert make_job(model=model).forward_flops == pytest.approx(attention + 2 * 64 * 32 * (router + 2 * expert))


def test_a_trajectory_that_forks_trains_all_of_its_sequences() -> None:
    job = make_job(forks=4)
    layers, head = 4 * (4 * 64 * 64 + 3 * 64 * 128) + NORMS, 512 * 64

    assert job.lengths == [8, 16, 24, 32]
    assert job.update_tokens == 64 * 80
    squares = 8 * 8 + 16 * 16 + 24 * 24 + 32 * 32
    attention = 64 * 4 * 2 * 2 * (squares / 2) * 64
    assert job.forward_flops == pytest.approx(64 * 80 * (2 * layers + 2 * head * 0.5) + attention)
    # 4 sequences a micro-batch: 24 rows of four (8 of 16, 16 of 8 tokens) and 32 of three (24, 24, 16) fill one each,
    # 32 rows of two (32, 32) share 16: 72 on 8 shards.
    assert job.micro_batches == 9
    many = PackShapes(64, rows=2, sequences=64).batch_shape()
    assert make_job(many, forks=4).micro_batches == 5
    assert make_job(many, forks=4, row_sequences=1).micro_batches == 16
    assert make_job(scored=2.0).model_flops == pytest.approx(5 * make_job().forward_flops)


def test_forks_that_share_their_beginnings_run_fewer_tokens() -> None:
    """Each sequence samples 10 of its tokens, and the next one has 8 more in its context."""
    many = PackShapes(64, rows=2, sequences=64).batch_shape()
    alone, job = make_job(many, forks=4), make_job(many, forks=4, share=True)
    assert job.families == [(8 + 16 + 18 + 18, 4)]
    assert job.run_tokens == 64 * 60
    layers = 4 * (4 * 64 * 64 + 3 * 64 * 128) + NORMS
    assert alone.forward_flops - job.forward_flops == pytest.approx(2 * layers * 64 * 20)  # attention as before
    assert job.micro_batches == 4
    assert make_job(many, forks=4, share=True, row_sequences=3).families == [(42, 3), (32, 1)]
    assert make_job(forks=4, share=True).families == [(24, 2), (42, 2)]  # a micro-batch of two rows has four sequences
    short = PackShapes(40, rows=2, sequences=64).batch_shape()
    assert make_job(short, forks=4, share=True).families == [(24, 2), (24, 1), (32, 1)]


def test_shared_beginnings_compile_for_a_gpu_and_cost_less() -> None:
    length, model = 1024, CONFIG.replace(scan_layers=True, remat="full", dtype="bfloat16", attention="auto")
    shapes = PackShapes(length, sequences=8, response_fractions=(0.5,))
    shape, tokens = shapes.batch_shape(length // 2), {"sequences": 8, "tokens": 768, "response": 0.01}
    alone = make_plan(make_job(shape, model=model, forks=8, **tokens), H100, CPU)
    pieces = dataclasses.replace(shape, pieces=16)
    together = make_plan(make_job(pieces, model=model, forks=8, share=True, **tokens), H100, CPU)
    assert together.job.run_tokens < 0.35 * alone.job.run_tokens
    assert together.per_step("flops") < 0.6 * alone.per_step("flops")
    assert together.peak < 1.5 * alone.peak  # one piece at a time, not all that attention runs on


@pytest.mark.parametrize(
    ("history", "plan", "sequences"),
    [
        ("keep", {}, 1),
        ("strip_thinking", {}, 1),
        ("drop_thinking", {}, 4),  # three calls and the answer
        ("drop_thinking", {"turns": 10}, 10),
        ("drop_thinking", {"turns": 90}, 50),  # rollout.limits.max_turns
    ],
)
def test_thoughts_that_are_dropped_make_sequences(history: str, plan: dict[str, int], sequences: int) -> None:
    rollout = dataclasses.replace(RunConfig().rollout, history=History(history))
    cfg = RunConfig(model=ModelConfig(preset="qwen3-8b"), plan=PlanConfig(**plan), rollout=rollout)
    assert job_of(cfg).forks == sequences


def test_compiled_flops_agree_with_the_formula() -> None:
    # Unpacked rows of one length, everything sampled, nothing recomputed but the logits: all terms are known.
    rows, length = 2, 64
    shape = BatchShape(rows, length, rows, length, 1, 0, False, rows * length)
    job = make_job(shape, model=CONFIG.replace(remat="none"), sequences=16, tokens=length, response=1.0)
    assert job.micro_batches == 1

    plan = make_plan(dataclasses.replace(job, reference="float32", offload=True), H100, CPU)

    compiled = plan.per_step("flops") * 8
    assert plan.state["reference"] == 0  # it waits in host memory

    recomputed = 2 * 512 * 64 * 16 * length
    masked_half = 3 * (16 * 4 * 4 * length * length * 64 // 2)  # dense attention computes what the mask hides
    norms = 6 * NORMS * 16 * length  # in the formula, but no matrix product
    assert compiled == pytest.approx(job.model_flops + recomputed + masked_half - norms, rel=0.01)


@pytest.mark.slow
def test_cudnns_attention_is_counted_without_its_scores() -> None:
    length = 1024
    shape = BatchShape(1, length, 4, length, 1, 0, True, length // 2)
    model = CONFIG.replace(scan_layers=True, remat="full", dtype="bfloat16", attention="auto", num_layers=2)
    job = make_job(shape, model=model, sequences=8, tokens=length)
    found = {name: make_plan(dataclasses.replace(job, model=model.replace(attention=name)), H100, CPU)
             for name in ("xla", "auto")}  # fmt: skip
    xla, auto = (found[name].programs["gradients"] for name in ("xla", "auto"))
    scores = 4 * 16 * length**2  # of one layer, in fp32
    assert xla.cost.bytes - auto.cost.bytes > 2 * 8 * scores  # 8: written and read, forward twice and backward
    # Blocks above the diagonal are the difference: XLA's blocks of 512 compute 3/4 of the square, the kernel 1/2.
    kernel = attention_flops(model, length, 1)
    assert kernel == 2 * 9 * 2 * 64 * length**2 / 2
    assert xla.cost.flops - auto.cost.flops == pytest.approx(kernel / 2, rel=0.02)
    assert any("cuDNN" in note for note in found["auto"].notes)
    l40s = make_plan(job, GPUS["l40s-48gb"], CPU)  # before Hopper cuDNN packs nothing
    assert l40s.programs["gradients"].cost.bytes == xla.cost.bytes


def test_fits_and_fits_not(plan: Plan) -> None:
    assert with_memory(plan, plan.peak).fits
    assert not with_memory(plan, plan.peak - 1).fits
    console = Console(record=True, width=118, file=open(os.devnull, "w"))  # noqa: SIM115
    show(plan, console)
    show(with_memory(plan, plan.peak - 1), console)
    text = console.export_text()
    assert "It fits" in text
    assert "It does not fit" in text
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.92" in text
    assert "all-gather" in text
    assert "virtual CPU devices (asked for)" in text
    assert "jax[cuda12]" in text


def test_advice_is_concrete_and_what_suffices_comes_first(plan: Plan) -> None:
    need = plan.peak - plan.state["optimizer"] // 2  # exactly what bf16 moments give

    lines = advice(with_memory(plan, need))

    enough = [line for line in lines if "not enough alone" not in line]
    assert lines[: len(enough)] == enough
    assert any(line.startswith("algorithm.optimizer.moment_dtype=bfloat16") for line in enough)
    assert any(line.startswith("algorithm.reference_offload=true") and "not enough alone" in line for line in lines)
    assert any(line.startswith("mesh.fsdp=16") for line in lines)
    assert any(line.startswith("algorithm.micro_tokens=64") for line in lines)
    assert not any("remat" in line for line in lines)  # it is full already


def test_advice_for_other_jobs(plan: Plan) -> None:
    job = dataclasses.replace(
        plan.job,
        model=CONFIG.replace(remat="none"),
        adapters=LoRA(4, 8.0),
        optimizer=OptimizerConfig(1e-3, moment_dtype="bfloat16"),
        reference=None,
    )

    lines = advice(dataclasses.replace(plan, job=job, usable=0, state={**plan.state, "reference": 0}))

    assert any(line.startswith("model.remat=full") for line in lines)
    assert not any(word in line for line in lines for word in ("lora", "moment_dtype", "offload"))


def test_a_larger_gpu_is_named(plan: Plan) -> None:
    sizes = sorted(gpu.memory for gpu in GPUS.values())
    fraction = plan.usable / plan.gpu.memory

    def peak_of(size: float) -> Plan:
        extra = int(size * fraction) - plan.peak
        return dataclasses.replace(plan, state={**plan.state, "reference": plan.state["reference"] + extra})

    assert smallest_gpu(plan) == min(GPUS, key=lambda name: GPUS[name].memory)
    assert smallest_gpu(peak_of(100e9)) == "h200-141gb"
    assert smallest_gpu(peak_of(2 * sizes[-1])) is None
    too_big = peak_of(100e9)
    assert any(line.startswith("plan.gpu=h200-141gb") for line in advice(too_big))


def test_time_at_a_stated_mfu(plan: Plan) -> None:
    assert plan.seconds["compute"] == pytest.approx(plan.job.model_flops / 8 / (0.4 * 989.4e12 / 2))  # fp32: TF32
    in_bf16 = dataclasses.replace(plan, job=dataclasses.replace(plan.job, model=CONFIG.replace(dtype="bfloat16")))
    assert in_bf16.seconds["compute"] == pytest.approx(plan.seconds["compute"] / 2)
    assert plan.seconds["memory"] == pytest.approx(plan.per_step("bytes") / 3.352e12)
    wires = sum(c.wire_bytes for c in plan.collectives)
    assert plan.seconds["links"] == pytest.approx(wires / 450e9)
    # Over two nodes of 4, four adapters of 50 GB/s carry what leaves a node.
    spread = [dataclasses.replace(c, per_node=4) for c in plan.collectives]
    assert {plan.rate(c) for c in spread} == {200e9}


def test_lora_trains_little(plan: Plan) -> None:
    adapted = make_plan(make_job(adapters=LoRA(4, 8.0), reference="float32"), H100, CPU)

    assert adapted.state["base"] == plan.state["parameters"]
    assert adapted.state["reference"] == 0  # the base is the reference
    assert adapted.state["optimizer"] < plan.state["optimizer"] / 2
    assert adapted.peaks["update"] < plan.peaks["update"]


def test_dtypes_of_moments_and_reference(plan: Plan) -> None:
    job = make_job(optimizer=OptimizerConfig(1e-3, moment_dtype="bfloat16"), reference="float32")

    lean = make_plan(job, H100, CPU)

    assert lean.state["optimizer"] == pytest.approx(plan.state["optimizer"] / 2, abs=64)
    assert lean.state["reference"] == plan.state["parameters"] == 2 * plan.state["reference"]


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"mesh": (1, -1, 1)}, {}, r"mesh\.fsdp=16"),
        ({"mesh": (1, 12, 1)}, {}, "do not fill nodes of 8"),
        ({"mesh": (1, 16, 1)}, {"compiler": "cpu"}, "8 CPU devices already, and the plan needs 16"),
        ({}, {"compiler": "tpu"}, "compiler=tpu is unknown"),
    ],
)
def test_what_cannot_be_planned(changes: dict[str, object], options: dict[str, str], message: str) -> None:
    jax.devices()  # JAX runs: no more devices from here on
    with pytest.raises(ConfigError, match=message):
        make_plan(make_job(**changes), H100, PlanConfig(**options))  # type: ignore[arg-type]


def test_an_unknown_gpu_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"Unknown GPU 'v100'.*h100-80gb.*h200-141gb.*a100-40gb"):
        plan_report.run(RunConfig(plan=PlanConfig(gpu="v100")))
    with pytest.raises(ValueError, match="did you mean a100-80gb or a100-40gb"):
        find_gpu("A100")
    assert find_gpu("H200") is GPUS["h200-141gb"]
    assert find_gpu("h100 pcie") is GPUS["h100-pcie-80gb"]


@pytest.mark.parametrize("gpu", GPUS.values(), ids=list(GPUS))
def test_gpus_are_what_their_names_say(gpu: Gpu) -> None:
    name = next(name for name, known in GPUS.items() if known is gpu)
    assert gpu.memory == pytest.approx(float(name.rpartition("-")[2].removesuffix("gb")) * 1e9, rel=0.08)
    text = gpu.target_config()
    assert text.count("{") == text.count("}")
    assert f"device_memory_size: {gpu.memory} " in text
    assert f"cuda_compute_capability {{ major: {gpu.capability[0]} minor: {gpu.capability[1]} }}" in text


def test_job_of_a_run() -> None:
    cfg = RunConfig(
        model=ModelConfig(preset="qwen3-8b", dtype="bfloat16", scan_layers=True, remat="full"),
        mesh=MeshConfig(fsdp=16),
        plan=PlanConfig(response=0.3),
    )
    rollout = dataclasses.replace(cfg.rollout, limits=RolloutLimits(max_length=8000, max_new_tokens=256))
    algorithm = dataclasses.replace(
        cfg.algorithm,
        loss=LossConfig("sequence", kl_coef=1e-4),
        micro_tokens=20000,
        packing=True,
        row_length=8192,
    )
    job = job_of(dataclasses.replace(cfg, algorithm=algorithm, rollout=rollout))

    assert (job.mesh, job.devices, job.shards) == ((1, 16, 1), 16, 16)
    assert (job.shape.length, job.shape.rows, job.shape.pieces) == (8192, 2, 1)
    assert job.shape.selected == 8192  # the compiled half, not 0.3
    assert (job.sequences, job.tokens, job.reference, job.offload) == (128, 8000, "bfloat16", False)
    assert (job.model.vocab_size, job.adapters) == (151936, None)

    unpacked = dataclasses.replace(cfg.algorithm, micro_tokens=20000, row_widths=[512])
    adapted = dataclasses.replace(cfg.model, lora=LoraConfig(rank=4))
    job = job_of(dataclasses.replace(cfg, algorithm=unpacked, rollout=rollout, model=adapted))

    assert (job.shape.length, job.shape.rows, job.shape.pieces) == (8000, 2, 0)
    assert job.reference is None
    assert job.adapters == LoRA(4, 32.0)


def test_a_size_without_vocabulary_takes_the_tokenizers() -> None:
    tiny = model_config(RunConfig(model=ModelConfig(tokenizer="environment")))

    assert 50 < tiny.vocab_size < 5000
    with pytest.raises(ConfigError, match="no vocabulary"):
        model_config(RunConfig(model=ModelConfig(preset="tiny")))


@pytest.mark.slow
def test_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "experiments" / "plan.py"), "mesh.fsdp=4", f"hydra.run.dir={tmp_path}"]
    command.append("model.family=tests.training.micro:OneLayer")  # compiles faster
    # Without the tests' number of devices: it makes those of the mesh.
    flags = " ".join(flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag)
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}

    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "4 x NVIDIA H100" in done.stdout
    assert "It fits" in done.stdout


def test_a_checkpoint_that_cannot_be_had_is_one_sentence(tmp_path: Path):
    command = [sys.executable, str(ROOT / "experiments" / "plan.py"), "+experiment=hle", f"hydra.run.dir={tmp_path}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, "model.path=our/policy"], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if not line.startswith("[transformers]")]
    assert len(lines) == 1
    assert lines[0].startswith("there is no such folder, and the model our/policy is neither in the hub's cache nor to")
