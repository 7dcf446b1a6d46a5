"""Score answers: by the reference, or without one by what the table says of the model that the answer is from."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from orchestra_jax.envs.base import Message, ToolEpisode
from orchestra_jax.envs.recorded.offer import CUT, SAME, shown
from orchestra_jax.envs.recorded.table import RecordedQuestion, Recording, read_answer, same_answer
from orchestra_jax.tools.answers import extract_answer
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.types import Task, ToolCall, ToolResult


class RecordedEpisode(ToolEpisode):
    """One question under one menu. A result that answers as another tool's before it is marked (`SAME`).

    `relay` hands over results without the mark.

    Args:
        wrong: texts that are wrong, whatever they look like.
        marks: by tool, whether its model was right; for questions without a reference.
    """

    def __init__(
        self,
        task: Task,
        executor: ToolExecutor,
        messages: list[Message],
        wrong: Collection[str],
        marks: Mapping[str, bool],
    ) -> None:
        super().__init__(task, executor, messages)
        self._wrong, self._marks, self._told = wrong, marks, dict[str, bool]()
        self._said = dict[str, str]()  # answers by tool

    async def step(self, call: ToolCall) -> ToolResult:
        result = await super().step(call)
        if result.refused or result.is_error or result.final is not None:
            return result
        said = read_answer(result.text).strip()
        if call.name in self._marks:
            for text in (result.text.strip(), said):
                self._told[text] = self._marks[call.name]
        if not said or result.text.endswith(CUT):
            return result
        before = [text for tool, text in self._said.items() if tool != call.name]
        self._said[call.name] = said
        same = any(same_answer(said, [text]) and same_answer(text, [said]) for text in before)
        return replace(result, text=result.text + SAME) if same else result

    async def score(self, answer: str) -> bool:
        if (told := self._told.get(answer.strip())) is not None:
            return told  # a long answer may be shown in part alone, and two models may end with the same line
        if answer.strip() in self._wrong:
            return False
        return same_answer(answer, self.task.answer) or same_answer(extract_answer(answer), self.task.answer)


def marks(asked: RecordedQuestion, recording: Recording, tools: Mapping[str, str]) -> Mapping[str, bool]:
    """Return by name of a tool whether its model was right; none if the table has references, which decide.

    Args:
        tools: by name on the menu, "role/model" of a model.
    """
    if asked.answer:
        return {}
    models = {name: key.partition("/")[2] for name, key in tools.items() if "/" in key}
    return {name: recording.answer(model, asked.id).correct for name, model in models.items()}


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
