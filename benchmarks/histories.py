"""CPU seconds in which the prompts of one trajectory are made, by history, and as if each turn were the first.

    JAX_PLATFORMS=cpu python benchmarks/histories.py --tokenizer $ORCHESTRA_DATA/qwen3-tokenizer

A turn is a thought and a call, and then the call's result. "anew" forgets what earlier turns of the trajectory had
rendered, tokenised and decoded, as `rollout` did before it remembered. Exit status 1: the two differ in an id.
"""

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from short import keep, machine, parse, table_of

from orchestra_jax.config.choices import History
from orchestra_jax.envs.quickstart.environment import quickstart_chat
from orchestra_jax.models import saved_tokenizer
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.parsing import render_call
from orchestra_jax.types import ToolCall, ToolSpec

TEXT = {"type": "string", "description": "What to look for."}
SCHEMA = {"type": "object", "properties": {"query": TEXT, "count": {"type": "integer"}}, "required": ["query"]}
WORDS = "the of model result value found Lima 37 river energy because therefore { } : , . year 1998 \n".split(" ")


def play(chat: ChatFormat, menu: tuple[ToolSpec, ...], turns: int, anew: bool, given: Any) -> tuple[float, list[Any]]:
    """Return the CPU seconds in which the prompts after the first were made, and the prompts: whole sequences."""
    rng = random.Random(turns)

    def words(count: int) -> str:
        return " ".join(rng.choices(WORDS, k=count))

    messages = [{"role": "user", "content": words(given.question)}]
    ids, seconds, found = chat.prompt_ids(messages, menu), 0.0, []
    growing = chat.prompts()
    for _ in range(turns):
        call = render_call(ToolCall(menu[0].name, {"query": words(given.call)}))
        said = (*chat.encode(f"<think>\n{words(given.thought)}\n</think>\n\n{call}"), chat.stop_ids[0])
        messages.append({"role": "assistant", "content": chat.decode(said)})
        messages.append({"role": "tool", "content": words(given.result)})
        ids = (*ids, *said)
        began = time.process_time()
        new, same = (chat.prompts() if anew else growing)(ids, messages, menu)
        seconds += time.process_time() - began
        ids = (*ids, *new) if same else new
        found.append(ids)
    return seconds, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="its folder (default: that of the quickstart)")
    parser.add_argument("--turns", type=int, nargs="+", default=[10, 50, 150])
    parser.add_argument("--tools", type=int, default=10, help="of the menu")
    parser.add_argument("--question", type=int, default=100, help="words")
    parser.add_argument("--thought", type=int, default=150, help="words of each turn")
    parser.add_argument("--call", type=int, default=20, help="words of each turn")
    parser.add_argument("--result", type=int, default=170, help="words of each turn")
    parser.add_argument("--rounds", type=int, default=3, help="the fastest counts")
    parser.add_argument("--json", type=Path, help="keeps everything that was measured")
    given = parse(parser, "--turns", "3", "--rounds", "1")
    tokenizer = saved_tokenizer.load(given.tokenizer) if given.tokenizer else quickstart_chat().tokenizer
    menu = tuple(
        ToolSpec(f"tool_{number}", "Looks for a text, and returns what it found.", SCHEMA, number / 100, 1.0)
        for number in range(given.tools)
    )
    rows, differ = [], False
    for turns in given.turns:
        for history in History:
            chat = ChatFormat(tokenizer, history=history)
            runs = [[play(chat, menu, turns, anew, given) for anew in (True, False)] for _ in range(given.rounds)]
            anew, ours = (min(seconds for seconds, _ in each) for each in zip(*runs, strict=True))
            differ |= any(one != other for (_, one), (_, other) in runs)
            tokens = max(map(len, runs[0][1][1]))
            rows.append({"turns": turns, "history": str(history), "tokens": tokens, "anew": anew, "as it is": ours})
            rows[-1]["ratio"] = anew / ours
    Console().print(table_of(f"CPU seconds of a trajectory's prompts, fastest of {given.rounds}", rows))
    print("The prompts differ." if differ else "Both ways make the same prompts.")
    keep(given.json, {**machine(), "rows": rows})
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
