"""Checks of a whole table: names of models, unknown costs, answers that count otherwise than it says, later changes."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.envs.recorded.offer import PYTHON, shown, tool_name
from orchestra_jax.envs.recorded.table import Recording, digits, read_answer, same_answer
from orchestra_jax.money.prices import PriceList

_OWN_NAMES = {PYTHON: "the sandbox", "orchestrator": "the policy"}  # price lists have them
_TRAINED = "training_questions.sha256"  # in the folder of a run
_NAMED = 6  # models that the line on costs names; of more it tells the number
_CHECKED = 2000  # answers of a mark that are compared with the reference
_MISMATCH, _TOO_MANY = 0.01, 0.1  # shares that a line tells, and that are refused of correct answers


def refuse_names(recording: Recording) -> None:
    """Refuse a model that menus and price lists could not tell from another, from the sandbox or from the policy.

    Raises:
        ConfigError: there is such a model.
    """
    named = dict[str, str]()
    for model in recording.models:
        name = tool_name(model)
        if taken := _OWN_NAMES.get(name) or (f"the model {named[name]!r}" if name in named else ""):
            raise ConfigError(f"The recorded model {model!r} is called as {taken} on menus: rename it in the table.")
        named[name] = model


def refuse_missing_costs(recording: Recording, prices: PriceList, models: Iterable[str], file: str = "") -> None:
    """Refuse calls that neither the list nor the table, which is called `file`, prices.

    Raises:
        ConfigError: one of the models has such calls.
    """
    whose = f"of {file} " if file else ""
    for model in models:
        unknown = int(np.isnan(recording.cost_usd[:, recording.models.index(model)]).sum())
        if unknown and model not in prices.entries:
            raise ConfigError(
                f"The column 'cost' {whose}is empty or missing for {unknown} of {len(recording.questions)} answers of "
                f"{model}, which the price list {prices.id} does not have: fill in the dollars of each call, or add "
                "the model to a list of conf/pricing and name it as pricing.name."
            )


def cost_note(recording: Recording, prices: PriceList) -> str:
    """Return a line on where the dollars of calls come from."""
    listed = [model for model in recording.models if model in prices.entries]
    whom = ", ".join(listed) if len(listed) <= _NAMED else f"{len(listed)} models"
    recorded = priced = 0.0
    for model in listed:
        column = recording.models.index(model)
        known = ~np.isnan(recording.cost_usd[:, column])
        asked, said = (
            int(counts[known, column].sum()) for counts in (recording.prompt_tokens, recording.completion_tokens)
        )
        recorded += recording.cost_usd[known, column].sum()
        priced += prices.cost(model, prompt_tokens=asked, completion_tokens=said, calls=int(known.sum()))
    instead = f", and not as recorded, which is {digits(recorded / priced)} times that" if recorded and priced else ""
    parts = [f"by the price list {prices.id} for {whom}{instead}"] if listed else []
    if rest := len(recording.models) - len(listed):
        parts.append(f"as recorded for {rest} models that the price list {prices.id} does not have")
    return f"  cost: {'; '.join(parts)}"


def doubts(recording: Recording) -> list[str]:
    """Return lines on answers that the score of a policy, which is by the reference, counts otherwise than the table.

    Raises:
        ConfigError: many answers that the table calls correct differ from their references.
    """
    found = list[str]()
    for marked, called, counted in ((True, "correct", "wrong"), (False, "wrong", "right")):
        odd, count, whole = _otherwise(recording, marked)
        if not odd or len(odd) < _MISMATCH * count:
            continue
        example = f"such as {odd[0][1][:40]!r} for {odd[0][0][0][:40]!r}"
        answers = "answers" if whole else "checked answers"
        if marked and len(odd) > max(1.0, _TOO_MANY * count):
            raise ConfigError(
                f"{len(odd)} of {count} {answers} of env.options.path that are marked as correct differ from their "
                f"reference, {example}, and would count as wrong: check the columns 'output' and 'answer', or leave "
                "'answer' out, and what a right model said is right."
            )
        found.append(
            f"  {len(odd)} of {count} {answers} that are marked as {called} count as {counted} here, {example}"
        )
    return found


def _otherwise(recording: Recording, marked: bool) -> tuple[list[tuple[Sequence[str], str]], int, bool]:
    """Return references and texts of answers so marked that count otherwise, and the number of those that were checked.

    The last is True if all that are so marked were.
    """
    cells, asked = np.argwhere(recording.correct == marked), list(recording.questions.values())
    chosen = np.sort(np.random.default_rng(0).permutation(len(cells))[:_CHECKED])  # from all kinds and models
    texts = ((asked[row].answer, shown(read_answer(recording.outputs[row, column]))) for row, column in cells[chosen])
    known = [(references, text) for references, text in texts if references]
    odd = [(references, text) for references, text in known if same_answer(text, references) != marked]
    return odd, len(known), len(chosen) == len(cells)


def refuse_changed(cfg: WorldConfig, training: Recording) -> None:
    """Raise ConfigError if the run has begun with other training questions, as where the log has grown since."""
    folder = Path(cfg.output_dir)
    if cfg.policy is not None or not (kept := folder / _TRAINED).is_file() or kept.read_text() == _digest(training):
        return
    place = cfg.as_dict().get("checkpoint", {}).get("folder") or folder / "checkpoints"
    if any(Path(place).glob("*/meta/metadata")):
        raise ConfigError(
            "env.options.path has other rows than when this run began, so that its questions are split anew and some "
            "of the test have been trained on: put the old table back (new rows judge the policy with "
            f"env.options.test_path=FILE), or choose another name=..., or delete {folder}."
        )


def keep_trained(cfg: WorldConfig, training: Recording) -> None:
    """Note in the run's folder, if there is one, which questions it trains on, for `refuse_changed`."""
    if (folder := Path(cfg.output_dir)).is_dir():
        (folder / _TRAINED).write_text(_digest(training))


def _digest(training: Recording) -> str:
    told = repr([(name, asked.question) for name, asked in training.questions.items()])
    return hashlib.sha256(told.encode(errors="replace")).hexdigest()
