"""Load the price list that a run pays by."""

from dataclasses import replace

from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.config.schema import PricingConfig
from orchestra_jax.money.prices import POLICY, Price, PriceList

# The generated world prices its tools per call on the menu of every instance; these cost nothing where it does not.
_FREE = dict.fromkeys((POLICY, "python", "local_search"), Price())
QUICKSTART = PriceList("quickstart", "2026-11-20", "generated world, no real prices", _FREE)


def paid_prices(pricing: PricingConfig) -> PriceList:
    """Return the list that is really paid. "orchestrator" in it is the price of the policy's own tokens.

    Raises:
        ConfigError: the list is not there or broken, or has no price for the policy.
    """
    return with_policy(load_prices("pricing.name", pricing.name), pricing)


def load_prices(key: str, name: str) -> PriceList:
    """Return the list of a name, which the setting `key` gives; raise ConfigError if it is not there or broken."""
    if name == QUICKSTART.id:
        return QUICKSTART
    from orchestra_jax.money.price_files import named

    return named(key, name)


def with_policy(prices: PriceList, pricing: PricingConfig) -> PriceList:
    """Return the list with the entry "orchestrator": the configured price, or the list's own for that model."""
    listed = prices.entries.get(pricing.orchestrator)
    given = pricing.orchestrator_input, pricing.orchestrator_output
    if None in given and listed is None:
        raise ConfigError(
            f"Price list {prices.id!r} has no price for the policy, {pricing.orchestrator}: set "
            "pricing.orchestrator=NAME, or pricing.orchestrator_input and pricing.orchestrator_output."
        )
    price = listed or Price()
    cached_given = given[0] is not None or pricing.orchestrator_cached_input is not None
    price = replace(
        price,
        input=price.input if given[0] is None else given[0],
        output=price.output if given[1] is None else given[1],
        cached_input=pricing.orchestrator_cached_input if cached_given else price.cached_input,
    )
    return replace(prices, entries={**prices.entries, POLICY: price})
