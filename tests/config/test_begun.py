"""A folder in use: another run's is refused before JAX is imported, and a sweep passes over what is finished."""

import json
from pathlib import Path

import pytest

from orchestra_jax.config.compose import compose
from tests.config.test_command import start


def _begun(folder: Path, *overrides: str, outcomes: tuple[str | None, ...] = ()) -> None:
    """Write a run's folder as a run with these settings leaves it."""
    config = json.loads(json.dumps(compose(*overrides).as_dict()))
    meta = folder / "checkpoints" / "policy-000001" / "meta" / "metadata"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"config": config}))
    starts = [{"outcome": outcome} for outcome in outcomes]
    (folder / "run.json").write_text(json.dumps({"kind": "train", "config": config, "starts": starts}))
    (folder / "summary.json").write_text("{}")


def test_another_runs_folder_is_refused_before_jax_is_imported(tmp_path: Path):
    _begun(tmp_path)
    status, printed, sentences, told = start("train", f"output_dir={tmp_path}", "seed=1")
    refusal = f"{tmp_path} holds another run (seed: 0 -> 1): choose another name=..., or delete it."
    assert (status, printed, sentences) == (2, "", [refusal])
    assert told.startswith("jax=False")
    assert json.loads((tmp_path / "run.json").read_text())["starts"] == []  # the record is the other run's


@pytest.mark.parametrize(("before", "now", "refused"), [
    ("{elsewhere}", "null", True), ("null", "{elsewhere}", True), ("gs://bucket/run", "null", True),
    ("null", "gs://bucket/run", True), ("{elsewhere}", "{elsewhere}", False), ("gs://a/run", "gs://b/run", False),
])  # fmt: skip
def test_a_run_does_not_begin_anew_beside_checkpoints_that_lie_elsewhere(
    tmp_path: Path, before: str, now: str, refused: bool
):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    before, now = (f"checkpoint.folder={place.format(elsewhere=elsewhere)}" for place in (before, now))
    _begun(run, before, "model.path=/nowhere", outcomes=(None, "refused"))
    if "null" not in before:
        (run / "checkpoints").rename(elsewhere)
    _, _, sentences, _ = start("train", f"output_dir={run}", now, "model.path=/nowhere")
    old, new = (place.partition("=")[2].replace("null", f"{run}/checkpoints") for place in (before, now))
    refusal = f"{run} holds a run whose checkpoints are in {old}, not in {new}: set checkpoint.folder as before, or "
    refusal += f"move them there; to begin anew, delete {run}, or choose another name=..."
    assert sentences == [refusal if refused else "model.path=/nowhere is not there: set model.path."]


def test_where_no_checkpoint_is_left_a_run_may_put_them_elsewhere(tmp_path: Path):
    _begun(tmp_path, outcomes=(None,))
    (tmp_path / "checkpoints").rename(tmp_path / "moved")
    _, _, sentences, _ = start("train", f"output_dir={tmp_path}", f"checkpoint.folder={tmp_path}/new", "model.path=/no")
    assert sentences == ["model.path=/no is not there: set model.path."]


def test_a_checkpoint_that_cannot_be_read_is_left_to_the_run(tmp_path: Path):
    _begun(tmp_path, "seed=1")
    (tmp_path / "checkpoints/policy-000001/meta/metadata").write_text("[")
    _, _, sentences, _ = start("train", f"output_dir={tmp_path}", "model.path=/nowhere")
    assert sentences == ["model.path=/nowhere is not there: set model.path."]


def test_a_sweep_passes_over_what_is_finished(tmp_path: Path):
    jobs = [tmp_path / f"seed={seed}" for seed in (0, 1)]
    _begun(jobs[0], "seed=0", outcomes=("stopped", "done", "refused"))
    _begun(jobs[1], "seed=1", outcomes=("done",))
    status, printed, _, told = start("train", "-m", f"hydra.sweep.dir={tmp_path}", "seed=0,1")
    assert status == 0
    assert printed.splitlines() == [f"{job} is finished: its figures are in {job / 'summary.json'}." for job in jobs]
    assert told.startswith("jax=False")


@pytest.mark.parametrize(("outcomes", "setting"), [
    (("done",), "evaluation.questions=8"), (("done", "stopped"), "seed=0"), (("refused",), "seed=0"),
])  # fmt: skip
def test_a_sweep_goes_on_with_what_is_not(tmp_path: Path, outcomes: tuple[str, ...], setting: str):
    lacking = "model.path=/nowhere"  # stops a run that would go on
    _begun(tmp_path / "0", lacking, outcomes=outcomes)
    where = f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir=${hydra.job.num}"
    status, printed, sentences, _ = start("train", "-m", *where, lacking, setting)
    told = [f"{lacking} is not there: set model.path.", f"Error executing job with overrides: {[lacking, setting]}"]
    assert (status, printed, sentences) == (2, "", told)


@pytest.mark.parametrize("launcher", [(), ("hydra/launcher=joblib", "hydra.launcher.n_jobs=1")])
def test_a_sweep_goes_on_when_a_job_is_refused_and_ends_with_its_status(tmp_path: Path, launcher: tuple[str, ...]):
    if launcher:
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    _begun(tmp_path / "0", "seed=7")
    _begun(tmp_path / "1", "seed=1", outcomes=("done",))
    where = f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir=${hydra.job.num}"
    status, printed, sentences, _ = start("train", "-m", *launcher, *where, "seed=0,1")
    assert status == 2
    assert f"{tmp_path / '1'} is finished: its figures are in {tmp_path / '1' / 'summary.json'}." in printed
    assert sentences[0].startswith(f"{tmp_path / '0'} holds another run (seed: 7 -> 0)")
    assert sentences[-1] == "Error executing job with overrides: ['seed=0']"
