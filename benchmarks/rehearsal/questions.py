"""Real questions of other sets in the two forms that the paper's run reads: GeneralThought's and HLE's rows."""

import json
from collections.abc import Mapping
from pathlib import Path

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.data.sources import Question, load_tasks

_TRAINING = (("gsm8k", "qa_sets/gsm8k_train.jsonl"), ("hotpot", "qa_sets/hotpot_dev_v1_simplified.json"))
_EACH = 200
_EVALUATION = ("frames", "frames/frames.jsonl")


def write_questions(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The files that GENERAL_THOUGHT_PATH and HLE_PATH name, or ones made of GSM8K, HotpotQA and FRAMES.

    Args:
        folder: where files are made.
        environment: has the two variables, or ORCHESTRA_DATA, the folder of those sets.

    Returns: the two variables.

    Raises:
        ConfigError: neither is there.
    """
    found = {name: environment[name] for name in ("GENERAL_THOUGHT_PATH", "HLE_PATH") if name in environment}
    if len(found) == 2:
        return found
    if "ORCHESTRA_DATA" not in environment:
        raise ConfigError(
            "A rehearsal asks real questions: set GENERAL_THOUGHT_PATH and HLE_PATH to files in their formats, or "
            "ORCHESTRA_DATA to a folder with GSM8K, HotpotQA and FRAMES."
        )
    data = Path(environment["ORCHESTRA_DATA"])
    try:
        training = [question for kind, file in _TRAINING for question in load_tasks(data / file, kind)[:_EACH]]
        evaluation = load_tasks(data / _EVALUATION[1], _EVALUATION[0])[:_EACH]
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    folder.mkdir(parents=True, exist_ok=True)
    made = {
        "GENERAL_THOUGHT_PATH": _write(folder / "general_thought.jsonl", [_general_thought(q) for q in training]),
        "HLE_PATH": _write(folder / "hle.jsonl", [_hle(q) for q in evaluation]),
    }
    return made | found


def _general_thought(question: Question) -> dict[str, str]:
    return {
        "question_id": question.id,
        "question": question.question,
        "reference_answer": question.answer[0],
        "task": question.family,
        "question_source": question.family,
    }


def _hle(question: Question) -> dict[str, str]:
    return {
        "id": question.id,
        "question": question.question,
        "image": "",
        "answer": question.answer[0],
        "answer_type": "exactMatch",
        "raw_subject": question.family,
        "category": question.family,
    }


def _write(file: Path, rows: list[dict[str, str]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)
