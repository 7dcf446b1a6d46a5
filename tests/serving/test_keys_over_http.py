"""Keys over HTTP: a budget's end is 402, a rate limit 429, and the answer near the end is bounded by what is left."""

from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
import openai

from orchestra_jax.serving.database import PICO, opened
from orchestra_jax.serving.keys import add_key, end_key, list_keys
from tests.serving.made import ask_dear, client, qa_settings, rows, scripted, status

WHY = [{"role": "user", "content": "Why?"}]


async def test_each_key_has_its_budget_and_its_rate_as_the_openai_client_reads_them(tmp_path: Path):
    with (
        scripted(tmp_path, ask_dear, *qa_settings(tmp_path), "name=tiny") as orchestrator,
        opened(tmp_path / "served.db") as database,
    ):
        keys = {"rich": add_key(database, "rich", None, None), "poor": add_key(database, "poor", 1.0, None)}
        keys["slow"] = add_key(database, "slow", None, 1)
        async with client(orchestrator, database, key="given") as http:

            def api(name: str) -> openai.AsyncOpenAI:
                key = keys.get(name, name)
                return openai.AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key=key, http_client=http, max_retries=0)

            async def cost(name: str, **more: object) -> float:
                found = await api(name).chat.completions.create(model="tiny", messages=WHY, **more)
                return found.usage.model_extra["cost_usd"]

            assert [await cost("poor"), await cost("poor"), await cost("poor")] == [0.4, 0.4, 0.0]  # 20 cents are left
            (account,) = [row for row in rows(database, "accounts") if row["name"] != "servers"]
            database.do(
                lambda connection: connection.exec_driver_sql(f"UPDATE accounts SET usd = {PICO} WHERE calls = 2")
            ).result()
            for stream in (False, True):
                with pytest.raises(openai.APIStatusError, match="renewed at midnight UTC") as broke:
                    await cost("poor", stream=stream)
                assert (broke.value.status_code, broke.value.code) == (402, "budget_exceeded")
            assert await cost("slow") == 0.4
            with pytest.raises(openai.RateLimitError, match="may ask 1 times a minute") as often:
                await cost("slow")
            assert 1 <= int(often.value.response.headers["retry-after"]) <= 61
            assert (await cost("rich"), await cost("given")) == (0.4, 0.4)
            with pytest.raises(openai.AuthenticationError):
                await cost("wrong")
            kept = await api("rich").chat.completions.create(
                model="tiny", messages=WHY, extra_body={"orchestra": {"keep": False}}
            )
        asked = {row["id"]: row for row in rows(database, "requests")}
        used = {row["name"]: row["usd_today"] for row in list_keys(database)}
    assert used == {"poor": 1.0, "rich": 0.8, "slow": 0.4}  # also without a budget
    assert account["usd"] == 0.8 * PICO
    assert asked.pop(kept.id)["kept"] is None
    assert [(row["key"], bool(row["kept"])) for row in asked.values()] == [
        (2, True), (2, True), (2, True), (3, True), (1, True), (None, True),
    ]  # fmt: skip


async def test_a_server_whose_last_key_was_ended_lets_nobody_in(tmp_path: Path):
    with (
        scripted(tmp_path, ask_dear, *qa_settings(tmp_path), "name=tiny") as orchestrator,
        opened(tmp_path / "served.db") as database,
    ):
        for ended, expected in ((False, 200), (True, 401)):
            if ended:
                add_key(database, "anna", None, None)
                end_key(database, "anna")
            async with client(orchestrator, database) as http:
                assert (await http.get("/v1/models")).status_code == expected
        database.close()
        async with client(orchestrator, database) as http:
            lost = await http.get("/v1/models")
    assert (lost.status_code, lost.json()["error"]["code"], lost.headers["retry-after"]) == (503, "disk", "30")


def test_the_command_makes_lists_and_ends_keys(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    folder = str(tmp_path)
    assert status("served", folder, "keys") == 2
    assert "name the output_dir of a server" in capfd.readouterr().err
    assert status("served", folder, "add-key", "anna", "--usd-per-day", "5", "--per-minute", "60") == 0
    said = capfd.readouterr()
    assert said.out.startswith("sk-orchestra-")
    assert f"Made '{tmp_path}/serving/served.db', for servers with output_dir={tmp_path}." in said.err
    assert status("served", folder, "add-key", "anna") == 2
    assert "'anna' already" in (refused := capfd.readouterr().err)
    assert "Made" not in refused
    assert status("served", folder, "end-key", "anna") == 0
    assert status("served", folder, "keys") == 0
    listed = capfd.readouterr().out
    assert all(word in listed for word in ("anna", "5.0", "60", "True"))
    assert said.out.strip() not in listed
    for name in ("bob [ops]", "[/x]"):  # no markup
        assert status("served", folder, "add-key", name) == 0
        assert status("served", folder, "keys") == 0
        assert name in capfd.readouterr().out
