"""Debian's Chromium without a window, driven by its own protocol: for the test of the page, and its picture in docs.

python tests/serving/chromium.py http://127.0.0.1:8100/ docs/images/serve_page.png "What is 7 * 8 + 3?"
"""

import asyncio
import base64
import itertools
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

KEYS = {"Tab": 9, "Enter": 13, " ": 32, "ArrowRight": 39}


class Tab:
    """One page in the browser.

    Attributes:
        complaints: what the browser wrote into its console: errors of the script, and what its policy forbade.
    """

    def __init__(self, link: aiohttp.ClientWebSocketResponse) -> None:
        self._link, self._numbers = link, itertools.count(1)
        self.complaints: list[str] = []

    async def do(self, method: str, **options: Any) -> dict[str, Any]:
        """Have the browser do something; return what it says."""
        number = next(self._numbers)
        await self._link.send_json({"id": number, "method": method, "params": options})
        while True:
            said = await self._link.receive_json(timeout=60)
            if said.get("method") == "Log.entryAdded":
                self.complaints.append(said["params"]["entry"]["text"])
            elif said.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(str(said["params"]["exceptionDetails"]))
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]

    async def ask(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        found = await self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(60):
            while not await self.ask(expression):  # noqa: ASYNC110  the page has no event for it
                await asyncio.sleep(0.05)

    async def press(self, key: str, control: bool = False) -> None:
        """Press a key and let it go."""
        text = {"text": {"Enter": "\r", " ": " "}[key]} if key in ("Enter", " ") and not control else {}
        code = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": KEYS[key]}
        for kind in ("keyDown", "keyUp"):
            await self.do("Input.dispatchKeyEvent", type=kind, modifiers=2 * control, **code, **text)

    async def type(self, text: str) -> None:
        """Type a text where the focus is."""
        await self.do("Input.insertText", text=text)

    async def picture(self) -> bytes:
        """Return a PNG of the whole page."""
        found = await self.do("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    async def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Show the page in a window of so many pixels."""
        await self.do(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.do("Emulation.setEmulatedMedia", features=scheme)


@asynccontextmanager
async def browsing(address: str) -> AsyncIterator[Tab]:
    """Open a page in a browser of its own."""
    found = shutil.which("chromium")
    assert found is not None, "needs Debian's package chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        words = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
        ]
        process = await asyncio.create_subprocess_exec(
            found, *words, "about:blank", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(60):
                assert process.stderr is not None
                while (port := re.search(rb"127\.0\.0\.1:(\d+)/", await process.stderr.readline())) is None:
                    assert process.returncode is None
            draining = asyncio.create_task(process.stderr.read())
            async with aiohttp.ClientSession() as http:
                async with http.get(f"http://127.0.0.1:{int(port[1])}/json") as pages:
                    target = next(page for page in await pages.json() if page["type"] == "page")
                async with http.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as link:
                    tab = Tab(link)
                    for part in ("Page", "Runtime", "Log"):
                        await tab.do(f"{part}.enable")
                    await tab.look(1000, 700)
                    await tab.do("Page.navigate", url=address)
                    loaded = "document.readyState === 'complete' && typeof at === 'function'"
                    await tab.until(
                        f"{loaded} && (document.title !== 'orchestra_jax' || at('said').textContent !== '')"
                    )
                    yield tab
            draining.cancel()
        finally:
            process.terminate()
            await process.wait()


async def _picture(address: str, question: str) -> bytes:
    async with browsing(address) as tab:
        await tab.type(question)
        await tab.press("Tab")
        await tab.press("ArrowRight")
        await tab.ask("at('compare').checked = true")
        await tab.ask("at('form').requestSubmit()")
        await tab.until("!at('ask').disabled && at('sides').children.length > 0")
        assert not tab.complaints, tab.complaints
        return await tab.picture()


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(asyncio.run(_picture(sys.argv[1], sys.argv[3])))
