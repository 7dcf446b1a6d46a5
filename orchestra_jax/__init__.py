"""Train orchestrators: small language models that solve tasks by calling tools and bigger models.

    import orchestra_jax as oj

The names below are loaded when they are first used, so that the import alone is fast and starts no JAX:

    oj.compose    the config of a run, as the command line would make it
    oj.play       one trajectory of an environment by a policy, a baseline or a script
    oj.load_run   a finished run: config, summary, metrics, policy
    oj.Orchestrator  a trained policy that answers questions
    oj.tool       decorator that makes a tool of an async function
    oj.group_arrays, oj.rewards, oj.advantages, oj.losses
                  from trajectories to arrays, rewards (Eq. 2), advantages (Eq. 3) and losses (Eq. 4)

Example:
    >>> import orchestra_jax as oj
    >>> quickstart = oj.compose("env.seed=37")  # generated questions, and simulated tools with prices
    >>> policies = ["preference_oracle", "strongest_expert", "random", "do_nothing"]
    >>> group = [oj.play(quickstart, policy) for policy in policies]  # one question, four policies
    >>> group[0].task.question, group[0].task.preference.instruction
    ('How old are Wanda Meyer and Tomas Sato together?', 'You must keep the cost low.')
    >>> arrays = oj.group_arrays(group, group_size=4)
    >>> features = oj.rewards.feature_matrix(arrays.tool_counts, arrays.solved, arrays.cost_usd, arrays.latency_s)
    >>> rewards = oj.rewards.preference_reward(
    ...     features, arrays.preference, arrays.solved, arrays.completed, arrays.tool_mask
    ... )
    >>> advantages = oj.advantages.group_advantages(rewards, arrays.completed)
    >>> for policy, found, reward, advantage in zip(policies, group, rewards[0], advantages[0]):
    ...     print(f"{policy:18} {found.tool_names} ${found.cost_usd:.2f} {reward=:.2f} {advantage=:+.2f}")
    preference_oracle  ['web_search', 'web_search', 'python'] $0.04 reward=0.81 advantage=+1.41
    strongest_expert   ['expert_large'] $0.09 reward=0.00 advantage=-0.71
    random             ['web_search'] $0.01 reward=0.00 advantage=-0.71
    do_nothing         [] $0.00 reward=0.00 advantage=+0.00
"""

import importlib
import os
from typing import Any

__version__ = "0.2.0"

# transformers gives us tokenizers only, and would advise on every start to install PyTorch.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

# Public name -> module, or module:attribute; __init__.pyi has the types.
_PUBLIC = {
    "Orchestrator": "orchestra_jax.serving.orchestrator:Orchestrator",
    "advantages": "orchestra_jax.rl.advantages",
    "compose": "orchestra_jax.config.compose:compose",
    "group_arrays": "orchestra_jax.rl.groups:group_arrays",
    "load_run": "orchestra_jax.api:load_run",
    "losses": "orchestra_jax.rl.losses",
    "play": "orchestra_jax.api:play",
    "rewards": "orchestra_jax.rl.rewards",
    "tool": "orchestra_jax.tools.base:tool",
}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    found: Any = importlib.import_module(module)
    found = getattr(found, attribute) if attribute else found
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
