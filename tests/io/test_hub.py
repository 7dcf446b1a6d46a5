"""Ids of the Hugging Face hub in the place of folders: from a hub on 127.0.0.1, from its cache, and from neither."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from orchestra_jax.io import hub

COMMIT = "1" * 40
TOKENIZER = {
    "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None, "decoder": None, "truncation": None, "padding": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"},
}  # fmt: skip
REPOSITORIES = {
    "models/our/policy": {
        "config.json": '{"model_type": "qwen3"}',
        "tokenizer.json": json.dumps(TOKENIZER),
        "tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}',
        "pytorch_model.bin": "not wanted",
    },
    "datasets/our/questions": {
        "data/train-0.jsonl": '{"question": "1 + 1?", "answer": "2"}\n',
        "data/test-0.jsonl": '{"question": "2 + 2?", "answer": "4"}\n',
        "test.tsv": "\tPrompt\tAnswer\twiki_links\n0\tWho?\tAda\t['x']\n",
        "README.md": "not wanted",
    },
}
ASK = """
import sys
from orchestra_jax.data.sources import load_tasks
from orchestra_jax.models import saved_tokenizer
for name in sys.argv[1:]:
    try:
        if name.startswith("our/policy"):
            print(len(saved_tokenizer.load(name)))
        else:
            print(sorted((q.question, *q.answer) for q in load_tasks(name)))
    except FileNotFoundError as error:
        print(f"{type(error).__name__}: {error}")
"""


class Hub(BaseHTTPRequestHandler):
    """What huggingface_hub asks for: a repository at a revision, the tree of its files, and each file."""

    asked: list[str]
    repositories: ClassVar[Mapping[str, Mapping[str, str | bytes]]] = REPOSITORIES

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        type(self).asked.append(path)
        for name, texts in self.repositories.items():
            files = {file: text.encode() if isinstance(text, str) else text for file, text in texts.items()}
            if path.startswith(f"/api/{name}/tree/"):
                rows = [
                    {"type": "file", "path": file, "size": len(text), "oid": hashlib.sha1(text).hexdigest()}
                    for file, text in files.items()
                ]
                return self._send(json.dumps(rows).encode(), body)
            if path.startswith(f"/api/{name}"):
                siblings = [{"rfilename": file} for file in files]
                told = {"id": name.partition("/")[2], "sha": COMMIT, "siblings": siblings, "private": False}
                return self._send(json.dumps(told).encode(), body)
            prefix = f"/{name.removeprefix('models/')}/resolve/{COMMIT}/"
            if path.startswith(prefix) and path.removeprefix(prefix) in files:
                return self._send(files[path.removeprefix(prefix)], body)
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def _send(self, content: bytes, body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content)


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server in a thread."""
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture
def server() -> Iterator[str]:
    Hub.asked = []
    with serving(Hub) as url:
        yield url


def ask(cache: Path, *names: str, **environment: str) -> list[str]:
    """What a process of its own makes of the names: huggingface_hub reads its environment when it is imported."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", ASK, *names], cwd=cache, text=True, capture_output=True, timeout=240,
        env=kept | {"HF_HOME": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_what_the_hub_has_is_fetched_once_and_read_without_it(tmp_path: Path, server: str):
    names = ("our/policy", "our/questions:data/train-*", "our/questions@main:test.tsv")
    wanted = ["2", "[('1 + 1?', '2')]", "[('Who?', 'Ada')]"]
    assert ask(tmp_path, *names, HF_ENDPOINT=server) == wanted
    fetched = {path.rpartition(f"{COMMIT}/")[2] for path in Hub.asked if "/resolve/" in path}
    assert fetched == {"config.json", "tokenizer.json", "tokenizer_config.json", "data/train-0.jsonl", "test.tsv"}
    Hub.asked.clear()
    assert ask(tmp_path, *names, HF_HUB_OFFLINE="1") == wanted
    assert Hub.asked == []
    *_, missing = ask(tmp_path, "our/other", HF_ENDPOINT=server)
    assert "there is no such folder, and the hub shows no dataset of this id: correct it" in missing


def test_without_cache_and_network_one_sentence_says_so(tmp_path: Path):
    for environment in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        tokenizer, questions = ask(tmp_path, "our/policy", "our/questions", **environment)
        for kind, found in (("model our/policy", tokenizer), ("dataset our/questions", questions)):
            assert found == (
                f"FileNotFoundError: there is no such folder, and the {kind} is neither in the hub's cache nor to be "
                "fetched from here: fetch it where there is a network (`hf download`), or name a folder."
            )


def test_a_path_is_no_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    for name in ("questions.jsonl", "./our/policy", "/our/policy", "our/policy/deep", "here/policy", "~/a/b", "data/x"):
        assert not hub.is_id(name)
        assert hub.local(name, "model") == Path(name)
    for name in ("Qwen/Qwen3-8B", "cais/hle", "openai/gsm8k@main", "openai/gsm8k@main:main/train-*"):
        assert hub.is_id(name)
