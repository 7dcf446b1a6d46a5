"""The table that a policy learns from, and another one of the same form whose questions alone it is judged on."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.recorded.checks import doubts, refuse_names
from orchestra_jax.envs.recorded.readers import read_recording
from orchestra_jax.envs.recorded.table import COLUMNS_OF_ANSWERS, Recording, plain

HELD_OUT = "validation", "test"  # splits that are not trained on
NEW = "new"  # split of the questions of the other table


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
        found = read_recording(options[option], options["references"], only)
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
