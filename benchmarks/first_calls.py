"""Read off how probable a policy finds each first call of a question; menus.py and routellm.py use it."""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from orchestra_jax.envs.base import Environment
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.decoder import forward, logits
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.parsing import render_call
from orchestra_jax.types import Task, ToolCall

_ROWS = 32  # prompts in a pass


def first_calls(
    asked: Sequence[tuple[Task, Sequence[str]]],
    environment: Environment,
    chat: ChatFormat,
    config: DecoderConfig,
    params: Params,
) -> Iterator[dict[str, float]]:
    """Yield the logit of calling each of these tools first, for each task: differences of two are log-odds.

    Args:
        asked: tasks, and names of tools of their menus. Calls of two tools differ in one token, where they first do.
    """

    @jax.jit
    def scores(params: Params, tokens: jax.Array, last: jax.Array) -> jax.Array:
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        hidden, _ = forward(params, config, tokens, places)
        return logits(params, config, jnp.take_along_axis(hidden, last[:, None, None], 1)[:, 0])

    prompts, names = list[list[int]](), list[dict[int, str]]()
    for task, tools in asked:
        episode = environment.reset(task, Budget())
        prompt = list(chat.prompt_ids(episode.messages, episode.tools))
        calls = {name: chat.tokenizer.encode(render_call(ToolCall(name, {}))) for name in tools}
        same = next(k for k, tokens in enumerate(zip(*calls.values(), strict=False)) if len(set(tokens)) > 1)
        names.append({tokens[same]: name for name, tokens in calls.items()})
        if len(names[-1]) < len(calls):
            raise SystemExit("Two tools begin with the same token: train with tools.menu.letters=true.")
        prompts.append([*prompt, *next(iter(calls.values()))[:same]])
    width = max(map(len, prompts))
    for first in range(0, len(prompts), _ROWS):
        rows = prompts[first : first + _ROWS]
        tokens = np.zeros((_ROWS, width), np.int32)
        for row, prompt in zip(tokens, rows, strict=False):
            row[: len(prompt)] = prompt
        last = np.array([len(prompt) - 1 for prompt in rows] + [0] * (_ROWS - len(rows)))
        table = np.asarray(scores(params, tokens, last))
        for row, known in zip(table, names[first : first + _ROWS], strict=False):
            yield {name: float(row[token]) for token, name in known.items()}
