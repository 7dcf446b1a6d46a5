"""An expert: a model behind an endpoint, with its limits; and the file that lists several."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestra_jax.config.addresses import is_url
from orchestra_jax.config.checks import wrong_values
from orchestra_jax.config.ranges import shown
from orchestra_jax.io.foreign_yaml import read_yaml
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.money.store import CANONICAL
from orchestra_jax.tools.experts.cards import api_fields

_MAX_TOKENS = ("max_tokens", "max_completion_tokens")
_OWN = ("max_tokens", "model", "temperature")
# Set by the client, a part of a record's key, or answered in a form or number that is not the one reserved and read.
_RESERVED = {
    *_MAX_TOKENS,
    *_OWN,
    "messages",
    "stop",
    "response_format",
    "expert",
    "role",
    "sample",
    "n",
    "best_of",
    "stream",
    "stream_options",
    "max_new_tokens",
    "max_output_tokens",
}


@dataclass(frozen=True)
class Expert:
    """One model behind an OpenAI-compatible endpoint.

    Attributes:
        name: its entry of the price list, and its name in ledgers.
        base_url: of the server, such as "https://api.openai.com/v1".
        api_key_env: the environment variable with the key; None for servers that want none.
        context_tokens: prompt and completion together; longer prompts are cut.
        max_tokens: most completion tokens of a call, reasoning included.
        temperature: None where the model takes none.
        timeout_s: how long a caller waits for one request.
        retries: most further requests after a status 429 or 5xx, or a broken connection; see `PaidCalls`.
        concurrency: requests under way at once, for all experts of this server together.
        requests_per_minute: the same for their rate; None for no limit.
        tokenizer: path of the model's tokenizer.json or its folder. Without it prompts are counted by a third of
            their characters, and reserved in budgets by their bytes.
        max_tokens_field: "max_completion_tokens" for OpenAI's reasoning models.
        extra: further fields of the request, such as {"reasoning_effort": "low"}; none that the client sets itself,
            and none that makes a call bill more than `max_tokens`.

    Raises:
        ValueError: a field that makes no sense, one sentence.
    """

    name: str
    model: str
    base_url: str
    api_key_env: str | None = None
    context_tokens: int = 32768
    max_tokens: int = 4096
    temperature: float | None = 0.0
    timeout_s: float = 300.0
    retries: int = 4
    concurrency: int = 32
    requests_per_minute: float | None = None
    tokenizer: str | None = None
    max_tokens_field: str = "max_tokens"
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_url(self.base_url):
            raise ValueError(
                f"base_url of expert {self.name!r} must be a URL such as https://api.openai.com/v1, not "
                f"{self.base_url!r}."
            )
        parts = urlsplit(self.base_url)
        if parts.username or parts.password or parts.query:
            raise ValueError(f"base_url of expert {self.name!r} holds more than an address; keys go into api_key_env.")
        if not 0 < self.max_tokens < self.context_tokens:
            raise ValueError(
                f"Expert {self.name!r} has max_tokens={self.max_tokens} and context_tokens={self.context_tokens}; the "
                "answer must leave room for a question."
            )
        if not 0 < self.timeout_s < math.inf or self.retries < 0:
            raise ValueError(f"Expert {self.name!r} needs timeout_s > 0 and retries >= 0.")
        if self.max_tokens_field not in _MAX_TOKENS:
            known = " or ".join(_MAX_TOKENS)
            raise ValueError(f"max_tokens_field of expert {self.name!r} is {known}, not {self.max_tokens_field!r}.")
        self._check_extra()

    def _check_extra(self) -> None:
        """Raise ValueError if `extra` is no JSON, or sets a field that decides bill, record or form of the answer."""
        try:
            CANONICAL.encode(self.extra)
            taken = sorted(_RESERVED & self.extra.keys())
        except (TypeError, ValueError, AttributeError):
            raise ValueError(f"extra of expert {self.name!r} must be JSON: fields of the request by name.") from None
        if taken:
            fix = f"set the expert's own {taken[0]}" if taken[0] in _OWN else "leave it out"
            raise ValueError(f"extra of expert {self.name!r} may not set {taken[0]}, which the client sets; {fix}.")

    @property
    def provider(self) -> str:
        """Address of the server, whose experts share its limits."""
        return self.base_url.rstrip("/")


_FIELDS = list(Expert.__dataclass_fields__)


def read_experts(path: str | Path) -> list[Expert]:
    """Read a YAML file: {defaults: {field: value}, experts: {name: {field: value}}} with the fields of `Expert`.

    What the file leaves out is as conf/models.yaml has it for a model of this name.

    Raises:
        FileNotFoundError: no such file.
        ValueError: an unknown or missing field, or one that makes no sense.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"No file of experts at {str(file)!r}; docs/descriptions.md shows one.")
    try:
        config = read_yaml(file)
    except Unreadable as error:
        raise ValueError(f"{file.name}: {error}.") from None
    if not isinstance(config, dict) or not isinstance(config.get("experts"), dict):
        raise ValueError(f"{file.name}: a file of experts has the key experts, and may have defaults.")
    defaults, experts = config.get("defaults") or {}, []
    for name, fields in config["experts"].items():
        for key, group in (("defaults", defaults), (f"experts.{shown(name)}", fields or {})):
            if not isinstance(name, str) or not isinstance(group, dict) or not all(isinstance(k, str) for k in group):
                raise ValueError(f"{file.name}: {key} must be a name with fields, NAME: {{FIELD: VALUE}}.")
            if odd := [each for each in group if each not in _FIELDS]:
                near = get_close_matches(odd[0], _FIELDS, n=1)
                hint = f"did you mean {near[0]}?" if near else f"an expert has {', '.join(_FIELDS)}."
                raise ValueError(f"{file.name}: {key} has the unknown field {shown(odd[0])}: {hint}")
        given = {"name": name, "model": name, **api_fields(name), **defaults, **(fields or {})}
        if wrong := next(wrong_values(f"experts.{shown(name)}", given, Expert, {}), None):
            raise ValueError(f"{file.name}: {wrong}")
        if "base_url" not in given:
            raise ValueError(f"{file.name}: experts.{shown(name)} has no base_url, the address of its server: add it.")
        try:
            experts.append(Expert(**given))
        except ValueError as error:
            raise ValueError(f"{file.name}: {error}") from None
    return experts
