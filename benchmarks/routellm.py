"""How well routers choose between RouteLLM's two models: quality against the share of strong calls.

ORCHESTRA_DATA=... python benchmarks/routellm.py [--path FOLDER] [--seed 0] [--policy RUN ...]

A router gives each question a score, and the questions of the highest scores go to the strong model. APGR is the area
under the share of the gap between both models that is closed, over the share of strong calls from 0 to 1: .5 for random
routing. Routers learn on the training split, neighbours are counted on the validation split, and the figures are of the
test split, each with a 95 % bootstrap interval over its questions. A cascade asks the cheap model first, always, and
goes on where a classifier of its output distrusts it. The score of a policy (`+experiment=routellm`) is the log-odds
of its first call: the strong model against the cheap one.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

import orchestra_jax as oj
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.envs.recorded.environment import RecordedEnvironment
from orchestra_jax.envs.recorded.knn import Neighbours, paired_z
from orchestra_jax.envs.recorded.readers import read_recording
from orchestra_jax.envs.recorded.router import Router
from orchestra_jax.envs.recorded.table import Recording
from orchestra_jax.evaluation.intervals import CONFIDENCE, RESAMPLES, Interval
from orchestra_jax.models import checkpoint
from orchestra_jax.rollout.chat import make_chat

CHEAP, STRONG = "mistralai/Mixtral-8x7B-Instruct-v0.1", "gpt-4-1106-preview"
SETS = {"MMLU": "mmlu.csv", "GSM8K": "gsm8k.csv"}
READABLE = ("GSM8K",)  # of SETS, those that have outputs
COUNTS = (10, 20, 40, 80, 160, 320)  # neighbours that are tried on the validation split
RANDOM = 0.5
_BLOCK = 100  # resamples at a time
Scorer = Callable[[Recording], np.ndarray]  # a score for each question of a table


class Area(NamedTuple):
    """APGR with its interval, and the share of strong calls that closes half of the gap."""

    apgr: float
    interval: Interval
    half: float


def area(score: np.ndarray, gain: np.ndarray, resamples: int = RESAMPLES) -> Area:
    """Return the area of a router.

    Args:
        score: of each question; the highest goes to the strong model first; equal scores go there together.
        gain: of each question: 1 where the strong model alone is right, -1 where the cheap one alone is.

    Raises:
        ValueError: the strong model is not right more often.
    """
    if gain.sum() <= 0:
        raise ValueError("The strong model is not right more often on these questions, so that there is no gap.")
    order = np.argsort(-score, kind="stable")
    starts = np.flatnonzero(np.diff(score[order], prepend=np.inf))
    share, closed = _curve(np.ones((1, len(gain)), int), gain[order], starts)
    apgr, rng = _area(share, closed), np.random.default_rng([0, len(gain)])
    found = [] if resamples else [apgr]
    for start in range(0, resamples, _BLOCK):
        picked = rng.integers(len(gain), size=(min(_BLOCK, resamples - start), len(gain)))
        counts = np.stack([np.bincount(row, minlength=len(gain)) for row in picked])[:, order]
        gap = (counts * gain[order]).sum(1) > 0  # a draw of a few questions may have none
        found.append(_area(*_curve(counts[gap], gain[order], starts)))
    half = float(share[0, int((closed[0] >= 0.5).argmax())])
    return Area(float(apgr[0]), _interval(np.concatenate(found)), half)


def chance(gain: np.ndarray, resamples: int, rng: np.random.Generator) -> Area:
    """Return the area of random routing, which draws the questions of the strong model anew in each resample."""
    scores = rng.random((resamples, len(gain)))
    found = [area(score, gain[rng.integers(len(gain), size=len(gain))], 0).apgr for score in scores]
    return Area(RANDOM, _interval(found), RANDOM)


def _interval(values: Sequence[float] | np.ndarray) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def _curve(counts: np.ndarray, gain: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of strong calls and the share of the gap that they close, from none to all.

    Args:
        counts: how often each question is there, in the order of the scores, a row for each resample.
        gain: of each question, in the same order.
        starts: places where another score begins.
    """

    def shares(amounts: np.ndarray) -> np.ndarray:
        sums = np.cumsum(np.add.reduceat(amounts, starts, axis=1), axis=1)
        return np.pad(sums / sums[:, -1:], ((0, 0), (1, 0)))

    return shares(counts), shares(counts * gain)


def _area(share: np.ndarray, closed: np.ndarray) -> np.ndarray:
    return np.sum(np.diff(share) * (closed[:, 1:] + closed[:, :-1]) / 2, axis=1)


def routers(training: Recording, validation: Recording, readable: bool) -> dict[str, Scorer]:
    """Return what scores the questions of a table, by the router's name."""
    router, near = Router(training, whole=True), Neighbours(training, COUNTS[-1])
    families: dict[str, list[int]] = {}
    for asked, gain in zip(training.questions.values(), gains(training), strict=True):
        families.setdefault(asked.family, []).append(gain)

    def neighbours(table: Recording, count: int) -> np.ndarray:
        rights = [near.rights(asked.question, (STRONG, CHEAP))[:count] for asked in table.questions.values()]
        return np.array([paired_z(each[:, :1], each[:, 1])[0] for each in rights])

    def classical(table: Recording) -> np.ndarray:
        asked = [each.question for each in table.questions.values()]
        return np.array([router.chance(STRONG, text) - router.chance(CHEAP, text) for text in asked])

    def distrust(table: Recording) -> np.ndarray:
        rows = [(each.question, table.answer(CHEAP, name).output) for name, each in table.questions.items()]
        return np.array([-router.trust(CHEAP, question, output) for question, output in rows])

    known = {count: area(neighbours(validation, count), gains(validation), 0).apgr for count in COUNTS}
    chosen = max(COUNTS, key=known.__getitem__)
    found: dict[str, Scorer] = {"classical router": classical}
    found[f"guarded kNN, {chosen} neighbours"] = lambda table: neighbours(table, chosen)
    if len(families) > 1:
        found["gain of the subject"] = lambda table: np.array(
            [np.mean(families[asked.family]) for asked in table.questions.values()]
        )
    return found | ({"cascade that reads the output": distrust} if readable else {})


