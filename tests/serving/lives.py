"""Servers that are forked from one process, so that each life begins at once: for kills at any moment.

python tests/serving/lives.py PORT SETTING ...

A line on standard input starts a life, whose process id is printed; the next line starts the next one.
"""

import os
import signal
import sys

import uvicorn  # noqa: F401  what a life needs is imported before

import orchestra_jax.envs.qa.environment
import orchestra_jax.rollout.messages
import orchestra_jax.serving.server
import orchestra_jax.tools.experts.client  # noqa: F401
from orchestra_jax.serving.running import serve


def main() -> None:
    """Serve, life after life."""
    port, *settings = sys.argv[1:]
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            limits = {"max_usd": None, "max_seconds": None, "keep_days": 1.0}
            os._exit(serve("baseline:cheapest_first", settings, "127.0.0.1", int(port), limits))
        print(child, flush=True)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
