"""A file of keys: what it may say, what becomes of the keys in the database, and a server that follows it."""

import hashlib
import time
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
import httpx

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.serving.database import PICO, opened
from orchestra_jax.serving.key_file import read_key_file, take_keys
from orchestra_jax.serving.keys import KeyRing, add_key, digest, end_key, list_keys
from orchestra_jax.serving.running import serve
from tests.serving.test_process import ORACLE, server

KNOWN = hashlib.sha256(b"of-anna").hexdigest()
BOTH = f"""
- {{name: anna, sha256: {KNOWN}, usd_per_day: 0.5, per_minute: 60}}
- {{name: bob, env: BOB}}
"""


def written(folder: Path, text: str) -> Path:
    """A file that never is there in part: a server may look at any time."""
    part, file = folder / "keys.part", folder / "keys.yaml"
    part.write_text(text)
    return part.replace(file)


def test_a_file_has_keys_by_their_hash_or_by_the_variable_that_holds_them(tmp_path: Path):
    anna, bob = read_key_file(written(tmp_path, BOTH), {"BOB": "of-bob\n"})
    assert (anna.name, anna.digest) == ("anna", digest("of-anna"))
    assert anna.limits == {"usd_per_day": PICO // 2, "per_minute": 60}
    assert (bob.name, bob.digest, bob.limits) == (
        "bob", digest("of-bob"), {"usd_per_day": None, "per_minute": None},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a list of keys, at least one"),
        ("[]", "must be a list of keys, at least one"),
        ("name: anna", "must be a list of keys"),
        ("[", " is no YAML: "),
        ("- anna", "entry 1 needs a name"),
        ("- {name: anna}", "'anna' needs either sha256 or env"),
        (f"- {{name: anna, env: BOB, sha256: {KNOWN}}}", "'anna' needs either sha256 or env"),
        ("- {name: anna, key: of-anna}", "'anna' has 'key', and a key has env, name, per_minute, sha256, usd_per_day"),
        ("- {name: anna, sha256: of-anna}", "must be 64 hexadecimal digits"),
        ("- {name: anna, env: NOBODY}", "the environment variable 'NOBODY', the key of 'anna', is not set"),
        ("- {name: anna, env: EMPTY}", "the environment variable 'EMPTY', the key of 'anna', is not set"),
        ("- {name: anna, env: BOB, usd_per_day: five}", "usd_per_day of 'anna' must be a number"),
        ("- {name: anna, env: BOB, usd_per_day: -1}", "dollars per day must be from 0 to 1,000,000, not -1"),
        ("- {name: anna, env: BOB, per_minute: 0}", "requests per minute must be at least 1, not 0"),
        ("- {name: anna, env: BOB, per_minute: true}", "per_minute of 'anna' must be a whole number"),
        (f"[{{name: a, env: BOB}}, {{name: a, sha256: {KNOWN}}}]", "'a' has an entry before"),
        ("[{name: a, env: BOB}, {name: b, env: BOB}]", "'b' is another one's key too"),
    ],
)
def test_a_bad_file_is_one_sentence_that_tells_no_key(tmp_path: Path, text: str, said: str):
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        read_key_file(file, {"BOB": "of-bob", "EMPTY": " "})
    sentence = str(refused.value)
    assert sentence.startswith(f"The file of keys '{file}' cannot be used: ")
    assert said in sentence
    assert "\n" not in sentence
    assert "of-bob" not in sentence
    assert text not in ("", "[]") or sentence.count(".") == 2  # that of the file's name and the last


