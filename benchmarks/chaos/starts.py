"""What starts the runs of a soak, what they are told, and what they may leave."""

import json
import os
import queue
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.policy import make_policy

ROOT = Path(__file__).resolve().parents[2]
ROOT_USER = os.geteuid() == 0
PATIENCE_S = 300.0  # for one start, on a busy machine
STEPS, SLOTS = 3, 4
KEPT = {
    ".hydra", "metrics.jsonl", "spent.jsonl", "run.lock", "summary.json", "evaluation", "trajectories", "checkpoints",
    "calls.db", "damaged", "learning_curves.png", "rollouts", "run.json",
}  # fmt: skip


class Launcher:
    """`launcher.py` in namespaces of its own, one for each worker of the soak; a context manager."""

    def __init__(self, environment: dict[str, str]) -> None:
        command = [
            "unshare",
            "-mpf" if ROOT_USER else "-rmpf",
            "--mount-proc",
            "--kill-child",
            sys.executable,
            "-m",
            "benchmarks.chaos.launcher",
        ]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lock, self._replies = threading.RLock(), queue.Queue[dict[str, Any]]()
        self._ended: dict[int, int] = {}
        self._news = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()
        if self._replies.get(timeout=PATIENCE_S).get("reply") != "ready":
            raise SystemExit("The soak needs namespaces (`unshare -rmpf --mount-proc`), which this machine refuses.")

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if isinstance(said, dict) and "ended" in said:
                with self._news:
                    self._ended[said["ended"]] = said["status"]
                    self._news.notify_all()
            else:
                self._replies.put({"reply": said} if said == "ready" else said)
        self._replies.put({"error": "The launcher is gone."})

    def __call__(self, do: str, **arguments: Any) -> Any:
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            said = self._replies.get(timeout=PATIENCE_S)
        if "error" in said:
            raise RuntimeError(said["error"])
        return said["reply"]

    def ended(self, pid: int, timeout_s: float) -> int | None:
        """The exit status of a child, or None if it has not ended in time."""
        with self._news:
            self._news.wait_for(lambda: pid in self._ended, timeout_s)
            return self._ended.get(pid)


def expected(name: str) -> bool:
    """Whether a finished run may have such a file, by its path in the folder."""
    top, *rest = name.split("/")
    if top == "checkpoints":
        return not rest or re.fullmatch(r"([a-z_]+-)?\d+", rest[0]) is not None
    return top in KEPT and not re.search(r"\.tmp|\.part$|partial", name)


def settings(shared: Path, url: str) -> list[str]:
    """What makes a run of `experiments/train.py` small."""
    return [
        "env=qa", "tools=offline", "data=jsonl", f"data.path={shared}/questions.jsonl", "data.eval_questions=4",
        "rollout=embedded", f"rollout.slots={SLOTS}", "rollout.widths=[64,1024]", "rollout.chunk=16",
        "rollout.threads=1", "rollout.limits.max_new_tokens=48", "rollout.limits.max_length=2048",
        "rollout.limits.max_turns=3", "rollout.limits.retries=1", "tools.names=[web_search,python]",
        "+tools.experts={generalist: [gpt-5, qwen3-32b]}", "tools.judge=gpt-5-mini", "tools.menu.aliases=true",
        "tools.search.corpus=null", f"tools.web.url={url}", f"tools.server.url={url}/v1", "tools.server.retries=1",
        "tools.sandbox.workers=1", "pricing.name=paper_train", "pricing.orchestrator_input=0",
        "pricing.orchestrator_output=0", f"model.path={shared}/policy", f"model.tokenizer={shared}/policy",
        f"steps={STEPS}", "algorithm.tasks_per_step=2", "algorithm.group_size=2", "algorithm.micro_tokens=4096",
        "algorithm.loss.kl_coef=0", "algorithm.row_widths=[2048]", "algorithm.prefix_widths=[1024]",
        "warm_start.steps=0", "evaluation.questions=0", "checkpoint.every=1", "checkpoint.export=false",
        "logger.names=[jsonl]",
    ]  # fmt: skip


def prepare(shared: Path) -> None:
    """Makes the policy and the questions, if they are not there."""
    if not (shared / "policy").exists():
        data = os.environ.get("ORCHESTRA_DATA", "data")
        make_policy(Path(os.environ.get("QWEN3_TOKENIZER", f"{data}/qwen3-tokenizer")), shared)
    rows = [{"question": f"What is {n} plus {2 * n + 1}?", "answer": str(3 * n + 1)} for n in range(24)]
    (shared / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def environment(shared: Path) -> dict[str, str]:
    """Of every run: one cache of compiled programs and one of bytecode."""
    found = os.environ | {
        "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1", "JAX_COMPILATION_CACHE_DIR": f"{shared}/compiled", "HF_HUB_OFFLINE": "1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "PYTHONPYCACHEPREFIX": f"{shared}/bytecode", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    for name in ("PYTHONDONTWRITEBYTECODE", "TMPDIR"):
        found.pop(name, None)
    return found
