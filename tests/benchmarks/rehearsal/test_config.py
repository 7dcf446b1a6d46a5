"""The rehearsal is the paper's run: only sizes differ, and the log says which."""

from dataclasses import asdict
from pathlib import Path

import hydra
import pytest
from hydra.core.hydra_config import HydraConfig

from orchestra_jax.config import cli
from orchestra_jax.config.checks import flat
from orchestra_jax.config.compose import compose
from orchestra_jax.config.experiment import changed_settings

CONF = Path(__file__).parents[3] / "conf"
SIZES = {
    "algorithm.tasks_per_step", "algorithm.group_size", "algorithm.micro_tokens", "algorithm.refill", "steps",
    "algorithm.row_length",
    "rollout.slots", "rollout.limits.max_length", "rollout.limits.max_new_tokens", "rollout.limits.max_turns",
    "evaluation.questions", "evaluation.every", "checkpoint.every",
}  # fmt: skip
# Where things are, and what a CPU's server needs.
PLACES = {
    "name", "output_dir", "model.path", "model.tokenizer", "tools.web.url", "rollout.urls", "rollout.server.python",
    "rollout.server.device", "rollout.server.flags", "rollout.weight_dtype",
}  # fmt: skip
SEARCHED = {"tools.menu.always"}  # the prepared index, in a rehearsal of a few dozen calls


def changed(*overrides: str) -> str:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose("config", list(overrides), return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        run = hydra.compose("config", list(overrides))
        return changed_settings(run)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    cli.register()
    monkeypatch.setenv("REHEARSAL", "/rehearsal")
    monkeypatch.setenv("PROVIDERS_URL", "http://127.0.0.1:1")


@pytest.mark.parametrize("experiment", ["hle", "frames"])
def test_only_sizes_and_places_differ(experiment: str):
    paper, ours = (dict(flat(asdict(compose(f"+experiment={experiment}", *more)))) for more in ([], ["+rehearsal=cpu"]))
    assert {key for key in paper if paper[key] != ours[key]} <= SIZES | PLACES | SEARCHED
    # On a GPU servers sample in bfloat16 unless told otherwise, and so does this one.
    assert ours["rollout.weight_dtype"] == "bfloat16"


def test_the_log_names_every_setting_of_the_runs_own():
    told = changed("+experiment=hle", "+rehearsal=cpu", "algorithm.optimizer.learning_rate=2e-6")
    first, *lines = told.splitlines()
    assert first == f"Experiment hle, with {len(lines)} settings of this run's own:"
    assert "  algorithm.group_size: 8 -> 4" in lines
    assert "  algorithm.optimizer.learning_rate: 1e-06 -> 2e-06" in lines
    assert "  model.path: null -> /rehearsal/policy" in lines
    own = {line.partition(":")[0].strip() for line in lines}
    assert own <= SIZES | PLACES | SEARCHED | {"algorithm.optimizer.learning_rate"}


def test_an_experiment_as_it_is_has_none_and_other_runs_have_no_experiment():
    assert changed("+experiment=hle") == "Experiment hle, with no settings of this run's own."
    assert changed() == ""
