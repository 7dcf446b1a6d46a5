"""Questions with reference answers, answered with the tools of a catalogue."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from orchestra_jax.config.choices import OnBadRow
from orchestra_jax.config.ranges import shown
from orchestra_jax.config.schema import ConfigError, SourceConfig, WorldConfig
from orchestra_jax.data.pipeline import TaskIterator, task_iterator
from orchestra_jax.data.preference_pairs import drawn_from
from orchestra_jax.data.preferences import refuse_untrained, spoken_wishes
from orchestra_jax.data.sources import Question, Skipped, load_tasks
from orchestra_jax.envs.base import Demonstrations, Environment, OfferedExpert, Score, ToolEpisode, initial_messages
from orchestra_jax.envs.menus import offered_experts
from orchestra_jax.envs.qa import demonstrations
from orchestra_jax.envs.registry import ENVIRONMENTS
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.answer_tool import ANSWER_TOOL
from orchestra_jax.tools.answers import extract_answer, marked_answer, matches, without_thinking
from orchestra_jax.tools.build import make_tools, tool_problems
from orchestra_jax.tools.catalogue import Catalogue, Instance, instance_seed
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.tools.experts.judge import Judge
from orchestra_jax.tools.experts.simulated_tool import near_numbers
from orchestra_jax.types import HAND_IN, Preference, Task

SYSTEM = (
    "Answer the user's question. Call tools where they help, mind their prices and latencies and the user's wishes, "
    "and end with the final answer in \\boxed{}."
)
SYSTEM_TERMINAL = (
    "Answer the user's question. Call tools where they help, mind their prices and latencies and the user's wishes, "
    "and end by calling answer."
)
SYSTEM_ALONE = "Answer the user's question and end with the final answer in \\boxed{}."
GATE_TASKS = 32


class QAEpisode(ToolEpisode):
    """One question under one menu.

    Args:
        budget: budget of the trajectory; the judge is charged to its parent.
        system: system message.
        judge: decides on answers that do not match; None: those are wrong.
    """

    def __init__(
        self, task: Task, executor: ToolExecutor, budget: Budget, system: str, judge: Judge | None = None
    ) -> None:
        super().__init__(task, executor, initial_messages(task, system))
        self._judge, self._budget = judge, budget

    async def score(self, answer: str) -> bool | Score:
        """Return whether the answer equals a reference, or else whether the judge finds it right."""
        if matches(extract_answer(answer), self.task.answer):
            return True
        if self._judge is None:
            return False
        reply = without_thinking(answer)
        # The policy does not pay for the judge: the trajectory's own budget does not hold for it.
        payer = self._budget.parent or self._budget
        verdict = await self._judge.judge(
            self.task.question, marked_answer(reply) or reply, self.task.answer, budget=payer
        )
        return Score(verdict.correct, verdict.usage)


class QAEnvironment(Environment):
    """The questions of `data.*` with the tools of `tools.*`; every task has an instance of the catalogue.

    Raises:
        ConfigError: a file of questions or passages cannot be read.
    """

    def __init__(self, cfg: WorldConfig) -> None:
        self._cfg = cfg
        self._preference = drawn_from(cfg.data.preferences_file)
        self._sources = cfg.data.training()
        self._training, self._evaluation = _read(cfg, self._sources)
        some = self._training[0][:64]
        answers = [question.answer[0] for question in some]
        wrong = near_numbers(answers[0]) or some[0].extra.get("distractors")
        if cfg.tools.simulated and len(set(answers)) == 1 and not wrong:
            raise ConfigError(
                f"tools.simulated: all questions of {self._sources[0].path} have the answer {shown(answers[0])}, so no "
                "simulated expert could be wrong: give more questions."
            )
        self._tools = make_tools(cfg, answers)
        questions = [question for source in self._training for question in source]
        rng = np.random.default_rng(cfg.seed)  # poses demonstrations and gate, in this order
        self._demonstrated = [self._pose_train(q, rng) for q in questions[: cfg.warm_start.demonstrations]]
        self._gate = [self._pose_train(q, rng) for q in questions[-GATE_TASKS:]]

    @classmethod
    def problems(cls, cfg: WorldConfig) -> list[str]:
        found, source = tool_problems(cfg), cfg.data.source
        if source in ENVIRONMENTS.names():  # it names a world that makes its own questions
            found.append(
                f"env.name={cfg.env.name} and data.source={source} do not fit: use env={source} data={source}, or "
                "env=qa with a data group of real questions."
            )
        elif not cfg.data.training():
            found.append("There are no training questions: set data.path=FILE.")
        return found

    @classmethod
    def forecast(cls, cfg: WorldConfig) -> str | None:
        return _questions(cfg)

    def train_tasks(self, batch_size: int) -> TaskIterator:
        return task_iterator(
            *self._training,
            seed=self._cfg.seed,
            batch_size=batch_size,
            build=self._pose_train,
            weights=[source.weight for source in self._sources],
        )

    def held_out(self, count: int) -> Sequence[Task]:
        return [self._pose_evaluation(question) for question in self._evaluation[:count]]

    def wishes(self) -> Mapping[str, str]:
        return spoken_wishes() if self._cfg.data.preferences else {}

    def pose(self, question: str, wish: str | None) -> Task:
        """Return the task of a question with the menu that evaluation gives it; its answer is known if it is ours.

        Raises:
            ValueError: it is not ours, and an expert on the menu is simulated; or training had no such wish.
        """
        refuse_untrained(wish, self.wishes())
        ours, seed = self._by_text.get(question.strip()), self._cfg.evaluation.seed
        if ours is None and self._cfg.tools.simulated:
            raise ValueError(
                "The experts of this run are simulated and know its own questions alone: ask one of them, or replace "
                "tools.simulated by tools.experts."
            )
        asked = ours or Question(f"asked-{question}", question, ())
        instance = self._tools.evaluation.instance(instance_seed(seed, asked.id, 0))
        task = asked.task(instance.tools, Preference("asked", wish or ""))
        return replace(task, extra={**task.extra, "instance": {**instance.record, "split": "eval"}})

    def largest_menu(self) -> int:
        return self._tools.catalogue.largest

    def demonstrations(self) -> Demonstrations:
        return Demonstrations(
            tasks=self._demonstrated,
            gate=self._gate,
            script=demonstrations.random_tool,
            reference_call=demonstrations.reference_call,
            answer_from=demonstrations.answer_from,
        )

    def reset(self, task: Task, budget: Budget) -> QAEpisode:
        executor = self._catalogue(task).executor(task.extra["instance"], task, budget)
        terminal = any(spec.name == ANSWER_TOOL.name for spec in task.tools)
        system = SYSTEM_TERMINAL if terminal else SYSTEM if task.tools else SYSTEM_ALONE
        return QAEpisode(task, executor, budget, system, self._tools.judge)

    def experts(self, task: Task) -> Sequence[OfferedExpert]:
        return offered_experts(self._catalogue(task), task, self._cfg.plan)

    async def close(self) -> None:
        await self._tools.close()

    @cached_property
    def _by_text(self) -> Mapping[str, Question]:
        """Questions of evaluation and training by their text; of two alike the first."""
        questions = [*self._evaluation, *(question for source in self._training for question in source)]
        return {question.question.strip(): question for question in reversed(questions)}

    def _catalogue(self, task: Task) -> Catalogue:
        return self._tools.evaluation if task.extra["instance"]["split"] == "eval" else self._tools.catalogue

    def _pose_train(self, question: Question, rng: np.random.Generator) -> Task:
        # The place in the stream draws too, so that another epoch offers other tools and prices.
        seed = instance_seed(self._cfg.seed, question.id, int(rng.integers(2**32)))
        return self._pose(question, self._tools.catalogue.instance(seed), rng, "train", self._cfg.data.preferences)

    def _pose_evaluation(self, question: Question) -> Task:
        settings = self._cfg.evaluation
        seed = instance_seed(settings.seed, question.id, 0)
        asked = self._cfg.data.preferences if settings.preferences is None else settings.preferences
        instance, rng = self._tools.evaluation.instance(seed), np.random.default_rng(seed)
        return self._pose(question, instance, rng, "eval", asked)

    def _pose(self, question: Question, instance: Instance, rng: np.random.Generator, split: str, asked: bool) -> Task:
        calls = [spec for spec in instance.tools if spec.name not in HAND_IN] or instance.tools
        preference = self._preference(calls, rng, split) if asked else Preference("accuracy", "")
        task = question.task(instance.tools, preference)
        return replace(task, extra={**task.extra, "instance": {**instance.record, "split": split}})


def _questions(cfg: WorldConfig) -> str:
    """Return a sentence or two on the questions of training and evaluation."""
    data = cfg.data
    files = ", ".join(f"{source.path} ({source.source})" for source in data.training())
    held_out = data.evaluation()
    evaluated = f"{held_out.path} ({held_out.source})" if held_out else f"{data.eval_questions} of them, held out"
    return f"Questions: trains on {files}; evaluates on {evaluated}."


def _read(cfg: WorldConfig, sources: Sequence[SourceConfig]) -> tuple[list[list[Question]], list[Question]]:
    """Read the training questions of each source, and those of evaluation: their own file, or part of the first.

    Raises:
        ConfigError: a file cannot be read.
    """
    held_out = cfg.data.evaluation()
    skipped = Skipped() if cfg.data.on_bad_row is OnBadRow.skip else None
    try:
        training = [load_tasks(source.path, source.source, skipped=skipped) for source in sources]
        evaluated = load_tasks(held_out.path, held_out.source, skipped=skipped) if held_out is not None else None
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error
    if skipped is not None and skipped.count:
        print(skipped, flush=True)
    if evaluated is not None:
        return training, evaluated
    if len(training[0]) == 1 and cfg.data.eval_questions and cfg.evaluation.questions:
        raise ConfigError(
            f"{sources[0].path} has one question, so none can be held out: set data.eval_path=FILE, or "
            "evaluation.questions=0."
        )
    count = min(cfg.data.eval_questions, len(training[0]) // 2)
    kept = len(training[0]) - count
    return [training[0][:kept], *training[1:]], training[0][kept:]
