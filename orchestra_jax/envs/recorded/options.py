"""Settings of recorded answers (`env.options`): defaults, what is wrong with them, and what "auto" stands for.

`path`, a table of `readers`; `test_path`, another one, all of whose questions are the held-out ones, while everything
that is known of the models comes from `path`; `references`, questions with answers if a table is our own record of
calls; `unseen`, models that no training menu offers; `observation`, "answer" or "full", the text that a call of a model
shows; `python`, whether menus have the sandbox; `wishes`, what users want (`wishes.py`); `longest`, most characters of
a question that is trained on; `repeats`, how many times the questions of a kind come in training for once of the
others; `read`, most bytes of a question that the policy reads; `evaluate`, the split of evaluation, "validation",
"test" or "both"; `unseen_prices`, a price list that only the benchmark of that name has.
"auto" of `unseen` and `unseen_prices` holds models and a list back of the public answers, and nothing of a table of
one's own; of `python` it adds the sandbox if a question has code.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.envs.recorded.demonstrated import most_asked
from orchestra_jax.envs.recorded.offer import code_of
from orchestra_jax.envs.recorded.table import Recording
from orchestra_jax.envs.recorded.wishes import wishes_problem

_AUTO, _LEAST_READ = "auto", 40
# Of the models of the public answers those that training does not have.
_HELD_BACK = (
    "claude-3-5-sonnet-20240620",
    "gpt-4o-2024-05-13",
    "deepseek-v2.5-0908",
    "Meta-Llama-3.1-70B-Instruct",
    "claude-3-haiku-20240307",
    "gemma-2-9b-it",
)
EVALUATED = {"validation": ("validation",), "test": ("test",), "both": ("validation", "test")}  # splits
_DEFAULTS: Mapping[str, Any] = {
    "path": None,
    "test_path": None,
    "references": None,
    "unseen": _AUTO,
    "observation": "answer",
    "python": _AUTO,
    "wishes": None,
    "longest": None,
    "repeats": None,
    "read": None,
    "evaluate": "test",
    "unseen_prices": _AUTO,
}


def options_of(cfg: WorldConfig) -> dict[str, Any]:
    """Return the settings, with a default for each that is missing."""
    return {**_DEFAULTS, **cfg.env.options}


def options_problems(cfg: WorldConfig) -> list[str]:
    """Return one sentence, with the fix, for everything that is wrong with the settings."""
    options, found = options_of(cfg), list[str]()
    if unknown := sorted(options.keys() - _DEFAULTS.keys()):
        return [f"env.options of recorded answers are {', '.join(_DEFAULTS)}, not {', '.join(unknown)}."]
    if not options["path"]:
        found.append(
            "No recorded answers are named: add path=FILE, a table with a row for each question and model "
            "(docs/recorded.md)."
        )
    elif not Path(str(options["path"])).exists():
        found.append(
            f"No recorded answers at {options['path']}: set env.options.path=FILE or FOLDER; the public ones come "
            "with `python -m benchmarks.data.zeroeval FOLDER` in a checkout."
        )
    if (other := options["test_path"]) is not None and not Path(str(other)).exists():
        found.append(f"No recorded answers at {other}: set env.options.test_path=FILE or FOLDER, or leave it out.")
    if options["observation"] not in ("answer", "full"):
        found.append(f"env.options.observation must be answer or full, not {options['observation']}.")
    if options["evaluate"] not in EVALUATED:
        found.append(f"env.options.evaluate must be one of {', '.join(EVALUATED)}, not {options['evaluate']}.")
    if wrong := wishes_problem(options["wishes"]):
        found.append(wrong)
    if options["longest"] is not None and (not isinstance(options["longest"], int) or options["longest"] < 1):
        found.append(f"env.options.longest must be a number of characters or null, not {options['longest']}.")
    repeats = options["repeats"] or {}
    if not isinstance(repeats, Mapping) or not all(isinstance(n, int) and n > 0 for n in repeats.values()):
        found.append(f"env.options.repeats must map kinds of questions to whole numbers from 1, not {repeats}.")
    if options["read"] is not None and (not isinstance(options["read"], int) or options["read"] < _LEAST_READ):
        found.append(f"env.options.read must be a number of bytes >= {_LEAST_READ} or null, not {options['read']}.")
    shared, wishes = cfg.data.preferences_per_question, len(options["wishes"] or ()) if cfg.data.preferences else 0
    if shared > max(1, wishes):
        found.append(
            f"data.preferences_per_question={shared} poses a question under as many of env.options.wishes, and there "
            f"are {wishes}: lower it, or add wishes."
        )
    if most_asked(cfg) < 1:
        limit = "max_turns" if cfg.rollout.limits.max_turns < 2 else "max_calls"
        found.append(f"A call and the answer, or its relay, have no room: set rollout.limits.{limit}=2 or more.")
    unseen = options["unseen"]
    if unseen != _AUTO and (not isinstance(unseen, Sequence) or isinstance(unseen, str)):
        found.append(f"env.options.unseen must be auto or a list of models, not {unseen}.")
    if options["python"] not in (True, False, _AUTO):
        found.append(f"env.options.python must be auto, true or false, not {options['python']}.")
    return found


def next_step(cfg: WorldConfig) -> str:
    """Return the command that judges a policy on another table; "" if this one does."""
    if options_of(cfg)["test_path"] is not None:
        return ""
    run = cfg.policy or os.path.relpath(cfg.output_dir)
    return f"Next week's logs: python experiments/evaluate.py policy={run} env.options.test_path=FILE"


def completed(options: Mapping[str, Any], recording: Recording) -> dict[str, Any]:
    """Return the settings with a value for each "auto"."""
    public = set(_HELD_BACK) <= set(recording.models)
    chosen = {
        "unseen": list(_HELD_BACK) if public else [],
        "unseen_prices": "recorded_swapped" if public else None,
        "python": any(code_of(asked.question) is not None for asked in recording.questions.values()),
    }
    return {name: chosen[name] if name in chosen and value == _AUTO else value for name, value in options.items()}
