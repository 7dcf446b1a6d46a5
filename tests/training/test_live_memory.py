"""Bytes that each of eight devices holds while a run starts or resumes: its own share of the state, never a second one.

A thread looks at the live arrays as often as it can. It can miss what lives for less than a look, so a peak that it
finds is true and a bound that it keeps is not proved; a second state lives as long as a checkpoint is read, and a whole
policy until it is split.
"""

import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from orchestra_jax.config.schema import RunConfig
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.models import checkpoint
from orchestra_jax.models.decoder import init_params
from orchestra_jax.money.run_budget import RunBudget
from orchestra_jax.rl.setup import device_mesh, policy_learner
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.training import trainer as training
from orchestra_jax.training.build import policy_config
from orchestra_jax.training.checkpointing import Checkpoints, RunState
from orchestra_jax.training.policy_weights import starting_reference
from orchestra_jax.training.resuming import abstract_state
from orchestra_jax.training.trainer import Trainer
from tests.training.test_trainer import MICRO, config

pytestmark = pytest.mark.skipif(jax.device_count() != 8, reason="needs the 8 virtual devices of conftest.py")
SPLIT = (*MICRO, "mesh.fsdp=8", "warm_start.steps=0", "model.random_init=true", "algorithm.loss.kl_coef=0.01")


class Peak:
    """The most bytes of arrays that a device held since the beginning, by device."""

    def __enter__(self) -> "Peak":
        self.before = self._bytes()
        self.most: dict[int, int] = defaultdict(int)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def look(self) -> None:
        for device, size in self._bytes().items():
            self.most[device] = max(self.most[device], size - self.before[device])

    def _watch(self) -> None:
        while not self._stop.wait(0.001):
            self.look()

    @staticmethod
    def _bytes() -> dict[int, int]:
        buffers: dict[tuple[int, int], int] = {}  # an array and its shards are the same memory
        for array in jax.live_arrays():
            try:
                for shard in array.addressable_shards:
                    buffers[shard.device.id, shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
            except (RuntimeError, ValueError, TypeError):
                continue  # gone since
        found: dict[int, int] = defaultdict(int)
        for (device, _), size in buffers.items():
            found[device] += size
        return found


class BuiltError(Exception):
    """Instead of an engine."""


@pytest.fixture
def peak_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[RunConfig], tuple[dict[int, int], Any]]:
    """Builds a trainer up to its engine; the peak by device, and the run's state."""

    def build(cfg: RunConfig) -> tuple[dict[int, int], Any]:
        chat, environment = make_chat(cfg), make_environment(cfg)
        states = []

        def restored(*args: Any, original: Any = Trainer._restore_or_init) -> Any:
            states.append(original(*args))
            jax.block_until_ready(jax.tree.leaves(states[0][0].trained))
            peak.look()
            raise BuiltError

        monkeypatch.setattr(training.Trainer, "_restore_or_init", restored)
        Path(cfg.output_dir).mkdir(exist_ok=True)
        with LoopThread() as loop:
            with pytest.raises(BuiltError), Peak() as peak:
                Trainer(cfg, environment, chat, RunBudget(cfg.budget, Path(cfg.output_dir)), loop)
            loop.run(environment.close())
        return peak.most, states[0][0]

    return build


def share(tree: Any) -> int:
    """Bytes of a tree of sharded arrays or shape structs on one device."""
    return sum(
        jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype).size * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def test_a_checkpoint_is_loaded_shard_by_shard(tmp_path: Path, peak_of):
    plain = config(tmp_path, *MICRO)
    model = policy_config(plain, make_chat(plain))
    checkpoint.save(tmp_path / "model", model, init_params(model, jax.random.key(0)))
    cfg = config(tmp_path / "run", *SPLIT, f"model.path={tmp_path / 'model'}", "model.tokenizer=environment")
    peak, state = peak_of(cfg)
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state.trained.params))
    assert share(state.trained) < 0.5 * whole
    assert max(peak.values()) <= 1.02 * share(state.trained)


def test_random_weights_are_made_shard_by_shard(tmp_path: Path, peak_of):
    peak, state = peak_of(config(tmp_path, *SPLIT))
    assert max(peak.values()) <= 1.02 * share(state.trained)


@pytest.mark.slow
@pytest.mark.parametrize("offload", [False, True])
def test_a_run_resumes_into_its_own_memory(tmp_path: Path, peak_of, offload: bool):
    cfg = config(tmp_path, *SPLIT, f"algorithm.reference_offload={offload}")
    learner = policy_learner(
        cfg.algorithm, cfg.rollout, cfg.steps, policy_config(cfg, make_chat(cfg)), mesh=device_mesh(cfg.mesh)
    )
    trained = learner.init(init_params(learner.config, jax.random.key(1)))
    reference = starting_reference(cfg.algorithm, learner.config.dtype, trained.params)
    saved = RunState(trained, reference, phase="policy", step=2)
    checkpoints = Checkpoints(tmp_path / "checkpoints", 1)
    checkpoints.save_run(cfg, saved, {}, 1.0)
    checkpoints.close()
    wanted = jax.device_get((saved.trained, saved.reference))
    del trained, saved
    peak, state = peak_of(cfg)
    on_devices = state.trained if offload else (state.trained, state.reference)
    assert max(peak.values()) <= 1.02 * share(on_devices)
    assert not offload or not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state.reference))
    found = jax.device_get((state.trained, state.reference))
    jax.tree.map(lambda a, b: (a == b).all() or pytest.fail("another state came back"), wanted, found)
    like = abstract_state(learner)
    jax.tree.map(lambda leaf, spec: leaf.sharding == spec.sharding or pytest.fail(str(spec)), state.trained, like)
