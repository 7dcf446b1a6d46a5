from pathlib import Path

from orchestra_jax.training.loggers.transcripts import transcript, write_transcripts
from orchestra_jax.types import Preference, Status, Task, ToolCall, ToolResult, ToolSpec, Trajectory, Turn, Usage

TASK = Task(
    "train-3", "Where was Alice Moreno born?", ("Lima", "Lima, Peru"),
    (ToolSpec("web_search", "", {}, price_usd=0.03, latency_s=2.0), ToolSpec("model", "", {})),
    Preference("cost", "Be cheap."), "lookup",
)  # fmt: skip


def trajectory(status: Status = Status.COMPLETED, reason: str = "", answer: str | None = "Lima") -> Trajectory:
    call = Turn(
        (1,), (2,), (-0.1,), 0, "stop", '<tool_call>{"name": "web_search"}</tool_call>',
        (ToolCall("web_search", {}),), (ToolResult("Alice Moreno was born in Lima."),),
    )  # fmt: skip
    said = Turn((3,), (4,), (-0.1,), 0, "stop", "Lima")
    ledger = (Usage("web_search", cost_usd=0.03, seconds=2.5), Usage("judge", "judge", cost_usd=9.0, seconds=9.0))
    return Trajectory(TASK, 0, 0, ((call, said),), status, reason, answer, answer == "Lima", ledger)


def test_a_transcript_tells_the_whole_story_in_order():
    text = transcript(trajectory())
    story = (
        "task train-3", "family lookup", "preference cost", "Where was Alice Moreno born?", "Be cheap.",
        "web_search $0.03 2 s; model by use", "Lima | Lima, Peru", "[turn 1] <tool_call>",
        "-> web_search: Alice Moreno was born in Lima.", "[turn 2] Lima", "completed", "answer 'Lima'", "solved",
        "$0.030000", "2.50 s",
    )  # fmt: skip
    places = [text.index(word) for word in story]
    assert places == sorted(places)


def test_a_failure_says_why():
    text = transcript(trajectory(Status.MALFORMED, "the output was cut off", None))
    assert "malformed: the output was cut off   answer None   not solved" in text


def test_one_file_per_step_and_a_repeated_step_replaces_it(tmp_path: Path):
    folder = tmp_path / "run" / "trajectories"
    write_transcripts(folder, 7, [trajectory(), trajectory()])
    write_transcripts(folder, 12, [trajectory()])
    write_transcripts(folder, 12, [trajectory(answer="Rome")])
    assert sorted(path.name for path in folder.iterdir()) == ["step-000007.txt", "step-000012.txt"]
    assert (folder / "step-000007.txt").read_text().count("task train-3") == 2
    text = (folder / "step-000012.txt").read_text()
    assert text.count("task train-3") == 1
    assert "answer 'Rome'" in text


def test_nothing_to_write_makes_nothing(tmp_path: Path):
    write_transcripts(tmp_path / "trajectories", 1, [])
    assert list(tmp_path.iterdir()) == []
