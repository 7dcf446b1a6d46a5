"""The data of a rehearsal: small copies that `experiments/prepare.py paper` makes ready, killed once on its way."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import yaml

from benchmarks.rehearsal.claims import Claims, billed_as_paid, less
from benchmarks.rehearsal.copies import write_copies
from benchmarks.rehearsal.providers import Providers
from benchmarks.rehearsal.replies import DESCRIPTION, OPENINGS
from orchestra_jax.evaluation.decoding import read_groups
from orchestra_jax.io.shipped import CONF, EXPERIMENTS
from orchestra_jax.money.bill import State, added, bill
from orchestra_jax.preparation.paper import ACCOUNT
from orchestra_jax.preparation.written import NAMES as WRITTEN

_ROWS = 60  # of each part, and requests of preferences
_USD = 5.0
_KILLED_AFTER = 40  # calls of those that describe the experts


class NotPrepared(Exception):  # noqa: N818  an event
    """The preparation did not end as it should; with the end of its log."""


def prepare(folder: Path, providers: Providers, claims: Claims, patience_s: float) -> dict[str, str]:
    """Make the data of a run in `folder`/data; return the variable that names it to the run.

    Raises:
        ConfigError: there is nothing to make copies of.
        NotPrepared: the command failed.
    """
    copies, data, experts = folder / "copies", folder / "data", folder / "experts.yaml"
    write_copies(copies, os.environ)
    common = {"base_url": f"{providers.url}/v1", "api_key_env": None, "max_tokens": 400}
    experts.write_text(yaml.safe_dump({"defaults": common, "experts": dict.fromkeys(_menu())}))
    command = [
        *(sys.executable, str(EXPERIMENTS / "prepare.py"), "paper", str(data), "--from", str(copies)),
        *("--limit", str(_ROWS), "--experts", str(experts), "--max-usd", str(_USD)),
        *("--embedder-url", f"{providers.url}/v1"),
    ]
    log = folder / "prepare.log"
    print("Preparing the data, with kill -9 on the way ...", flush=True)
    with log.open("wb") as out:
        started = subprocess.Popen(command, stdout=out, stderr=out)
        _wait_for_calls(started, providers, patience_s, log)
        started.send_signal(signal.SIGKILL)
        started.wait()
        billed, (paid, in_flight) = providers.billed, _bill(data)
        claims.add("the killed preparation's bill holds all that was billed", *billed_as_paid(billed, paid, in_flight))
        status = subprocess.run(command, stdout=out, stderr=out, timeout=patience_s, check=False).returncode
    if status:
        raise NotPrepared(f"The preparation ended with status {status}: {log.read_text()[-2000:]}")
    parts = json.loads((data / ACCOUNT).read_text())
    kept = {name: part["counts"].get("kept", part["counts"].get("domains")) for name, part in parts.items()}
    claims.add("the same command goes on, and every part is there", len(kept) == 6, str(kept))
    later, paid = less(providers.billed, billed), less(_bill(data)[0], added([paid, in_flight]))
    claims.add("what models wrote then is paid as it was billed", *billed_as_paid(later, paid))
    return {"ORCHESTRA_DATA": str(data)}


def is_used(run: Path, data: Path, embedded: int) -> tuple[bool, str]:
    """Check that index, descriptions and wordings of preferences are those that were prepared, and all are used.

    Args:
        embedded: queries that the run's servers turned into vectors, at least one a search.
    """
    config = json.loads((run / "run.json").read_text())["config"]
    paths = (config["tools"]["search"]["index"], config["tools"]["descriptions"], config["data"]["preferences_file"])
    told = Counter[str]()
    for group in read_groups(run / "rollouts"):
        told["groups"] += 1
        told["with a wording"] += group.task.preference.instruction.startswith(OPENINGS)
        told["with descriptions"] += any(DESCRIPTION in tool.description for tool in group.task.tools)
        told["searches"] += sum(row.name == "local_search" for one in group.members for row in one.ledger)
    holds = all(path is not None and Path(path).is_relative_to(data) for path in paths)
    holds = holds and all(told[name] for name in ("with a wording", "with descriptions", "searches"))
    return holds and embedded >= told["searches"], f"{dict(told)}, {embedded} queries embedded"


def _menu() -> list[str]:
    """Names of all models that the paper's run offers or asks."""
    tools = yaml.safe_load((CONF / "tools" / "paper_train.yaml").read_text())
    return sorted({name for names in tools["experts"].values() for name in names})


def _bill(data: Path) -> tuple[State, State]:
    """Return what the models that write were paid, and what was in flight when they were stopped."""
    paid, in_flight = zip(*(bill(data / name) for name in WRITTEN), strict=True)
    return added(paid), added(in_flight)


def _wait_for_calls(started: subprocess.Popen[bytes], providers: Providers, patience_s: float, log: Path) -> None:
    """Return when the models were asked often enough for the command to be killed in the middle."""
    deadline = time.monotonic() + patience_s
    while sum(calls for _, _, calls in providers.billed.values()) < _KILLED_AFTER:
        if started.poll() is not None or time.monotonic() > deadline:
            raise NotPrepared(f"The preparation asked too few models: {log.read_text()[-2000:]}")
        time.sleep(0.02)
