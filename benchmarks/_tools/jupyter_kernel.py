"""A warm Jupyter kernel for `sandbox.py`. Needs jupyter_client and ipykernel, and nothing of ours.

In: a line with JSON [code, count]. Out: a line with JSON [[seconds, output], ...], timed around each execution.
"""

import json
import sys
import time
from typing import Any

from jupyter_client.manager import start_new_kernel


def main() -> None:
    manager, client = start_new_kernel()
    output: list[str] = []

    def collect(message: dict[str, Any]) -> None:
        output.append(message["content"].get("text", ""))

    try:
        for line in sys.stdin:
            code, count = json.loads(line)
            rows = []
            for _ in range(count):
                output.clear()
                start = time.perf_counter()
                client.execute_interactive(code, output_hook=collect)
                rows.append((time.perf_counter() - start, "".join(output).strip()))
            print(json.dumps(rows), flush=True)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    main()
