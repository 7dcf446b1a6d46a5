"""Every key of the schema under values that nobody should have written: a valid run or one sentence, nothing else."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestra_jax.config import cli, errors
from orchestra_jax.config.checks import load, missing
from orchestra_jax.config.messages import keys
from orchestra_jax.config.missing import missing_inputs
from orchestra_jax.config.schema import ConfigError, DataConfig, RunConfig
from orchestra_jax.rl.losses.constant import with_constant
from orchestra_jax.rl.packing import policy_shapes
from orchestra_jax.rl.setup import adapters
from tests.composed import composed

CONF = Path(__file__).resolve().parents[2] / "conf"
INFINITE, NO_NUMBER = float("inf"), float("nan")
ODD: tuple[Any, ...] = (
    None, "", " ", "x", "x" * 10_000, "\ud83d", "a\0b", "a\nb", "http://[", "http://h:99999", "nan", "1.5",
    -1, 0, 1, 2**31, 2**64, 10**400, True, INFINITE, -INFINITE, NO_NUMBER, 1e-320, 1e308,
    [], [[]], [None], [-1], [0], [INFINITE], ["x"], ["\ud83d"], [2**64], [{}], [[[1]]], [{"path": None}],
    [{"weight": NO_NUMBER}], {}, {"x": 1}, {"x": []}, {"x": None}, {"": ""},
    "${nope}", "${oc.env:NO_SUCH_VARIABLE}", "${seed}", "${model}", "${data.mixture}", "???",
)  # fmt: skip
KEYS = list(keys())


@pytest.fixture(scope="module")
def base() -> DictConfig:
    return composed()


def changed(base: DictConfig, key: str, value: Any) -> RunConfig:
    """The run with one setting as the command line would set it; `base` stays as it is."""
    group, _, name = key.rpartition(".")
    parent = OmegaConf.select(base, group) if group else base
    kept = parent._get_node(name)
    parent.__dict__["_content"][name] = copy.deepcopy(kept)
    try:
        OmegaConf.update(base, key, value, merge=True, force_add=isinstance(value, dict))
        return load(base)
    finally:
        parent.__dict__["_content"][name] = kept


def outcome(base: DictConfig, key: str, value: Any) -> str | None:
    """What a user would read, None where the run is valid; what `explain_error` does not know is raised."""
    try:
        run = changed(base, key, value)
    except (ConfigError, HydraException, OmegaConfBaseException, OverflowError) as error:
        sentence = errors.explain_error(error)
        lines = sentence.splitlines() if isinstance(error, ConfigError) else [sentence]
        if not all(line.isprintable() for line in lines):
            raise AssertionError(ascii(sentence)) from error
        return sentence
    sentences = missing_inputs(run)
    assert missing(run) == sentences  # which does not look where nothing is read
    for sentence in sentences:
        assert len(sentence) < 500
        sentence.encode()
    policy_shapes(run.algorithm, run.model, run.rollout.limits.max_length)
    with_constant(run.algorithm, run.rollout), adapters(run.model.lora)
    return None


def sweep(base: DictConfig, values: int) -> None:
    for key in KEYS:
        for value in random.Random(key).sample(ODD, values):
            try:
                sentence = outcome(base, key, value)
            except Exception as error:
                raise AssertionError(f"{key}={value!r:.80}") from error
            assert all(len(line) < 1000 for line in (sentence or "").splitlines()), f"{key}={value!r:.80}"


def test_odd_values(base: DictConfig) -> None:
    sweep(base, 2)


@pytest.mark.release
def test_all_odd_values(base: DictConfig) -> None:
    sweep(base, len(ODD))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@settings(max_examples=150)
@given(key=st.sampled_from(KEYS), value=VALUES)
def test_any_value(base: DictConfig, key: str, value: Any) -> None:
    outcome(base, key, value)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("algorithm.optimizer.learning_rate", INFINITE, "algorithm.optimizer.learning_rate=inf is not finite"),
        ("algorithm.loss.clip_high", NO_NUMBER, "algorithm.loss.clip_high=nan is not finite"),
        ("rollout.temperature", 1e-320, "rollout.temperature=1e-320 is a number that 32 bits do not hold"),
        ("reward.outcome", 10**400, "reward.outcome is a number that 32 bits do not hold"),
        ("seed", 2**64, "seed=18446744073709551616 must be at most 2147483647"),
        pytest.param("seed", 10**5000, "seed=a number of about 4983 digits must be at most", id="seed-digits"),
        ("rollout.limits.deadline_s", 1e300, "rollout.limits.deadline_s=1e+300 must be at most 1000000000.0"),
        ("reward.tools", 1.5, "reward.tools=1.5 must be within [0, 1]"),
        ("rollout.server.gpus", [[0, -1]], "rollout.server.gpus[0][1]=-1 must be at least 0"),
        ("rollout.urls", ["http://["], "rollout.urls[0]=http://[ must be an address such as http://HOST:PORT"),
        ("tools.server.url", "host:80", "tools.server.url=host:80 must be an address such as http://HOST:PORT"),
        ("tools.search.index", "http://h:x", "tools.search.index=http://h:x must be an address"),
        ("mesh.coordinator", "here", "mesh.coordinator=here must be HOST:PORT"),
        ("algorithm.row_widths", [128, 0], "algorithm.row_widths[1]=0 must be at least 1"),
        ("algorithm.response_fractions", [1.5], "algorithm.response_fractions[0]=1.5 must be at most 1"),
        ("rollout.widths", [], "rollout.widths is an empty list: name at least one"),
        ("tools.self_hosted", [{}], "tools.self_hosted[0]={} must be a text"),
        ("tools", "${seed}", "tools=0 stands where a group of settings is: write tools.NAME=VALUE"),
        ("tools.experts", "${seed}", "tools.experts=0 must be a map"),
        ("name", "", "name is an empty text"),
        ("output_dir", "a\0b", "output_dir=a\\x00b has a character that no name or path has"),
        ("model.path", "\ud83d", "model.path=\\ud83d has a character that no name or path has"),
        ("model.path", "x" * 10_000, f"model.path={'x' * 300}... has 10000 characters, more than 4096"),
        ("env.options", {"x": [{"y": INFINITE}]}, "env.options.x[0].y=inf is not finite"),
        ("data.mixture", [{"weight": NO_NUMBER}], "data.mixture[0].weight=nan is not finite"),
    ],
)
def test_one_odd_value(base: DictConfig, key: str, value: Any, sentence: str) -> None:
    found = outcome(base, key, value) or ""
    assert found.splitlines()[0].startswith(sentence)


def test_a_name_that_is_too_long_for_a_file_is_not_there(base: DictConfig) -> None:
    found = missing_inputs(changed(base, "model.path", "x" * 300))
    assert [sentence[:20] for sentence in found] == [f"model.path={'x' * 9}"]


def test_what_is_wide_on_purpose_stays(base: DictConfig) -> None:
    assert changed(base, "budget.run_tokens", 10**12).budget.run_tokens == 10**12
    assert changed(base, "env.options", {"seed": 2**40, "text": " \n"}).env.options == {"seed": 2**40, "text": " \n"}


def test_a_value_is_checked_without_a_command_line_too() -> None:
    with pytest.raises(ConfigError, match="eval_questions=4294967296 must be at most"):
        DataConfig(eval_questions=2**32)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("seed=" + "1" * 5000, "Exceeds the limit (4300 digits) for integer string conversion"),
        ("reward.outcome=" + "1" * 400, "reward.outcome is a number that 32 bits do not hold: change it."),
        ("tools.names=" + "[" * 1000 + "]" * 1000, "A setting has too many brackets within brackets to be read."),
        ("", "'' is no setting: write KEY=VALUE, close every bracket and quote, and put quotes around a value that"),
        ("name=[1", "'name=[1' is no setting: write KEY=VALUE"),
        ("rollout=[[1]]", "A setting has a kind of value that its place does not take"),
        ("tools=null", "'tools=null' names no file of a config group: write tools=NAME."),
        ("mesh=mine", "mesh/mine.yaml"),
        ("reward=mine", "In 'reward/mine': 'utf-8' codec can't decode byte"),
    ],
)
def test_what_hydra_does_not_explain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, sentence: str
) -> None:
    for group, content in (("mesh", b"data: [1\n"), ("reward", b"outcome: \xe9")):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_bytes(content)

    with pytest.raises(SystemExit) as stop, cli.user_errors():
        composed(f"hydra.searchpath=[{tmp_path}]", override)
    printed = capsys.readouterr().err
    assert (stop.value.code, len(printed.splitlines())) == (2, 1)
    assert sentence in printed
