"""Errors of the OpenAI API, and the checks of a request's fields that raise them."""

from collections.abc import Iterable, Mapping
from typing import Any

from orchestra_jax.io.foreign_json import MOST_BYTES, read_json
from orchestra_jax.io.untrusted import Unreadable


class RequestError(Exception):
    """A request that is not answered.

    Attributes:
        code: what programs tell errors apart by.
        retry_s: seconds after which to try again.
        request: id of the request, where it was asked; feedback may name it.
    """

    request: str | None = None

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        kind: str = "invalid_request_error",
        retry_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.code, self.param, self.retry_s = status, kind, code, param, retry_s

    @property
    def body(self) -> dict[str, Any]:
        """Body of the response."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}


def read_body(content: bytes, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Return the JSON object of a request's body; raise RequestError: it is none, or longer."""
    try:
        body = read_json(content, most_bytes)
    except Unreadable as error:
        raise RequestError(400, f"The body is no JSON that can be read: {error}.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise RequestError(400, "The body must be a JSON object.", code="invalid_json")
    return body


def no_model(name: str, known: Iterable[str]) -> RequestError:
    """Return the error of a model that is not here."""
    words = f"There is no model {name!r} here; here are {', '.join(known)}."
    return RequestError(404, words, param="model", code="model_not_found")


def typed(body: Mapping[str, Any], key: str, kind: type, words: str, above: str = "") -> Any:
    """Return a field of a request, None if it has none.

    Args:
        kind: type that it has to have.
        words: how an error names the type.
        above: how an error names the place of `body`, such as "orchestra.".

    Raises:
        RequestError: it has another type.
    """
    value = body.get(key)
    if value is not None and type(value) is not kind:  # true is no whole number
        raise wrong(f"{above}{key}", words)
    return value


def wrong(param: str, words: str) -> RequestError:
    """Return the error of a field that must be something else."""
    return RequestError(400, f"{param} must be {words}.", param=param, code="invalid_value")


def unsupported(param: str, why: str) -> RequestError:
    """Return the error of a field that is not heeded here."""
    return RequestError(400, f"{param} is not supported: {why}.", param=param, code="unsupported_parameter")
