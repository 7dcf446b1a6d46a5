"""Dicts and lists that refuse to be changed, and one text for equal JSON values.

A database is shared by all episodes, so nobody may change it by mistake. A frozen value reads at the speed of a plain
one, equals it and is written by `json`; only a change of it is an error.
"""

import hashlib
import json
import math
from typing import Any, NoReturn

DECIMALS = 6  # sums of money in another order differ in the last bits only


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise TypeError("This entry is shared by all episodes: change what `edit` of the transaction gives.")


class FrozenDict(dict[str, Any]):
    """A dict that raises TypeError when it is changed; a deep copy of it is plain."""

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        return {key: thaw(value) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return freeze, (thaw(self),)


class FrozenList(list[Any]):
    """A list that raises TypeError when it is changed; a deep copy of it is plain."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __deepcopy__(self, memo: Any) -> list[Any]:
        return [thaw(value) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return freeze, (thaw(self),)


def freeze(value: Any) -> Any:
    """Return the JSON value with frozen dicts and lists, a tuple as a list; frozen values are taken as they are.

    Raises:
        TypeError: a key is no text, or a value is none of JSON's.
        ValueError: a number is infinite or not a number.
    """
    kind = type(value)
    if value is None or kind in (str, int, bool, FrozenDict, FrozenList):
        return value
    if kind is float:
        if not math.isfinite(value):
            raise ValueError(f"A database holds finite numbers, not {value}.")
        return value
    if isinstance(value, dict):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"A key of a database must be text, not {wrong[0]!r}.")
        return FrozenDict({key: freeze(each) for key, each in value.items()})
    if isinstance(value, list | tuple):
        return FrozenList([freeze(each) for each in value])
    raise TypeError(f"A database holds JSON values, not {kind.__name__}: {value!r:.60}.")


def thaw(value: Any) -> Any:
    """Return a plain copy that shares nothing with the value and may be changed."""
    if isinstance(value, dict):
        return {key: thaw(each) for key, each in value.items()}
    if isinstance(value, list):
        return [thaw(each) for each in value]
    return value


def canonical(value: Any) -> str:
    """Return one text for JSON values of one meaning: 2 equals 2.0, and 0.1 + 0.2 equals 0.3; order in lists counts."""
    return json.dumps(_plain_numbers(value), sort_keys=True, separators=(",", ":"))


def digest(text: str) -> bytes:
    """Return a hash of the text in 16 bytes."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, float):
        near = round(value, DECIMALS)
        return int(near) if near.is_integer() else near
    if isinstance(value, dict):
        return {key: _plain_numbers(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_numbers(each) for each in value]
    return value
