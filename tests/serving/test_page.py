"""The page at `/`: what a browser may do with it, the steps that it is told, and what a user sees in Chromium."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
from orchestra_jax.envs.base import Script
from orchestra_jax.envs.quickstart.demonstrations import reference_call
from orchestra_jax.serving.database import ServerDatabase, dollars, opened
from orchestra_jax.serving.server import ChatServer, ServerLimits
from orchestra_jax.types import Task, ToolCall, ToolResult
from tests.serving.chromium import Tab, browsing
from tests.serving.made import ask_dear, client, over_http, qa_settings, rows, scripted

HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


async def test_the_page_loads_nothing_runs_its_own_script_alone_and_is_told_each_step(tmp_path: Path):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Why?"}], "stream": True,
            "orchestra": {"trace": True}}  # fmt: skip
    with (
        scripted(tmp_path, ask_dear, *qa_settings(tmp_path), "name=tiny") as orchestrator,
        opened(tmp_path / "served.db") as database,
    ):
        async with client(orchestrator, database, key="secret") as http:
            shown, again = await http.get("/"), await http.get("/")
            told = await http.post("/v1/chat/completions", json=body, headers={"authorization": "Bearer secret"})
    policy = dict(part.split(" ", 1) for part in shown.headers["content-security-policy"].split("; "))
    assert (policy["default-src"], policy["connect-src"], policy["frame-ancestors"]) == ("'none'", "'self'", "'none'")
    (nonce,) = set(re.findall(r'nonce="([^"]+)"', shown.text))
    assert policy["script-src"] == policy["style-src"] == f"'nonce-{nonce}'"
    assert nonce not in again.text  # it cannot be guessed
    assert "://" not in shown.text
    # Nothing that would read a text as HTML or as a program, and no handler in an attribute.
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|\son\w+=", shown.text)
    lines = [json.loads(line[6:]) for line in told.text.split("\n\n") if line.startswith("data: {")]
    steps = [line["orchestra"]["call"] for line in lines if "call" in line.get("orchestra", {})]
    assert [(step["number"], step["tool"], step["result"], step["usd"]) for step in steps] == [
        (0, "dear", None, 0.0), (0, "dear", "It is 4.", 0.4),
    ]  # fmt: skip


def compute(task: Task, results: list[ToolResult]) -> ToolCall | str:
    """Compute sums; of anything else say what a hostile tool could have written."""
    if task.question.startswith("What is"):
        return results[-1].text if results else reference_call(task, "python")
    return HOSTILE


@contextmanager
def serving(folder: Path, script: Script) -> Iterator[tuple[str, ServerDatabase]]:
    """A server of a script on a port of 127.0.0.1, its key being "secret"."""
    with (
        scripted(folder, script, "name=tiny") as orchestrator,
        opened(folder / "served.db") as database,
        over_http(ChatServer(orchestrator, database, ServerLimits(key="secret"))) as address,
    ):
        yield address, database


needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's package chromium")
ANSWERS = "[...document.querySelectorAll('.answer')].map((one) => one.textContent)"


async def asked(tab: Tab, question: str) -> list[str]:
    """Ask by the keyboard, and return what is shown as answers."""
    await tab.ask("at('question').focus()")
    await tab.ask("at('question').select()")
    await tab.type(question)
    await tab.press("Enter", control=True)
    await tab.until("!at('ask').disabled && at('said').textContent === ''")
    return await tab.ask(ANSWERS)


@needs_chromium
async def test_in_chromium_a_user_asks_compares_and_judges_by_the_keyboard_alone(tmp_path: Path):
    with serving(tmp_path, compute) as (address, database):
        async with browsing(f"{address}/") as tab:
            assert await tab.ask("at('said').textContent") == "This server needs a key."
            assert await tab.ask("document.activeElement.id") == "question"
            await to(tab, "key")
            await tab.type("secret")
            await tab.press("Tab")
            await tab.until("document.title === 'tiny'")
            assert await tab.ask("at('ends').innerText.split(/\\s+/)") == ["none", "cheap", "fast", "right", "local"]
            await tab.ask("at('question').focus()")
            await to(tab, "wish")
            await tab.press("ArrowRight")
            assert await tab.ask("[at('wished').textContent, at('wish').ariaValueText]") == ["cheap", "cheap"]
            await to(tab, "compare")
            await tab.press(" ")
            await tab.ask("seen = []; new MutationObserver(() => seen.push(at('sides').textContent))"
                          ".observe(at('sides'), {subtree: true, childList: true})")  # fmt: skip
            own, dearest = await asked(tab, "What is 7 * 8 + 3?")
            titles = await tab.ask("[...document.querySelectorAll('h2')].map((one) => one.textContent)")
            assert titles == ["tiny, cheap", "The dearest model alone"]
            assert own == "59"
            assert dearest.isdecimal()
            assert any("python: " in text and "…" in text for text in await tab.ask("seen"))  # a call under way
            assert re.fullmatch(
                r"\$[.\d]+ in place of \$[.\d]+: \d+ % (less|more)\.", await tab.ask("at('difference').textContent")
            )
            bills = {row["policy"]: f"${dollars(row['usd']):.4f}, " for row in rows(database, "requests")}
            sums = await tab.ask("[...document.querySelectorAll('.sums')].map((one) => one.textContent)")
            assert all(map(str.startswith, sums, (bills["baseline:do_nothing"], bills["the dearest model alone"])))
            await to(tab, "up")
            await tab.press("Enter")
            await tab.until("document.querySelector('.up').ariaPressed === 'true'")
            assert sorted((row["policy"], row["score"]) for row in rows(database, "requests")) == [
                ("baseline:do_nothing", 1.0), ("the dearest model alone", None),
            ]  # fmt: skip
            # What a hostile answer says stays text.
            assert (await asked(tab, "Anna is older than Boris. Who is younger?"))[0] == HOSTILE
            assert await tab.ask("[document.title, document.images.length]") == ["tiny", 0]
            for width, dark in ((320, False), (320, True), (1000, True)):
                await tab.look(width, 700, dark=dark)
                assert await tab.ask("document.documentElement.scrollWidth") <= width
                red = int(re.search(r"\d+", await tab.ask("getComputedStyle(document.body).color"))[0])
                assert (red > 200) == dark
            assert [text for text in tab.complaints if "status of 401" not in text] == []


async def to(tab: Tab, name: str) -> None:
    """Go on with the tabulator to the element of this id or class."""
    for _ in range(12):
        await tab.press("Tab")
        if await tab.ask(f"document.activeElement.matches('#{name}, .{name}')"):
            return
    raise AssertionError(f"The tabulator does not lead to {name}.")
