"""The words about a snippet: for every status and every byte there are some."""

import os
import random

from orchestra_jax.tools.python.common import FLOOD_BYTES
from orchestra_jax.tools.python.observation import observe

LIMITS = {"timeout_s": 2.0, "memory_mb": 128, "max_output": 100}


def test_every_way_to_end_has_words():
    for status in range(1 << 16):
        text, error = observe(b"", status, "", LIMITS)
        assert error == (status != 0)
        assert not os.WIFSIGNALED(status) or "killed by" in text or "time-out" in text
    assert observe(b"", 40, "", LIMITS) == ("The code was killed by signal 40.", True)
    assert observe(b"", 9, "", LIMITS) == ("The code was killed by SIGKILL.", True)
    assert observe(b"a\n", 4 << 8, "", LIMITS) == ("a\nThe code ended with exit code 4.", True)
    assert observe(b"", 9, "memory", LIMITS)[0].endswith("more than 128 MiB of memory.")
    assert observe(b"", 9, "time", LIMITS)[0] == "The code was stopped after 2 s (time-out)."


def test_every_output_is_text():
    draw = random.Random(0)
    for _ in range(500):
        text, _ = observe(draw.randbytes(draw.randrange(400)), 0, "", LIMITS)
        text.encode()
        assert len(text) < 200
    assert observe(b"\xed\xa0\xbd", 0, "", LIMITS) == ("\ufffd" * 3, False)  # half a surrogate pair
    assert "printed more than" in observe(b"x" * (FLOOD_BYTES + 1), 0, "", LIMITS)[0]
    assert "printed" not in observe(b"x" * FLOOD_BYTES, 0, "", LIMITS)[0]
