"""Values for the page of one group: its menu, and each member's turns, money, time, reward terms and tokens."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from orchestra_jax.config.schema import RewardConfig
from orchestra_jax.evaluation.group_files import Scores, StoredGroup
from orchestra_jax.rl.groups import group_arrays
from orchestra_jax.rl.rewards import feature_matrix, normalize_features
from orchestra_jax.types import ToolCall, ToolResult, Trajectory, Turn, Usage, work_seconds

Decode = Callable[[Sequence[int]], str]  # token ids to text


def view(group: StoredGroup, reward: RewardConfig, decode: Decode | None) -> dict[str, Any]:
    """Return everything that the template needs, as plain values.

    Args:
        reward: how the run weighs the terms of Eq. 2.
        decode: of the policy's tokenizer; without one tokens are shown as their ids.
    """
    task = group.task
    terms = reward_terms(group, reward)
    members = [
        {
            "number": n,
            "status": str(member.status),
            "reason": member.reason,
            "answer": member.answer,
            "solved": member.solved,
            "criteria": member.criteria,
            "cost": member.cost_usd,
            "seconds": member.latency_s,
            "reward": group.rewards[n],
            "advantage": group.advantages[n],
            "terms": terms[n],
            "scored": bool(group.learner) and group.learner[n] is not None,
            "turns": list(_turns(member)),
        }
        for n, member in enumerate(group.members)
    ]
    turns = [turn for member in group.members for turn in member.turns]
    ids = sorted({token for turn in turns for token in (*turn.prompt_ids, *turn.sampled_ids)})
    return {
        "step": group.step,
        "group": group.group,
        "kept": group.kept,
        "task": task,
        "menu": [{"spec": spec, "weight": task.preference.tools.get(spec.name, 0.0)} for spec in task.tools],
        "members": members,
        "tokens": {
            "turns": [_tokens(*pair) for pair in itertools.zip_longest(group.members, group.learner)],
            "pieces": {token: decode([token]) if decode else str(token) for token in ids},
        },
    }


def reward_terms(group: StoredGroup, reward: RewardConfig) -> list[list[dict[str, Any]]]:
    """Return by member each feature of Eq. 2: its value, its place in the group's range, its weight and the product."""
    arrays = group_arrays(group.members, len(group.members))
    columns = (arrays.tool_counts, arrays.solved, arrays.cost_usd**reward.cost_power, arrays.latency_s)
    matrix = feature_matrix(*map(jnp.asarray, columns), tool_feature=reward.tool_feature)
    completed = jnp.asarray(arrays.completed)
    norm = np.asarray(normalize_features(matrix, completed, normalize_outcome=reward.normalize_outcome))[0]
    cost = "cost" if reward.cost_power == 1 else f"cost^{reward.cost_power:g}"
    names = [*(spec.name for spec in group.task.tools), "outcome", cost, "latency"]
    scale = [*[reward.tools] * len(group.task.tools), reward.outcome, reward.compute, reward.latency]
    weights = arrays.preference[0] * np.array(scale, np.float32)
    raw = np.asarray(matrix)[0]
    terms = norm * weights * (arrays.solved & arrays.completed)[0][:, None]

    def shown(m: int, k: int) -> dict[str, Any]:
        place = {"norm": float(norm[m, k]), "weight": float(weights[k]), "term": float(terms[m, k])}
        return {"name": names[k], "value": float(raw[m, k]) + 0.0, **place}  # `+ 0.0`: a cost of -0 is shown as 0

    return [[shown(m, k) for k in range(len(names))] for m in range(len(group.members))]


def generations(member: Trajectory) -> Iterator[tuple[Turn, Usage | None]]:
    """Yield each turn with the ledger's row of its generation; both are in the same order."""
    own = iter([row for row in member.ledger if row.role == "orchestrator"])
    for turn in member.turns:
        yield turn, next(own, None)


def _turns(member: Trajectory) -> Iterator[dict[str, Any]]:
    """Yield each turn with money and time until its end."""
    cost = seconds = 0.0
    for number, (turn, row) in enumerate(generations(member), 1):
        if row is not None:
            cost, seconds = cost + row.cost_usd, seconds + row.seconds
        cost += sum(row.cost_usd for result in turn.results for row in result.usage)
        seconds += max((work_seconds(result.usage) for result in turn.results), default=0.0)
        yield {
            "number": number,
            "text": turn.text,
            "calls": [_call(call, result) for call, result in itertools.zip_longest(turn.calls, turn.results)],
            "heard": turn.heard,
            "finish": turn.finish_reason,
            "versions": "-".join(str(version) for version in dict.fromkeys(version for version, _ in turn.spans)),
            "cost": cost,
            "seconds": seconds,
        }


def _call(call: ToolCall | None, result: ToolResult | None) -> Mapping[str, Any]:
    """Return a call and its result; one of the two may be missing."""
    rows = result.usage if result else ()
    return {
        "name": call.name if call else "",
        "arguments": dict(call.arguments) if call else {},
        "text": result.text if result else None,
        "error": bool(result and result.is_error),
        "refused": bool(result and result.refused),
        "cost": sum(row.cost_usd for row in rows),
        "seconds": work_seconds(rows),
    }


def _tokens(member: Trajectory, learner: Scores | None) -> list[list[list[float]]]:
    """Return for each turn the ids that were read, the sampled ids and their log-probs by the engine.

    If the learner scored the member, the differences of its log-probs from the engine's follow.
    """
    found = []
    for turns, scores in itertools.zip_longest(member.sequences, learner or ()):
        own = iter(scores or ())
        for turn in turns:
            engine = [round(logprob, 3) for logprob in turn.logprobs]
            shown = [list(turn.prompt_ids), list(turn.sampled_ids), engine]
            if learner is not None:
                shown.append([float(f"{next(own) - logprob:.3g}") for logprob in turn.logprobs])
            found.append(shown)
    return found
