"""The table that a policy learns from, and another one of the same form whose questions alone it is judged on."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.config.schema import ConfigError, RandomPricesConfig, WorldConfig
from orchestra_jax.envs.recorded.checks import doubts, refuse_changed, refuse_missing_costs, refuse_names
from orchestra_jax.envs.recorded.options import completed, options_of
from orchestra_jax.envs.recorded.readers import read_recording
from orchestra_jax.envs.recorded.table import COLUMNS_OF_ANSWERS, SPLITS, Recording, plain
from orchestra_jax.money.price_book import price_book
from orchestra_jax.money.prices import PriceList

HELD_OUT = "validation", "test"  # splits that are not trained on
NEW = "new"  # split of the questions of the other table


@dataclass(frozen=True)
class Tables:
    """Questions and models that an environment plays with, as its settings and files say.

    Attributes:
        options: `env.options`, with a value for each "auto".
        recording: questions of `path`, and of `test_path` beside them.
        training: the training split of `path`.
        splits: ids of the questions by split.
        trained: ids of the questions that are trained on.
        seen, unseen: models that menus of training offer, and those that none does.
    """

    options: dict[str, Any]
    recording: Recording
    training: Recording
    splits: dict[str, tuple[str, ...]]
    trained: list[str]
    seen: list[str]
    unseen: list[str]


def tables_of(cfg: WorldConfig) -> Tables:
    """Read the tables, and print what was read.

    Raises:
        ConfigError: one cannot be read, is too small, does not fit the settings, or lacks the cost of a model.
    """
    recording = read_table(options_of(cfg))
    options, splits = completed(options_of(cfg), recording), splits_of(recording, cfg.env.seed)
    training, unseen = recording.of(splits["train"]), list(options["unseen"])
    refuse_changed(cfg, training)
    seen = [model for model in recording.models if model not in unseen]
    if unknown := [model for model in unseen if model not in recording.models]:
        raise ConfigError(f"env.options.unseen names {unknown[0]}; here are {', '.join(recording.models)}.")
    if not seen:
        raise ConfigError("env.options.unseen names every model, so that none is left for training.")
    trained = _trained(options, training)
    parts = [("path", tuple(name for split in SPLITS for name in splits[split]))]
    if options["test_path"] is not None:
        recording, splits[NEW] = with_new_questions(recording, options, (*splits["train"], *splits["validation"]))
        unseen = [model for model in unseen if model in recording.models]
        parts.append(("test_path", splits[NEW]))
    other = unseen_prices(cfg, options)
    for prices, models in ((price_book(cfg).base, [*seen, *unseen]), *([] if other is None else [(other, seen)])):
        for option, ids in parts:
            refuse_missing_costs(recording.of(ids), prices, models, str(options[option]))
    return Tables(options, recording, training, splits, trained, seen, unseen)


def unseen_prices(cfg: WorldConfig, options: Mapping[str, Any]) -> PriceList | None:
    """Return the list that only the benchmark of unseen prices has; None: there is no such benchmark."""
    if not (name := options["unseen_prices"]):
        return None
    if name in (cfg.pricing.name, *cfg.pricing.randomise.lists):
        raise ConfigError(f"env.options.unseen_prices={name} is a list that training has: name another.")
    pricing = replace(cfg.pricing, name=name, randomise=RandomPricesConfig())
    return price_book(replace(cfg, pricing=pricing)).base


def _trained(options: Mapping[str, Any], training: Recording) -> list[str]:
    """Return the ids of the questions that are trained on."""
    longest, questions = options["longest"], training.questions
    found = [name for name, asked in questions.items() if not longest or len(asked.question) <= longest]
    if not found:
        raise ConfigError(f"env.options.longest={longest} leaves no question to train on: raise it.")
    kinds = {questions[name].family for name in found}
    if unknown := sorted((options["repeats"] or {}).keys() - kinds):
        here = ", ".join(sorted(kinds - {""})) or "not named"
        raise ConfigError(
            f"env.options.repeats names {unknown[0]}, and kinds here are {here}: set env.options.repeats=null, or "
            "name one of these."
        )
    return found


def read_table(
    options: Mapping[str, Any], option: str = "path", only: Collection[str] | None = None, *, quiet: bool = False
) -> Recording:
    """Return the table that an option names, and print what was read and estimated.

    Args:
        only: models that are read, where the table has them; None: all.
        quiet: print nothing, and leave doubts about its answers to the reader who prints.

    Raises:
        ConfigError: it cannot be read, a model has a name that menus or prices need, or no answer is what it should be.
    """
    try:
        names = str(options[option]), options["references"]
        found = _recording(*names, None if only is None else tuple(only), _stamps(*names))
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(str(error).replace("env.options.path", f"env.options.{option}")) from error
    refuse_names(found)
    if option == "path" and not found.correct.any():
        raise ConfigError(
            "No answer of env.options.path is marked as correct, so that there is nothing to learn: check the column "
            "'correct', or bring answers of which some are right."
        )
    if quiet:
        return found
    try:
        print("\n".join([*found.notes, *doubts(found)]), flush=True)
    except ConfigError as error:
        raise ConfigError(str(error).replace("env.options.path", f"env.options.{option}")) from None
    return found


@lru_cache(maxsize=2)  # a run reads each of its tables again and again: to check it, to make its words, to play
def _recording(path: str, references: str | None, only: tuple[str, ...] | None, stamps: object) -> Recording:
    return read_recording(path, references, only)


def _stamps(*names: str | None) -> tuple[object, ...]:
    """Return what differs once a file of these names, or of a folder, has been written again."""
    places = [Path(name) for name in names if name is not None]
    files = [file for place in places for file in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    return tuple((str(file), found.st_size, found.st_mtime_ns) for file in files if (found := file.stat()))


def splits_of(recording: Recording, seed: int) -> dict[str, tuple[str, ...]]:
    """Return the ids of each split; held-out questions with the text of a question of training are left out and told.

    Raises:
        ConfigError: a split has no question.
    """
    splits, questions = recording.split(seed), recording.questions
    kinds = len({asked.family for asked in questions.values()})
    if empty := [split for split, ids in splits.items() if not ids]:
        few = f"of each kind ({kinds} kinds of {len(questions)} questions)" if kinds > 1 else "in all"
        fix = "leave out the column of kinds, or bring more questions" if kinds > 1 else "bring more"
        raise ConfigError(
            f"env.options.path has too few questions {few}: none is left for the {empty[0]} split; {fix}."
        )
    seen = {plain(questions[name].question) for name in splits["train"]}
    fresh = {split: tuple(n for n in splits[split] if plain(questions[n].question) not in seen) for split in HELD_OUT}
    if copies := sum(len(splits[split]) - len(ids) for split, ids in fresh.items()):
        print(f"  left out: {copies} held-out questions, whose text is that of a question of training", flush=True)
    if empty := [split for split, ids in fresh.items() if not ids]:
        raise ConfigError(
            f"Every question of the {empty[0]} split of env.options.path has the text of a question of training: keep "
            "one of the ids that have the same text."
        )
    return {**splits, **fresh}


def with_new_questions(
    known: Recording, options: Mapping[str, Any], learnt: Collection[str]
) -> tuple[Recording, tuple[str, ...]]:
    """Return a table with the questions of `test_path` beside those of `path`, and the ids of the new ones.

    Unseen models that `test_path` does not have are left out of the table. A new question is left out where `learnt`,
    ids of questions that training has seen, holds its text.

    Raises:
        ConfigError: `test_path` cannot be read, lacks models of the menus, or has no question that training has not.
    """
    file, unseen = options["test_path"], options["unseen"]
    new = read_table(options, "test_path", known.models)
    if missing := [model for model in known.models if model not in (*new.models, *unseen)]:
        raise ConfigError(
            f"env.options.test_path={file} lacks {_listed(missing)}, which menus offer: add the answers of "
            f"{'this model' if len(missing) == 1 else 'these models'}, or train on a table without."
        )
    if absent := [model for model in known.models if model not in new.models]:
        print(f"  not offered: {_listed(absent)}, of env.options.unseen, which env.options.test_path lacks", flush=True)
    models = tuple(model for model in known.models if model in new.models)
    seen = {plain(known.questions[name].question) for name in learnt}
    fresh = [name for name, asked in new.questions.items() if plain(asked.question) not in seen]
    if same := len(new.questions) - len(fresh):
        count = len(new.questions)
        print(f"  left out: {same} of {count} questions, whose text is that of a question of training", flush=True)
    if not fresh:
        raise ConfigError(f"env.options.test_path={file} has no question that training has not seen: name another.")
    joined = _joined(known, new.of(fresh), models)
    return joined, tuple(joined.questions)[len(known.questions) :]


def _joined(known: Recording, new: Recording, models: Sequence[str]) -> Recording:
    """Return both tables as one, with these models; a new question whose id is taken gets another."""
    questions = dict(known.questions)
    for name, asked in new.questions.items():
        while name in questions:
            name = f"{name} ({NEW})"
        questions[name] = replace(asked, id=name)
    rows = (
        (known, [known.models.index(model) for model in models]),
        (new, [new.models.index(model) for model in models]),
    )
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(table, name)[:, places] for table, places in rows]) for name in COLUMNS_OF_ANSWERS
    }
    return replace(known, questions=questions, models=tuple(models), **columns)


def _listed(models: Sequence[str]) -> str:
    return f"the model {models[0]}" if len(models) == 1 else f"the models {', '.join(models)}"
