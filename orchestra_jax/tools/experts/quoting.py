"""Outside text within a prompt: it can neither play a chat template's control tokens nor leave its quotation.

Servers render messages with their model's chat template, and a control string in a message becomes a control token
there: text that holds one could end its own message and open another. `neutralise` breaks such strings up as
`rollout.chat` does for the policy. `Quotation` sets text apart from a prompt's own words.
"""

import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence

# The families of Qwen, Llama, Mistral, Gemma, DeepSeek, GLM, Phi and their kin; a model's own list comes on top.
_FAMILIES = (
    r"<[|｜][^\s<>]{1,64}?[|｜]>|<</?SYS>>|</?s>|<(?:bos|eos|pad|unk|sop|eop)>|</?(?:start|end)_of_(?:turn|image)>"
    r"|</?(?:think|tool_call|tool_response)>|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS"
    r"|TOOL_CONTENT|ARGS|CALL_ID|THINK|IMG|IMG_BREAK|IMG_END|gMASK|sMASK|MASK)\]"
)
# What no reader sees, and what turns the order of what is seen around.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
_EDGE = "| "
_MOST_LINES = 200  # of a quotation
_LEFT_OUT = "[... lines left out ...]"


class Neutraliser:
    """Writes a space after the first character of every control string, so that it stays readable and is none.

    Args:
        tokens: control strings of the model's own tokenizer, where it is known.
    """

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        own = sorted({token for token in tokens if len(token) > 1}, key=len, reverse=True)
        self._control = re.compile("|".join([*map(re.escape, own), _FAMILIES]))

    def __call__(self, text: str) -> str:
        return self._control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)


class Quotation:
    """Texts under headings, each line of them behind "| ", and each heading behind a mark that stands in none of them.

    So no line of a text begins like one of ours, whatever is in it. The same texts have the same mark: a record of the
    prompt finds it again.

    Attributes:
        mark: a word in square brackets.

    Args:
        texts: all that is quoted with it.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        for number in itertools.count():
            data = repr((number, *texts)).encode("utf-8", "surrogatepass")
            self.mark = f"[{hashlib.blake2b(data, digest_size=6).hexdigest()}]"
            if not any(self.mark[1:-1] in text for text in texts):
                break

    def part(self, heading: str, text: str) -> str:
        """Return a text under its heading; runs of empty lines become one, and the middle of many lines is left out."""
        lines = list[str]()
        for line in _UNSEEN.sub("", text).splitlines():
            if line.strip() or (lines and lines[-1].strip()):
                lines.append(line)
        if len(lines) > _MOST_LINES:
            half = _MOST_LINES // 2
            lines = [*lines[:half], _LEFT_OUT, *lines[-half:]]
        return "\n".join([f"{self.mark} {heading}", *(_EDGE + line for line in lines or [""])])
