"""Score answers: by the reference, or without one by what models said whom the table calls right."""

from collections.abc import Collection

from orchestra_jax.envs.base import Message, ToolEpisode
from orchestra_jax.envs.recorded.offer import shown
from orchestra_jax.envs.recorded.table import RecordedQuestion, Recording, same_answer
from orchestra_jax.tools.answers import extract_answer
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.types import Task


class RecordedEpisode(ToolEpisode):
    """One question under one menu.

    Args:
        wrong: texts that are wrong, whatever they look like.
    """

    def __init__(self, task: Task, executor: ToolExecutor, messages: list[Message], wrong: Collection[str]) -> None:
        super().__init__(task, executor, messages)
        self._wrong = wrong

    async def score(self, answer: str) -> bool:
        if answer.strip() in self._wrong:
            return False
        return same_answer(answer, self.task.answer) or same_answer(extract_answer(answer), self.task.answer)


def references(asked: RecordedQuestion, recording: Recording) -> tuple[str, ...]:
    """Return the reference answers; if the table has none, those of the models that were right."""
    if asked.answer:
        return asked.answer
    rows = (recording.answer(model, asked.id) for model in recording.models)
    return tuple(dict.fromkeys(row.answer.strip() for row in rows if row.correct and row.answer.strip()))


def refuted(asked: RecordedQuestion, recording: Recording) -> Collection[str]:
    """Return the texts of models that only wrong ones said; none if the table has references, which decide.

    Without references a wrong model may name a right one's number in its sentence; the table's word counts.
    """
    if asked.answer:
        return ()
    said: dict[bool, set[str]] = {True: set(), False: set()}
    for model in recording.models:
        row = recording.answer(model, asked.id)
        said[row.correct] |= {row.output.strip(), row.answer.strip(), shown(row.answer)}
    return said[False] - said[True]
