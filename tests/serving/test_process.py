"""The server as a process: its address, the OpenAI client, refusals at the start, Ctrl-C and SIGTERM."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
import httpx
import openai

from orchestra_jax.config.served_path import FILE
from orchestra_jax.serving.database import opened
from orchestra_jax.serving.keys import add_key
from orchestra_jax.serving.running import KEY, _has_keys, serve
from tests.serving.made import ROOT, qa_settings

ORACLE = "baseline:preference_oracle"


@contextmanager
def server(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    command = [sys.executable, "-m", "orchestra_jax", "serve", *words, "--port", "0", f"output_dir={folder}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = []
        try:
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"http://127\.0\.0\.1:\d+/v1", line):
                    yield process, found[0]
                    return
            raise AssertionError("".join(said))
        finally:
            process.kill()


@pytest.mark.slow
def test_ctrl_c_lets_an_answer_end_and_closes_everything(tmp_path: Path):
    slow = [*qa_settings(tmp_path, "unhurried"), "name=slow"]
    for number in (signal.SIGINT, signal.SIGTERM):
        with server(tmp_path, "baseline:random", *slow) as (process, address):
            api = openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=60)
            found: list[str | None] = []

            def ask(api: openai.OpenAI = api, found: list = found) -> None:
                asked = api.chat.completions.create(model="slow", messages=[{"role": "user", "content": "How?"}])
                found.append(asked.choices[0].message.content)

            asking = threading.Thread(target=ask)
            asking.start()
            while "orchestra_under_way 1.0" not in httpx.get(address.replace("/v1", "/metrics")).text:
                assert asking.is_alive()
                time.sleep(0.05)
            process.send_signal(number)
            assert process.wait(60) == 0
            asking.join(60)
            assert found == ["done"]
            assert process.stderr is not None
            stops = "Stops; requests under way: 1. They have 10 s; Ctrl-C ends them now.\n"
            assert process.stderr.read() == f"{stops}Ended; everything is closed.\n"


def test_the_openai_client_talks_to_the_process(tmp_path: Path):
    with server(tmp_path, ORACLE, "name=tiny") as (process, address):
        api = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
        asked = {"model": "tiny:cheap", "messages": [{"role": "user", "content": "What is 7 * 8 + 3?"}]}
        assert api.chat.completions.create(**asked).choices[0].message.content == "59"
        chunks = list(api.chat.completions.create(**asked, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "59"
        with pytest.raises(openai.APIStatusError, match="The body has more than 68,608 bytes") as large:
            api.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 10_000_000}])
        assert large.value.status_code == 413
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_what_cannot_be_served_is_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(KEY, raising=False)
    limits = {"max_usd": None, "max_seconds": None}
    with monkeypatch.context() as patch:
        patch.setattr("orchestra_jax.serving.running.open_checked", None)  # refused before the policy is loaded
        assert serve(ORACLE, [f"output_dir={tmp_path / 'new'}"], "0.0.0.0", 0, limits) == 2
    assert f"set the environment variable {KEY}" in capfd.readouterr().err
    assert not (tmp_path / "new").exists()
    with opened(tmp_path / FILE) as database:
        assert not _has_keys(tmp_path / FILE)
        add_key(database, "anna", None, None)
        assert _has_keys(tmp_path / FILE)
        assert not _has_keys(tmp_path / "none.db")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert serve(ORACLE, [], "127.0.0.1", port, limits) == 2
        assert f"Nothing can be served at port {port} of 127.0.0.1" in capfd.readouterr().err
    assert serve(ORACLE, [], "127.0.0.1", 70_000, limits) == 2
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "orchestra_jax.serving.server", None)
        assert serve(ORACLE, [], "127.0.0.1", 0, limits) == 2
        assert "pip install 'orchestra-jax[serve]'" in capfd.readouterr().err
    assert serve("nowhere", [f"output_dir={tmp_path}"], "127.0.0.1", 0, limits) == 2
    assert "is neither a checkpoint" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("limits", "options", "sentence"),
    [
        ({"max_usd": -1.0}, {}, "--max-usd=-1 must be a number >= 0: change it."),
        ({"max_usd": float("nan")}, {}, "--max-usd=nan must be a number >= 0: change it."),
        ({"max_seconds": float("inf")}, {}, "--max-seconds=inf must be a number >= 0: change it."),
        ({"keep_days": -30.0}, {}, "--keep-days=-30 must be a number >= 0: change it."),
        ({}, {"canary": 2.0, "follow": "x"}, "--canary=2 must be a share between 0 and 1, such as 0.1."),
        ({}, {"keys": "none.yaml"}, "There is no file of keys 'none.yaml': set --keys to a YAML list, such as"),
    ],
)
def test_a_wrong_limit_is_refused_before_the_policy_is_loaded(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, limits: dict, options: dict, sentence: str
):
    monkeypatch.setattr("orchestra_jax.serving.running.open_checked", None)
    assert serve(ORACLE, [], "127.0.0.1", 0, limits, **options) == 2
    assert capfd.readouterr().err.startswith(sentence)
