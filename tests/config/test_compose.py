"""A config from a program: what the command line would make of the same words."""

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError


def test_it_is_the_config_of_the_command_line():
    config = compose("+experiment=hle", "seed=3", "model=tiny")
    assert (config.name, config.seed, config.model.preset) == ("hle", 3, "tiny")
    assert compose("+benchmark=gsm8k", name="evaluate").replay.mode == "replay_or_record"


@pytest.mark.parametrize("wrong", ["sede=3", "model=huge", "seed=red", "algorithm.group_size=0"])
def test_a_users_error_is_one_sentence(wrong: str):
    with pytest.raises(ConfigError) as caught:
        compose(wrong)
    assert "\n" not in str(caught.value)