def test_the_database_has_the_keys_of_the_file_and_an_ended_one_stays_ended(tmp_path: Path):
    def take(text: str) -> list[str]:
        return take_keys(database, read_key_file(written(tmp_path, text), {"BOB": "of-bob"}))

    def known() -> dict[str, str]:
        return {key.name: secret for secret, key in KeyRing(database, None).read().known.items()}

    with opened(tmp_path / "served.db") as database:
        by_hand = add_key(database, "carl", 1.0, None)
        for _ in range(2):  # each server of the database takes the same file
            assert take(BOTH) == []
        first = {"anna": digest("of-anna"), "bob": digest("of-bob"), "carl": digest(by_hand)}
        assert known() == first
        anna = KeyRing(database, None).read().known[digest("of-anna")]

        other = hashlib.sha256(b"new-of-anna").hexdigest()
        for text, said in (
            (f"- {{name: carl, sha256: {other}}}", "There is another key of the name 'carl' already"),
            (f"- {{name: dora, sha256: {digest(by_hand)}}}", "'dora' has the key of 'carl'"),
        ):
            with pytest.raises(ConfigError, match=said):
                take(f"{BOTH}{text}")
            assert known() == first  # nothing of it was taken

        assert take(f"[{{name: anna, sha256: {other}, usd_per_day: 2}}, {{name: bob, env: BOB}}]") == []
        again = KeyRing(database, None).read().known[other]
        assert (again.number, again.usd_per_day, again.per_minute) == (anna.number, 2 * PICO, None)  # one account

        assert take(f"- {{name: anna, sha256: {other}}}") == []
        assert known().keys() == {"anna", "carl"}  # bob is gone from the file, and carl was never in it
        assert take(f"[{{name: anna, sha256: {other}}}, {{name: bob, env: BOB}}]") == ["bob"]
        end_key(database, "anna")
        assert take(f"[{{name: anna, sha256: {other}}}, {{name: bob, env: BOB}}]") == ["anna", "bob"]
        assert known().keys() == {"carl"}
        assert [(row["name"], row["ended"]) for row in list_keys(database)] == [
            ("anna", True), ("bob", True), ("carl", False),
        ]  # fmt: skip


def test_a_server_takes_its_file_and_what_changes_in_it(tmp_path: Path):
    def ask(key: str) -> int:
        return httpx.get(f"{address}/models", headers={"authorization": f"Bearer {key}"}).status_code

    def until(status: int, key: str) -> None:
        deadline = time.monotonic() + 60
        while ask(key) != status:
            assert time.monotonic() < deadline
            time.sleep(0.2)

    file = written(tmp_path, f"- {{name: anna, sha256: {KNOWN}, usd_per_day: 0.06}}")
    with server(tmp_path / "run", ORACLE, "name=tiny", "--keys", str(file)) as (process, address):
        assert (ask("of-anna"), ask("of-bob"), ask("none")) == (200, 401, 401)
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "What is 7 * 8 + 3?"}]}
        headers = {"authorization": "Bearer of-anna"}
        found = [httpx.post(f"{address}/chat/completions", json=asked, headers=headers, timeout=60) for _ in range(3)]
        assert [one.status_code for one in found][-1] == 402  # its six cents are used up
        written(tmp_path, "- {name: anna, env: NOBODY}")
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Goes on with the keys as they were. The file of keys")
        assert ask("of-anna") == 200  # a file that cannot be used changes nothing
        written(tmp_path, f"- {{name: bob, sha256: {digest('of-bob')}}}")
        until(200, "of-bob")
        until(401, "of-anna")
        process.terminate()
        assert process.wait(60) == 0
        said = process.stderr.read().splitlines()
    assert said == [f"Takes up the keys of {file}.", "Ended; everything is closed."]


def test_a_server_with_a_bad_file_does_not_start(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    limits = {"max_usd": None, "max_seconds": None}
    settings = ["name=tiny", f"output_dir={tmp_path / 'run'}"]
    assert serve(ORACLE, settings, "127.0.0.1", 0, limits, keys=str(tmp_path / "none.yaml")) == 2
    said = capfd.readouterr().err.splitlines()
    assert said[-1].startswith(f"There is no file of keys '{tmp_path / 'none.yaml'}': set --keys to a YAML list")
    assert "Errno" not in said[-1]
