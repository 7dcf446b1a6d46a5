"""Measures whether policies of recorded answers read the menu: their first calls where two models exchange figures.

ORCHESTRA_DATA=... python benchmarks/menus.py outputs/recorded              # a minute
ORCHESTRA_DATA=... python benchmarks/menus.py outputs/recorded --models 18
ORCHESTRA_DATA=... python benchmarks/menus.py --smoke                       # a policy of random weights

Held-out questions without code are asked with menus of some models, under every wish but that to be right, for which
several models are asked. Then the model that is worth most and another exchange their prices, or how often they are
right, so that another is worth most. What a model is worth is what training pays for it on average, by its line: the
share of right answers for the kind of question, times the weight of being right and that of being cheap (between the
free sandbox, 1, and the dearest model, 0; reward.cost_power). Counted is how often the most probable first call is the
model that is worth most, and what the chosen ones are worth of that, in percent.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from first_calls import first_calls
from short import parse

import orchestra_jax as oj
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.envs.recorded.environment import RecordedEnvironment
from orchestra_jax.envs.recorded.offer import code_of
from orchestra_jax.envs.recorded.wishes import draw_words, make_wish
from orchestra_jax.models import checkpoint
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.decoder import init_params
from orchestra_jax.models.families import preset_config
from orchestra_jax.rollout.chat import ChatFormat, make_chat
from orchestra_jax.types import Task, ToolSpec

NOTHING = "nothing"
_NOTHING = {"type": "object", "properties": {}, "required": []}  # a call of a model has no arguments


class Line(NamedTuple):
    """What a menu says of a model: the words of its line, and its name."""

    right: str
    price: str
    seconds: str
    name: str


class Question(NamedTuple):
    """A task, the lines of its models, and what each is worth."""

    task: Task
    lines: Sequence[Line]
    worth: Sequence[float]

    @property
    def best(self) -> str:
        """Name of the model that is worth most."""
        return self.lines[int(np.argmax(self.worth))].name

    def of(self, name: str) -> float:
        """Return what a model is worth."""
        return next(worth for line, worth in zip(self.lines, self.worth, strict=True) if line.name == name)


def questions(environment: RecordedEnvironment, cfg: RunConfig, count: int, most: int) -> Iterator[dict[str, Question]]:
    """Yield each held-out question under every wish, by what two models of the menu exchanged."""
    kinds = next(iter(environment.evidence.values())).kinds
    tasks = [task for task in environment.held_out(10**6) if code_of(task.question) is None][:count]
    power = cfg.reward.cost_power
    for number, task in enumerate(tasks):
        rng = np.random.default_rng([cfg.evaluation.seed, number])
        models = {expert.call.name for expert in environment.experts(task)}
        others = [spec for spec in task.tools if spec.name not in models]
        lines = [_line(spec) for spec in task.tools if spec.name in models]
        lines = [lines[k] for k in sorted(rng.permutation(len(lines))[:most])]
        column = kinds.index(task.family) if kinds else 0
        for wish in _wishes(cfg):
            words = "" if wish == "none" else draw_words(wish, rng, "eval")
            wished = make_wish(wish, cfg.env.options["wishes"], task.tools, words)
            asked = replace(task, preference=wished, tools=tuple(others))
            usual = _question(asked, lines, column, power)
            found = {NOTHING: usual}
            for figure in ("price", "right"):
                exchanged = [_exchanged(lines, usual.best, line.name, figure) for line in lines]
                tried = [_question(asked, some, column, power) for some in exchanged]
                if turned := [each for each in tried if each.best != usual.best and _single(each)]:
                    found[figure] = turned[int(rng.integers(len(turned)))]
            yield found


def _wishes(cfg: RunConfig) -> list[str]:
    return [wish for wish in cfg.env.options["wishes"] if wish != "accuracy"]


def _line(spec: ToolSpec) -> Line:
    right, price, *seconds = spec.description.split()
    return Line(right, price, " ".join(seconds), spec.name)


def _exchanged(lines: Sequence[Line], one: str, other: str, figure: str) -> list[Line]:
    """Return the lines, the cheapest first, after two models have exchanged a figure."""
    said = {line.name: getattr(line, figure) for line in lines}
    said[one], said[other] = said[other], said[one]
    return sorted((line._replace(**{figure: said[line.name]}) for line in lines), key=_dollars)


def _dollars(line: Line) -> float:
    return float(line.price.removeprefix("$"))


def _single(question: Question) -> bool:
    return sum(worth == max(question.worth) for worth in question.worth) == 1


def _question(task: Task, lines: Sequence[Line], column: int, power: float) -> Question:
    """Return the question with these lines behind the tools of the task, which are no models."""
    models = [ToolSpec(line.name, " ".join(line[:3]).strip(), _NOTHING) for line in lines]
    share = np.array([float(line.right.split("/")[column]) for line in lines]) / 100
    dear = np.array([_dollars(line) for line in lines]) ** power
    weights = task.preference
    worth = share * (weights.outcome + weights.compute * (1 - dear / dear.max()))
    return Question(replace(task, tools=(*task.tools, *models)), lines, worth.tolist())


def chosen(
    some: Sequence[Question], environment: RecordedEnvironment, chat: ChatFormat, config: DecoderConfig, params: Params
) -> list[str]:
    """Return the model of each menu that is most probably called first."""
    asked = [(each.task, [line.name for line in each.lines]) for each in some]
    return [max(row, key=row.__getitem__) for row in first_calls(asked, environment, chat, config, params)]


def measured(cfg: RunConfig, policy: tuple[DecoderConfig, Params] | None, count: int, most: int) -> Iterator[str]:
    """Yield a line for each wish and exchange: how often the best model is chosen, and what the chosen are worth."""
    environment, chat = RecordedEnvironment(cfg), make_chat(cfg)
    if policy is None:
        config = preset_config(cfg.model, vocab_size=len(chat.tokenizer))
        policy = config, init_params(config, jax.random.key(cfg.seed))
    asked = list(questions(environment, cfg, count, most))
    for exchanged in (NOTHING, "price", "right"):
        some = [each[exchanged] for each in asked if exchanged in each]
        calls = chosen(some, environment, chat, *policy)
        for wish in _wishes(cfg):
            part = [(each, call) for each, call in zip(some, calls, strict=True) if each.task.preference.name == wish]
            if not part:
                yield f"  {exchanged:9} {wish:9} makes no other model the best"
                continue
            hits = sum(each.best == call for each, call in part)
            worth = sum(each.of(call) for each, call in part) / sum(each.of(each.best) for each, _ in part)
            yield f"  {exchanged:9} {wish:9} best chosen {hits:4} of {len(part)} {100 * worth:6.1f} % of its worth"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", type=Path, help="folders of runs; none: random weights")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--models", type=int, default=6, help="of a menu, at most")
    given = parse(parser, "--questions", "4")
    if not given.policies:
        for text in measured(
            oj.compose("+experiment=recorded", "warm_start.demonstrations=64"), None, given.questions, given.models
        ):
            print(text)
    for folder in given.policies:
        print(folder)
        try:
            cfg = oj.load_run(folder).config
        except FileNotFoundError as error:
            raise SystemExit(str(error)) from None
        path = folder / "policy"
        if cfg.env.name != "recorded" or not cfg.env.options["wishes"] or not path.is_dir():
            raise SystemExit(
                f"{folder}: name the folder of a finished run of env=recorded that sets env.options.wishes."
            )
        cfg = replace(cfg, model=replace(cfg.model, path=str(path), tokenizer=str(path)))
        for text in measured(cfg, checkpoint.load(path), given.questions, given.models):
            print(text, flush=True)


if __name__ == "__main__":
    main()
