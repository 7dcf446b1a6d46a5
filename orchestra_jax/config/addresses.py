"""Addresses among the settings; loaded for a config that has one."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit


def wanted_address(value: str, rule: Mapping[str, Any]) -> str | None:
    """Return the kind of address that the rule of a field asks for, or None if the text is one."""
    wants_url = rule.get("url")
    if wants_url and not is_url(value) and (wants_url != "if http" or value.startswith("http:")):
        return "an address such as http://HOST:PORT"
    if rule.get("address") and not _parts(f"http://{value}", port=True):
        return "HOST:PORT"
    return None


def is_url(value: str) -> bool:
    """Return whether a text is an http address that can be taken apart."""
    return value.startswith(("http://", "https://")) and _parts(value)


def _parts(url: str, port: bool = False) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.port is not None or not port)
    except ValueError:  # a bracket that stays open, or no port that there is
        return False
