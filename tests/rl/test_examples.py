"""The examples in the docstrings of the public functions are right, and each of these functions has one."""

import doctest
import importlib
import inspect

import pytest

PUBLIC = {
    "orchestra_jax.rl.rewards": ["feature_matrix", "normalize_features", "preference_reward", "preference_score"],
    "orchestra_jax.rl.advantages": ["member_masks", "informative_groups", "group_advantages"],
    "orchestra_jax.rl.losses.base": ["aggregation_of", "recomputes_old"],
    "orchestra_jax.rl.losses.masked": ["masked_percentiles"],
    "orchestra_jax.rl.losses.policy": ["kl_estimate", "policy_loss"],
    "orchestra_jax.models.logprobs": ["token_logprobs"],
}


@pytest.mark.parametrize("name", PUBLIC)
def test_the_examples_of_public_functions_are_right(name: str):
    module = importlib.import_module(name)
    for function in PUBLIC[name]:
        assert ">>>" in (inspect.getdoc(getattr(module, function)) or ""), f"{name}.{function} has no example"
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
