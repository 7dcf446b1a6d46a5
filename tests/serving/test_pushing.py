"""A policy that is handed on: its card, the upload to a hub on 127.0.0.1, and the way back from there."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
import pytest

from orchestra_jax.models import checkpoint
from orchestra_jax.models.lora import LoRA, abstract_adapters, merge, save_peft
from orchestra_jax.serving.card import MARK
from orchestra_jax.serving.pushing import push
from tests.io.test_hub import Hub, serving
from tests.serving.made import ROOT, random_run

NAME = "our/tiny"
BACK = """
import sys
from orchestra_jax import Orchestrator
from orchestra_jax.serving.pushing import push
from pathlib import Path
run, folder = sys.argv[1:3]
status = push(Path(run), "our/tiny", "apache-2.0", merge=False, dry_run=False, private=True)
if status:
    sys.exit(status)
with Orchestrator.load("our/tiny", f"output_dir={folder}", *sys.argv[3:]) as pushed, Orchestrator.load(run) as own:
    question = own._opened.environment.held_out(1)[0]
    said = [each.ask(question).trajectory.turns[0] for each in (own, pushed)]
    assert said[0].sampled_ids == said[1].sampled_ids, said
    print(pushed.subject.cfg.model.path)
"""


class Taking(Hub):
    """A hub that takes what is pushed: a repository that is made, and the files of a commit."""

    made: list[dict]
    repositories: ClassVar[dict[str, dict[str, bytes]]] = {}
    token = "hf_right"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Authorization"] != f"Bearer {self.token}":
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path == "/api/repos/create":
            self.made.append(json.loads(body))
            self._send(json.dumps({"url": f"http://{self.headers['Host']}/{NAME}"}).encode(), True)
        elif "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]
            self._send(json.dumps({"files": modes}).encode(), True)
        elif "/commit/" in self.path:
            lines = [json.loads(line) for line in body.splitlines()]
            files = [line["value"] for line in lines if line["key"] == "file"]
            self.repositories[f"models/{NAME}"] = {file["path"]: base64.b64decode(file["content"]) for file in files}
            told = {
                "commitUrl": f"http://{self.headers['Host']}/{NAME}/commit/1",
                "commitOid": "1" * 40,
                "success": True,
            }
            self._send(json.dumps(told).encode(), True)
        else:
            self._send(json.dumps({"errors": [], "warnings": []}).encode(), True)


@pytest.fixture
def taking() -> Iterator[str]:
    Taking.asked, Taking.made, Taking.repositories = [], [], {}
    with serving(Taking) as url:
        yield url


def back(run: Path, endpoint: str, token: str) -> subprocess.CompletedProcess[str]:
    """Push and load again, in a process of its own: huggingface_hub reads its environment when it is imported."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    hub = {"HF_ENDPOINT": endpoint, "HF_TOKEN": token, "HF_HOME": str(run / "hub"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    limits = ("rollout.slots=8", "rollout.limits.max_new_tokens=8")  # the card would tell them
    command = [sys.executable, "-c", BACK, str(run), str(run / "asked"), *limits]
    return subprocess.run(
        command, cwd=run, text=True, capture_output=True, env=kept | hub | {"PYTHONPATH": str(ROOT)}, timeout=240
    )


@pytest.mark.slow
def test_a_pushed_policy_comes_back_from_the_hub_and_says_the_same(tmp_path: Path, taking: str):
    run = random_run(tmp_path)
    refused = back(run, taking, "hf_wrong")
    assert (refused.returncode, Taking.repositories) == (2, {})
    assert refused.stderr.splitlines()[-1].startswith(f"The hub does not let you write to {NAME}: run `hf auth login`")
    done = back(run, taking, "hf_right")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == NAME
    (made,) = Taking.made
    assert (made["name"], made["organization"]) == ("tiny", "our")
    assert made.get("private") or made.get("visibility") == "private"  # the word depends on the client's version
    pushed = Taking.repositories[f"models/{NAME}"]
    assert pushed == {file.name: file.read_bytes() for file in (run / "policy").iterdir()}
    assert pushed["README.md"].decode().splitlines()[:2] == ["---", "library_name: orchestra_jax"]


