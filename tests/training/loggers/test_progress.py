import io

from rich.console import Console

from orchestra_jax.training.loggers.progress import ProgressBar


def test_progress_prints_plain_lines_without_a_terminal():
    out, seconds = io.StringIO(), iter([0.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    console = Console(file=out, force_terminal=False)
    with ProgressBar(9, phase="[update]", start=4, every=3, console=console, clock=lambda: next(seconds)) as progress:
        for done in range(5, 8):
            progress.update(done, {"reward": 0.5, "cost": 0.0123})
        progress.update(8)
        progress.update(9, {"reward": 1.0})
    assert out.getvalue().splitlines() == [
        "[update] 6/9  eta 0:00:08  reward 0.5  cost 0.0123",  # 5 s for 2 steps, 3 are left
        "[update] 9/9  eta 0:00:00  reward 1",
    ]


def test_slow_steps_are_told_after_half_a_minute():
    out, seconds = io.StringIO(), iter([0.0, 20.0, 40.0, 60.0, 80.0])
    console = Console(file=out, force_terminal=False)
    with ProgressBar(100, phase="warm start", every=50, console=console, clock=lambda: next(seconds)) as progress:
        for done in range(1, 5):
            progress.update(done, {"loss": 0.5})
    assert [line.split("  ")[0] for line in out.getvalue().splitlines()] == ["warm start 2/100", "warm start 4/100"]


def test_progress_draws_on_a_terminal():
    out = io.StringIO()
    with ProgressBar(4, phase="update", console=Console(file=out, force_terminal=True, width=120)) as progress:
        progress.update(1, {"reward": 0.5})
        progress.print("saved [step 1]")
        progress.update(4, {"accuracy": 0.75})
    text = out.getvalue()
    assert all(part in text for part in ("update", "4/4", "accuracy 0.75", "saved [step 1]"))
