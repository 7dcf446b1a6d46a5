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


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("seed=x", "seed=x must be a whole number: change it."),
        ("seed=", "seed= must be a whole number: change it."),
        ("++seed=x", "seed=x must be a whole number: change it."),
        ("seed=${name}", "seed=${name} must be a whole number: change it."),
        ("steps=1.5", "steps=1.5 must be a whole number: change it."),
        ("steps=null", "steps=null must be a whole number: change it."),
        ("steps=[1,2]", "steps=[1,2] must be a whole number: change it."),
        ("algorithm.optimizer.learning_rate=abc", "algorithm.optimizer.learning_rate=abc must be a number: change it."),
        ("logger.rollouts=maybe", "logger.rollouts=maybe must be true or false: change it."),
        ("name=[a]", "name=[a] must be a text: change it."),
        ("name=null", "name=null must be a text: change it."),
        ("model.dtype=[a]", "model.dtype=[a] must be one of float32, bfloat16: change it."),
        ("model.dtype=null", "model.dtype=null must be one of float32, bfloat16: change it."),
        ("rollout.urls=5", "rollout.urls=5 must be a list: write rollout.urls=[5]."),
        ("tools.names={a:1}", "tools.names={a:1} must be a list: change it."),
        ("tools.experts=[a]", "tools.experts=[a] must be a map: change it."),
        ("env.options=3", "env.options=3 must be a map: change it."),
        ("evaluation.turn_caps=[1,a]", "evaluation.turn_caps[1]=a must be a whole number: change it."),
        ("reward={outcome:x}", "reward.outcome=x must be a number: change it."),
        ("rollout.urls.a=5", "Unknown key 'rollout.urls.a': did you mean rollout.urls?"),
        ("tools.experts={math:[m]}", "tools.experts has no entry 'math' yet: write +tools.experts.math=VALUE to give"),
        (
            "env.options.nothing=1",
            "env.options has no entry 'nothing' yet: write +env.options.nothing=VALUE to give it",
        ),
        ("+experiment=null", "'+experiment=null' names no file of a config group: write +experiment=NAME."),
        ("seed.a=1", "Unknown key 'seed.a': did you mean seed?"),
        ("logger=5", "'logger=5' names no file of a config group: write logger=NAME."),
        ("algorithm=null", "'algorithm=null' names no file of a config group: write algorithm=NAME."),
        ("algorithm=[papr]", "Unknown choice 'algorithm=papr': did you mean algorithm=paper? algorithm has: "),
        ("name=${sed}", "A setting refers to another with ${...}. Unknown key 'sed': did you mean seed?"),
        ("name=${oc.env:NO_SUCH_NAME}", "The environment variable NO_SUCH_NAME, which a setting refers to, is not set"),
        ("name=${nope:1}", "${nope:...} in a setting is of no known kind: write ${KEY}, or ${oc.env:VARIABLE}."),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_in_our_words(wrong: str, sentence: str):
    with pytest.raises(ConfigError) as error:
        compose(wrong)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)