def test_the_card_tells_menu_wishes_figures_and_how_to_serve_and_nothing_of_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = random_run(tmp_path)
    record = json.loads((run / "run.json").read_text())
    words = ["env.seed=3", "data.path=/home/anna/q.jsonl", "tools.server.url=http://10.0.0.7:8000/v1", "steps=4",
             f"output_dir={run}"]  # fmt: skip
    record["starts"][0]["overrides"] = words
    (run / "run.json").write_text(json.dumps(record))
    within = {"accuracy": {"wilson": [0.8636, 0.96]}, "cost": {"bootstrap": [0.0009, 0.00145]}}
    means = {"accuracy": 0.925, "cost": 0.00117, "latency": 2.5, "calls": 2.0}
    figures = {"counted": 120.0, **means, "intervals": within}
    (run / "summary.json").write_text(json.dumps({"before": {**figures, "accuracy": 0.5}, "after": figures}))
    assert push(run, "our/tiny", "apache-2.0", merge=False, dry_run=True, private=False) == 0
    said, file = capsys.readouterr(), run / "policy" / "README.md"
    card = file.read_text()
    assert "model.safetensors" in said.out
    assert "nothing was uploaded" in said.err
    assert "| after | 120 | 92.5 % (86.4 to 96) | 0.117 (0.09 to 0.145) | 2.5 | 2 |" in card
    assert 'license: "apache-2.0"' in card
    assert "- `cheap`: " in card
    assert "- `expert_large`: " in card
    used = "env.seed=3 data.path=FILE tools.server.url=ADDRESS"
    assert f"orchestra-jax serve our/tiny --port 8100 {used}\n" in card
    assert not any(word in card for word in ("/home/anna", "10.0.0.7", str(tmp_path)))
    file.write_text(card.replace(MARK, "My own words."))
    assert push(run, "our/tiny", None, merge=False, dry_run=True, private=False) == 0
    assert "was changed by hand and stays" in capsys.readouterr().err
    assert "My own words." in file.read_text()


def test_adapters_are_pushed_alone_or_merged_into_their_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    base, run = random_run(tmp_path / "base"), random_run(tmp_path / "run")
    model, params = checkpoint.load(base / "policy")
    lora = LoRA(2, 4.0, ("q", "down"))
    shapes = abstract_adapters(model, lora)
    adapters = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.1, np.float32), shapes)
    save_peft(run / "policy", model, adapters, lora, str(base / "policy"), overwrite=True)
    options = {"dry_run": True, "private": False}
    assert push(run, NAME, None, merge=False, **options) == 2
    assert "which nobody else has: push with --merge." in capsys.readouterr().err
    assert push(run, NAME, None, merge=True, **options) == 0
    _, found = checkpoint.load(run / "merged")
    assert all(map(np.array_equal, jax.tree.leaves(found), jax.tree.leaves(merge(params, adapters, lora))))
    assert (run / "merged" / "README.md").is_file()
    save_peft(run / "policy", model, adapters, lora, "our/base", overwrite=True)
    assert push(run, NAME, None, merge=False, **options) == 0
    assert 'base_model: "our/base"' in (run / "policy" / "README.md").read_text()


@pytest.mark.parametrize(
    ("change", "name", "sentence"),
    [
        ({}, "tiny", "'tiny' is no id of the hub: write ORGANISATION/NAME."),
        ({}, "../x", "'../x' is no id of the hub: write ORGANISATION/NAME."),
        ({"merge": True}, NAME, "has no adapters to merge: leave --merge out."),
        ({"run": "nowhere"}, NAME, "name the folder of a run that has ended."),
    ],
)
def test_what_cannot_be_pushed_is_one_sentence(
    run: Path, capsys: pytest.CaptureFixture[str], change: dict, name: str, sentence: str
):
    options = {"merge": False, "dry_run": True, "private": False, **change}
    folder = run.parent / str(options.pop("run", run.name))
    assert push(folder, name, None, **options) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].endswith(sentence)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_run(tmp_path_factory.mktemp("run"))
