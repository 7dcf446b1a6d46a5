"""Every fenced command of the README and of docs/: its words are known, its settings compose, its files are there."""

import re
from collections.abc import Iterator

import pytest

from orchestra_jax.config.messages import keys
from tests.docs.commands import EXTRAS, ROOT, TARGETS, Files, commands, composing, problem
from tests.docs.pages import DOCS

PAGES = [ROOT / "README.md", *(page for page in sorted(DOCS.glob("*.md")) if page.name != "keys.md")]
# What the commands of a page need and do not make, and where a reader has it from.
DECLARED = {
    "data/*": "the folder ORCHESTRA_DATA: docs/data.md says whence its files come",
    "/path/to/data/*": "the same, elsewhere",
    "/shared/*": "a disk that all nodes see, with weights, data and the experts' file of docs/scale.md",
    "checkpoints/*": "weights that were downloaded from the hub",
    ".venv-sglang/bin/python": "`make sglang-cpu`, or requirements/sglang.txt on a GPU",
    "outputs/quickstart*": "`make quickstart`",
    "outputs/gsm8k*": "the run of +experiment=gsm8k",
    "outputs/hle": "the run of +experiment=hle",
    "outputs/hle-evaluation": "an evaluation of docs/evaluation.md",
    "outputs/gpt-5": "the same",
    "outputs/seed1": "the quickstart with another seed",
    "*questions.jsonl": "a file of the reader's own",
    "train.jsonl": "the same",
    "wiki.jsonl": "the same",
    "experts.yaml": "the same, shown on its page",
    "*.db": "calls that a run of the reader's recorded",
    "b.jsonl": "the same",
    "log.jsonl": "`served.py RUN write` made it",
}
MAPS = ("env.options.", "tools.experts.", "tools.simulated.", "tools.evaluation.experts.", "evaluation.endpoint.extra.")
MISTYPED = {
    "python experiments/train.py sed=3": "did you mean seed",
    "python experiments/train.py +experiment=hel": "did you mean +experiment=hle",
    "python experiments/train.py reward.compute=7": "reward.compute=7",
    "python experiments/train.py -m reward.compute=0,7": "reward.compute=7",
    "python experiments/train.py model.path=/nowhere": "model.path=/nowhere is not there",
    "python experiments/trian.py": "no file experiments/trian.py",
    "python experiments/evaluate.py --limt 3": "no --limt there",
    "python experiments/view.py outputs/quickstart --setps 0": "view.py does not take",
    "python experiments/compare.py outputs/quikstart": "outputs/quikstart is not there",
    "python -m orchestra_jax.money.recrods stats calls.db": "no module",
    "python -m orchestra_jax.money.records stast calls.db": "records.py does not take",
    "make quikstart": "no target quikstart",
    'make quickstart RUN="sede=1"': "did you mean seed",
    'pip install -e ".[tolls]"': "No extra tolls",
    "sbatch --nodes=2 experiments/slurm.sh shard +experiment=hle": "no layout shard",
    "orchestra-jax trian": "no script trian",
    "pyhton experiments/train.py": "the program pyhton",
}


@pytest.fixture(autouse=True)
def as_a_newcomer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (
        "ORCHESTRA_DATA",
        "HLE_PATH",
        "GENERAL_THOUGHT_PATH",
        "QWEN3_TOKENIZER",
        "EXPERTS_URL",
        "EXPERTS_FILE",
        "TOOLSCALE_REPO",
        "TOOLSCALE_PATH",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)
    with composing():
        yield


@pytest.mark.slow
def test_every_command_would_start() -> None:
    wrong, used = [], set[str]()
    for page in PAGES:
        files = Files(DECLARED)
        for command in commands(page.read_text(), page.name):
            if sentence := problem(command, files):
                wrong.append(f"{command}\n    {sentence}")
        used |= files.used
    assert not wrong, "\n".join(wrong)
    assert DECLARED.keys() - used == set(), "no page needs these"


def test_what_is_mistyped_is_found() -> None:
    for line, sentence in MISTYPED.items():
        (command,) = commands(f"```bash\n{line}\n```\n", "page.md")
        assert sentence in (problem(command, Files(DECLARED)) or "nothing"), line


def test_commands_are_read_as_a_shell_reads_them() -> None:
    text = "```bash\nexport A=1   # a word\nB=2 make \\\n  'x y' && make z\n```\n"
    found = [(c.line, c.words, dict(c.variables)) for c in commands(text, "p")]
    assert found == [
        (2, ("export", "A=1"), {"A": "1"}), (3, ("make", "x y"), {"A": "1", "B": "2"}), (3, ("make", "z"), {"A": "1"}),
    ]  # fmt: skip


def test_what_the_text_names_is_there() -> None:
    known, wrong = keys(), []
    for page in PAGES:
        text = page.read_text()
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        for quoted in re.findall(r"`([^`\n]+)`", prose):
            if (target := re.match(r"make ([a-z-]+)$", quoted)) and target[1] not in TARGETS:
                wrong.append(f"{page.name}: make {target[1]}")
            if (extras := re.search(r"install.*\[([a-z0-9,]+)\]", quoted)) and set(extras[1].split(",")) - EXTRAS:
                wrong.append(f"{page.name}: {quoted}")
            for path in re.findall(r"\b(?:experiments|benchmarks|conf|tests|docs)/[\w/]+\.(?:py|yaml|md|sh)", quoted):
                if "NAME" not in path and not (ROOT / path).exists():
                    wrong.append(f"{page.name}: {path}")
            for key in re.findall(r"(?<![\w.])\+?([a-z_]+(?:\.[a-z_0-9]+)+)=", quoted):
                entry = key.startswith(MAPS)  # which has no key of its own
                if key.partition(".")[0] in known and key not in known and not entry:
                    wrong.append(f"{page.name}: {quoted}")
    assert not wrong, "\n".join(wrong)


def test_equations_are_stated_where_they_are_named() -> None:
    for page in PAGES:
        text = page.read_text()
        named = re.search(r"\bEq\. \d", text)
        assert named is None or page.name == "rewards.md" or "rewards.md#the-equations" in text, page.name
