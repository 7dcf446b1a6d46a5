"""A classical router: TF-IDF of the question and a logistic regression for each model, fitted on the training split.

It tells how probable a right answer is, and chooses by the user's wish (`choices.chosen`). The sandbox is a choice of
its own if the question has code: a program that runs shows the answer, so that it counts as right unless it fails.
"""

import importlib.util
from functools import cached_property
from typing import Any

from orchestra_jax.envs.recorded.choices import Asking, Offered, Policy, ask, chosen, code_run, wished
from orchestra_jax.envs.recorded.table import Recording
from orchestra_jax.types import Task

NEEDS = "The baselines router*, knn* and cascade_trusted need scikit-learn: pip install 'orchestra-jax[router]'."
_ANSWER = "\nThe answer is: "
# Inverse strength of the L2 penalty; of .1 to 10 the best on the validation split of the ZeroEval answers.
_STRENGTH = 0.1
_WORDS = r"\w+|[^\w\s]"


def available() -> bool:
    """Return whether scikit-learn is installed."""
    return importlib.util.find_spec("sklearn") is not None


class Router:
    """Probabilities of right answers, from text. Everything is fitted when it is first asked for.

    Args:
        training: the questions of the training split alone.
        whole: `trust` is given whole outputs, not the answers within them.
    """

    def __init__(self, training: Recording, whole: bool = False) -> None:
        self._training, self._whole = training, whole
        self._of_question: dict[str, Any] = {}
        self._of_answer: dict[str, Any] = {}
        self._read: dict[str, Any] = {}
        self._known: dict[tuple[str, str], float] = {}

    def chance(self, model: str, question: str) -> float:
        """Return the probability that the model answers the question right, before it is asked."""
        if (model, question) not in self._known:
            if model not in self._of_question:
                rights = [row.correct for row in self._rows(model)]
                self._of_question[model] = _fitted(self._questions, rights)
            if question not in self._read:
                self._read[question] = self._words.transform([question])
            self._known[model, question] = _probability(self._of_question[model], self._read[question])
        return self._known[model, question]

    def trust(self, model: str, question: str, answer: str) -> float:
        """Return the probability that this answer of the model is right."""
        if model not in self._of_answer:
            rows = self._rows(model)
            texts = [
                asked.question + _ANSWER + (row.output if self._whole else row.answer)
                for asked, row in zip(self._training.questions.values(), rows, strict=True)
            ]
            words = vectorizer()
            self._of_answer[model] = words, _fitted(words.fit_transform(texts), [row.correct for row in rows])
        words, fitted = self._of_answer[model]
        return _probability(fitted, words.transform([question + _ANSWER + answer]))

    def _rows(self, model: str) -> list[Any]:
        return [self._training.answer(model, name) for name in self._training.questions]

    @cached_property
    def _words(self) -> Any:
        return vectorizer().fit([asked.question for asked in self._training.questions.values()])

    @cached_property
    def _questions(self) -> Any:
        return self._words.transform([asked.question for asked in self._training.questions.values()])


def routed(offered: Offered, router: Router, wish: str | None = None, code: bool = False) -> Policy:
    """Return a policy that asks one model, chosen by its probability of being right.

    Args:
        wish: "accuracy", "low_cost", "fast", or "" for none; None: the wish of the task.
        code: whether the sandbox is a choice.
    """

    def asked(task: Task) -> Asking:
        choices = offered(task)
        chances = [router.chance(choice.name, task.question) for choice in choices]
        return ask(chosen(choices, chances, wished(task, wish)).call)

    return (lambda task: code_run(task, asked)) if code else asked


def vectorizer() -> Any:
    """Return TF-IDF of words and pairs of words, not yet fitted."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=_WORDS)


def _fitted(features: Any, rights: list[bool]) -> Any:
    """Return the fitted model; if all are right or all wrong, that share."""
    from sklearn.linear_model import LogisticRegression

    if len(set(rights)) == 1:
        return float(rights[0])
    return LogisticRegression(C=_STRENGTH, solver="liblinear").fit(features, rights)


def _probability(fitted: Any, features: Any) -> float:
    return fitted if isinstance(fitted, float) else float(fitted.predict_proba(features)[0, 1])
