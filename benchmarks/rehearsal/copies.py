"""Small copies of the paper's data with the columns of the real ones, as downloads would lie in a folder."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.domain import write_domain
from benchmarks.rehearsal.replies import vector
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.data.sources import Question, load_tasks
from orchestra_jax.tools.search.local import read_passages

_TRAINING = {"qa_sets/gsm8k_train.jsonl": "gsm8k", "qa_sets/hotpot_dev_v1_simplified.json": "hotpot"}
_EVALUATION = {"frames/frames.jsonl": "frames"}
_PASSAGES = "wiki_corpus/2wikimultihopqa_corpus.json"
_EACH = 200


def write_copies(folder: Path, environment: Mapping[str, str]) -> None:
    """Write GeneralThought, HLE, FRAMES, ToolScale with its tools, and an index of passages.

    Args:
        environment: has ORCHESTRA_DATA, the folder of GSM8K, HotpotQA, FRAMES and passages; with GENERAL_THOUGHT_PATH
            and HLE_PATH the questions are theirs.

    Raises:
        ConfigError: there are no questions, or no passages.
    """
    training = _questions(environment, "GENERAL_THOUGHT_PATH", _TRAINING)
    evaluation = _questions(environment, "HLE_PATH", _EVALUATION)
    try:
        found = read_passages(Path(environment.get("ORCHESTRA_DATA", "data")) / _PASSAGES)
        passages = [f"{each.title}. {each.text}" for each in itertools.islice(found, _EACH)]
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    blank = {**_thought(training[0]), "question_id": "blank", "reference_answer": " "}
    again = _thought(training[0])
    _parquet(folder / "GeneralThought-430K", [blank, again, *map(_thought, training)])
    picture = {**_hle(evaluation[0]), "id": "picture", "image": "data:image/png;base64,AAAA"}
    _parquet(folder / "hle", [picture, *map(_hle, evaluation)])
    rows = [{"Prompt": question.question, "Answer": question.answer[0]} for question in evaluation]
    _lines(folder / "frames-benchmark" / "test.jsonl", rows)
    _parquet(folder / "ToolScale", write_domain(folder / "ToolOrchestra"))
    _index(folder / "index", passages)


def _questions(environment: Mapping[str, str], variable: str, files: Mapping[str, str]) -> list[Question]:
    """The first questions of the file that a variable names, or of each of the files, by format, in ORCHESTRA_DATA."""
    if variable not in environment and "ORCHESTRA_DATA" not in environment:
        raise ConfigError(
            f"A rehearsal asks real questions: set {variable} to a file in its format, or ORCHESTRA_DATA to a folder "
            "with GSM8K, HotpotQA, FRAMES and passages (docs/data.md)."
        )
    data = Path(environment.get("ORCHESTRA_DATA", "data"))
    paths = {data / file: kind for file, kind in files.items()}
    if variable in environment:
        paths = {Path(environment[variable]): "auto"}
    try:
        return [question for path, kind in paths.items() for question in load_tasks(path, kind)[:_EACH]]
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error


def _thought(question: Question) -> dict[str, Any]:
    """A row of GeneralThought-430K."""
    return {
        "question_id": question.id,
        "question_url": "https://example.invalid/question",
        "question": question.question,
        "prev_messages": None,
        "reference_answer": question.answer[0],
        "model_name": "DeepSeek/DeepSeek-R1",
        "model_answer": question.answer[0],
        "model_reasoning": "The reader does not need this column. " * 50,
        "task": question.family,
        "question_license": "MIT",
        "question_source": question.family,
        "community_question_score": 0,
        "community_answer_score": 0,
        "verifier_score": 1.0,
    }


def _hle(question: Question) -> dict[str, Any]:
    """A row of HLE."""
    return {
        "id": question.id,
        "question": question.question,
        "image": "",
        "image_preview": None,
        "answer": question.answer[0],
        "answer_type": "exactMatch",
        "author_name": "nobody",
        "rationale": "",
        "rationale_image": None,
        "raw_subject": question.family,
        "category": question.family,
        "canary": "",
    }


def _parquet(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), folder / "data.parquet")


def _lines(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _index(folder: Path, passages: Sequence[str]) -> None:
    """A pair of files as the authors released theirs: FAISS's, and its passages line by line."""
    import faiss
    import numpy as np

    vectors = np.asarray([vector(text) for text in passages], np.float32)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    _lines(folder / "eval.jsonl", [{"id": str(number), "contents": text} for number, text in enumerate(passages)])
    faiss.write_index(index, str(folder / "eval.index"))
