"""Users of a served quickstart policy: they ask questions of the world's training split, and say whether it was right.

    python experiments/serve.py outputs/half --follow outputs/served
    .venv/bin/python benchmarks/circle.py http://127.0.0.1:8100/v1 --questions 200

The first half of the circle in docs/serve.md. Each question comes with the wish that it has in training; the feedback
has thumbs and the right answer. Without an address a policy of the world's own tools is served here.
"""

import argparse
import asyncio
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from serve import InThread
from short import parse

from orchestra_jax.config.served_path import FILE
from orchestra_jax.envs.quickstart.world import QuickstartWorld
from orchestra_jax.serving.database import opened
from orchestra_jax.serving.opened import open_policy
from orchestra_jax.serving.orchestrator import Orchestrator
from orchestra_jax.serving.server import ChatServer, ServerLimits
from orchestra_jax.tools.answers import matches


async def ask(address: str, first: int, questions: int, clients: int) -> list[dict[str, Any]]:
    """Ask and judge; return what was said of each question."""
    world, numbers, found = QuickstartWorld(), iter(range(first, first + questions)), list[dict[str, Any]]()

    async def client(http: httpx.AsyncClient, model: str) -> None:
        for number in numbers:
            task = world.task("train", number)
            body = {"model": model, "messages": [{"role": "user", "content": task.question}], "temperature": 1.0}
            said = await http.post(
                "/chat/completions", json={**body, "orchestra": {"wish": task.preference.instruction}}
            )
            if said.status_code not in (200, 422):  # 422: it broke the format of calls
                raise SystemExit(f"{said.status_code}: {said.text}")
            told = said.json() if said.status_code == 200 else {}
            words = told["choices"][0]["message"]["content"] if told else ""
            right = matches(words or "", task.answer)
            found.append({"right": right, "usd": told["usage"]["cost_usd"] if told else None})
            verdict = {"thumbs": "up" if right else "down", "correct": task.answer[0]}
            judged = await http.post("/feedback", json={"id": said.headers["x-request-id"], **verdict})
            judged.raise_for_status()

    async with httpx.AsyncClient(base_url=address, timeout=300) as http:
        model = (await http.get("/models")).json()["data"][0]["id"]
        await asyncio.gather(*(client(http, model) for _ in range(clients)))
    return found


def main() -> None:
    """Ask, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", help="of the server, with /v1; without one a policy is served here")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--first", type=int, default=1_000_000, help="index of the first; a training's own begin at 0")
    parser.add_argument("--clients", type=int, default=8, help="that ask at once")
    options = parse(parser, "--questions", "8")
    with ExitStack() as parts:
        address = options.address
        if address is None:
            scratch = Path(parts.enter_context(tempfile.TemporaryDirectory()))
            policy = open_policy("baseline:preference_oracle", ["name=circle", f"output_dir={scratch}"])
            orchestrator = parts.enter_context(Orchestrator(policy))
            database = parts.enter_context(opened(orchestrator.folder / FILE))
            address = InThread().uvicorn(ChatServer(orchestrator, database, ServerLimits()).app())
        found = asyncio.run(ask(address, options.first, options.questions, options.clients))
    cents = 100 * statistics.mean(one["usd"] for one in found if one["usd"] is not None)
    print(f"{len(found)} questions: {sum(one['right'] for one in found)} right, {cents:.2f} cents an answer")


if __name__ == "__main__":
    main()
