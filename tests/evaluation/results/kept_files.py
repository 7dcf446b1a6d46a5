"""Made-up evaluations: folders with a record and kept trajectories, as an evaluation leaves them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MENU = ("expert-1", "expert-2", "python")
KEYS = {"expert-1": "generalist/gpt-5", "expert-2": "math/qwen2.5-math-7b", "python": "python"}
MODELS = {"generalist/gpt-5": {"output_usd": 10.0}, "math/qwen2.5-math-7b": {"output_usd": 0.2}}
WEIGHTS = {"tools": {"expert-2": 0.5}, "outcome": 1.0, "compute": 0.75, "latency": 0.25}


def row(name: str, right: bool, cents: float = 1.0, calls: Sequence[str] = (), **other: Any) -> dict[str, Any]:
    """A line of a file of trajectories; `other` replaces fields."""
    turn = {
        "calls": [{"name": call, "arguments": {}} for call in calls],
        "results": [{"refused": False} for _ in calls],
    }
    return {
        "id": name, "family": "", "member": 0, "menu": {"tools": KEYS}, "tools": list(MENU), "models": MODELS,
        "weights": WEIGHTS, "policy_model": None, "solved": right, "cost_usd": cents / 100, "latency_s": 2.0,
        "status": "completed", "sequences": [[turn]], **other,
    }  # fmt: skip


def config(source: str = "hle", tools: Mapping[str, Any] | None = None, prices: str = "paper") -> dict[str, Any]:
    """The parts of a resolved config that a report reads; tools as the paper evaluates them."""
    paper = {
        "names": ["python", "local_search", "web_search"],
        "experts": {"code_writer": ["gpt-5", "qwen2.5-coder-32b"], "generalist": ["gpt-5", "llama-3.3-70b"]},
    }
    return {
        "data": {"source": source, "eval_source": "auto"},
        "tools": dict(paper if tools is None else tools),
        "pricing": {"name": prices, "randomise": {"lists": [], "low": 1.0, "high": 1.0}},
    }


def evaluation(
    folder: Path, rows: Mapping[str, Sequence[Mapping[str, Any]]], made: Mapping[str, Any], **record: Any
) -> Path:
    """The folder of an evaluation.

    Args:
        rows: by file, such as "policy/held_out.t0".
        made: the config; record: what else its record holds.
    """
    kept = folder / "evaluation"
    for name, lines in rows.items():
        file = kept / "trajectories" / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    whole = {"name": folder.name, "kind": "evaluate", "parents": [], "starts": [], **record, "config": dict(made)}
    place = folder if whole["kind"] == "train" else kept
    place.mkdir(parents=True, exist_ok=True)
    (place / "run.json").write_text(json.dumps(whole))
    return folder
