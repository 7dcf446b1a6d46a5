"""Price lists in the files of conf/pricing; loaded by a run that names one."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.io.foreign_yaml import read_yaml
from orchestra_jax.io.shipped import CONF
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.money.prices import Price, PriceList

PRICES = CONF / "pricing"


def from_config(config: Mapping[str, Any]) -> PriceList:
    """Read {id, date, source, entries: {name: {input, cached_input, output, call, second}}, latencies: {...}}.

    Raises:
        ValueError: an unknown or missing key, or a price that is negative or no number.
    """
    keys = {"id", "date", "source", "entries"}
    if set(config) - {"latencies"} != keys:
        raise ValueError(f"A price list has the keys {sorted(keys)}, not {sorted(config)}.")
    entries, latencies = config["entries"], config.get("latencies") or {}
    for key, groups, noun, unit in (
        ("entries", entries, "Price", "a number of dollars"),
        ("latencies", latencies, "Latency", "seconds"),
    ):
        if not isinstance(groups, Mapping) or not all(isinstance(group, Mapping) for group in groups.values()):
            raise ValueError(f"{key} of a price list must be names with fields, NAME: {{FIELD: NUMBER}}.")
        if odd := [name for name, group in groups.items() if not all(isinstance(k, str) for k in (name, *group))]:
            raise ValueError(f"{key} of a price list has {odd[0]!r}, where a name or a field is no text.")
        for name, group in groups.items():
            if key == "entries" and (unknown := sorted(set(group) - set(Price.__dataclass_fields__))):
                raise ValueError(f"Price of {name!r} has the unknown key {unknown[0]!r}.")
            for entry, value in group.items():
                if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                    found = json.dumps(value, default=str)
                    raise ValueError(f"{noun} {entry}={found} of {name!r} must be {unit} >= 0.")
    texts = {key: str(config[key]) for key in ("id", "date", "source")}
    return PriceList(**texts, entries={name: Price(**group) for name, group in entries.items()}, latencies=latencies)


def load(path: str | Path, within: tuple[str, ...] = ()) -> PriceList:
    """Read a file of conf/pricing. `base: NAME` in it completes it with the list NAME of the same folder.

    `within` names the lists that this one is a base of.

    Raises:
        FileNotFoundError: no such file.
        ValueError: see `from_config`; the message names the file.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"No price list at {str(file)!r}; conf/pricing holds those that come with us.")
    try:
        config = read_yaml(file)
    except Unreadable as error:
        raise ValueError(f"{file.name}: {error}.") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file.name}: a price list is a mapping.")
    base = config.pop("base", None)
    try:
        prices = from_config({str(key): value for key, value in config.items()})
    except ValueError as error:
        raise ValueError(f"{file.name}: {error}") from None
    if base is None:
        return prices
    if str(base) in (chain := (*within, file.stem)):
        raise ValueError(f"{file.name}: base: {base} leads back to this list; name another one, or none.")
    return completed(prices, load(file.with_name(f"{base}.yaml"), chain))


def completed(prices: PriceList, base: PriceList) -> PriceList:
    """Return a list, completed by entries of `base` that it lacks; the id names both."""
    entries = {**base.entries, **prices.entries}
    latencies = {**base.latencies, **prices.latencies}
    both = {"id": f"{prices.id}+{base.id}", "source": f"{prices.source}; else {base.source}"}
    return replace(prices, **both, entries=entries, latencies=latencies)


def named(key: str, name: str) -> PriceList:
    """Return the list of a name, which the setting `key` gives; raise ConfigError if it is not there or broken."""
    file = PRICES / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in PRICES.glob("*.yaml")))
        raise ConfigError(f"{key}={name} is no price list: use one of {known}.")
    try:
        return load(file)
    except (OSError, ValueError) as error:  # the former of the list that it names as its base
        raise ConfigError(str(error)) from error