def gains(table: Recording) -> np.ndarray:
    """Return 1 where the strong model alone is right, -1 where the cheap one alone is, else 0."""
    strong, cheap = (table.correct[:, table.models.index(model)].astype(int) for model in (STRONG, CHEAP))
    return np.asarray(strong - cheap)


def trained(folder: Path, path: Path, seed: int) -> Scorer | None:
    """Return what scores questions by the policy of a run; None: the run is of another table.

    Raises:
        SystemExit: the folder holds no finished run of recorded answers, or its training had another split.
    """
    try:
        run = oj.load_run(folder)
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from None
    cfg, known = run.config, Path(str(run.config.env.options.get("path", "")))
    if cfg.env.name != "recorded" or run.policy is None or known.name not in SETS.values():
        raise SystemExit(f"{folder}: name the folder of a finished run of +experiment=routellm.")
    if known.name != path.name:
        return None
    if cfg.env.seed != seed:
        raise SystemExit(f"{folder} learned from the split of env.seed={cfg.env.seed}: add --seed {cfg.env.seed}.")
    options = {**cfg.env.options, "path": str(path), "evaluate": "both"}
    # Users say nothing here, and the names of the models are told.
    cfg = replace(cfg, env=replace(cfg.env, options=options), evaluation=replace(cfg.evaluation, preferences=False))
    return lambda table: policy_scores(
        replace(cfg, model=replace(cfg.model, path=str(run.policy), tokenizer=str(run.policy))), table
    )


def policy_scores(cfg: RunConfig, table: Recording) -> np.ndarray:
    """Return the log-odds of the policy's first call, the strong model against the cheap one, for each question."""
    from first_calls import first_calls  # a script beside this one

    environment = RecordedEnvironment(cfg)
    posed = {task.extra["question"]: task for task in environment.held_out(len(environment.recording.questions))}
    tasks = [posed[name] for name in table.questions]
    names = [{expert.name: expert.call.name for expert in environment.experts(task)} for task in tasks]
    asked = [(task, list(known.values())) for task, known in zip(tasks, names, strict=True)]
    rows = first_calls(asked, environment, make_chat(cfg), *checkpoint.load(cfg.model.path))
    return np.array([row[known[STRONG]] - row[known[CHEAP]] for row, known in zip(rows, names, strict=True)])


def measured(
    table: Recording, seed: int, readable: bool, resamples: int, policies: Mapping[str, Scorer] | None = None
) -> tuple[Mapping[str, Area], Recording]:
    """Return the areas on the test split, and this split without questions whose text training has too.

    Args:
        policies: further scorers, by name.
    """
    split = table.split(seed)
    training = table.of(split["train"])
    seen = {asked.question for asked in training.questions.values()}
    validation, test = (
        table.of([name for name in split[part] if table.questions[name].question not in seen])
        for part in ("validation", "test")
    )
    gain = gains(test)
    found = {"random": chance(gain, resamples, np.random.default_rng(seed))}
    for name, score in {**routers(training, validation, readable), **(policies or {})}.items():
        found[name] = area(score(test), gain, resamples)
    return found, test


def main() -> None:
    from short import parse  # a script beside this one

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default=os.path.join(os.environ.get("ORCHESTRA_DATA", "data"), "recorded/routellm"))
    parser.add_argument("--seed", type=int, default=0, help="of the split")
    parser.add_argument("--sets", nargs="+", choices=tuple(SETS), default=tuple(SETS))
    parser.add_argument("--resamples", type=int, default=RESAMPLES)
    parser.add_argument("--policy", nargs="+", type=Path, default=(), help="folders of runs of +experiment=routellm")
    given = parse(parser, "--sets", "GSM8K", "--resamples", "20")
    for name in given.sets:
        path = Path(given.path) / SETS[name]
        scorers = {f"policy {run.name}": trained(run, path, given.seed) for run in given.policy}
        policies = {run: scorer for run, scorer in scorers.items() if scorer is not None}
        whole = read_recording(path)
        found, test = measured(whole, given.seed, name in READABLE, given.resamples, policies)
        strong, cheap = (100 * test.correct[:, test.models.index(model)].mean() for model in (STRONG, CHEAP))
        print(f"{name}: {len(test.questions)} test questions; {CHEAP} {cheap:.1f} %, {STRONG} {strong:.1f} % right")
        print(f"  {'':32} APGR   95 % interval   strong calls for half the gap")
        for router, (apgr, (low, high), half) in found.items():
            print(f"  {router:32} {apgr:.3f}  {low:.3f} to {high:.3f}  {100 * half:4.0f} %")
        better = [router for router, each in found.items() if each.interval[0] > RANDOM and router != "random"]
        told = f"Better than random by more than the interval: {', '.join(better)}."
        print(f"  {told if better else 'Nothing beats random routing by more than its interval.'}")


if __name__ == "__main__":
    main()
