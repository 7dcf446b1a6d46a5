"""Facts about models: conf/models.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from orchestra_jax.io.foreign_yaml import read_yaml
from orchestra_jax.io.shipped import CONF
from orchestra_jax.types import MADE_BY, OPEN_WEIGHTS

CARDS = CONF / "models.yaml"


@dataclass(frozen=True)
class ModelCard:
    """Facts of one model.

    Attributes:
        open_weights: True if anybody can run it.
        about: strengths and weaknesses for a menu, without name and price.
        api: fields of `expert.Expert` that its endpoint needs.
    """

    maker: str
    open_weights: bool
    about: str
    api: Mapping[str, Any] = field(default_factory=dict)

    @property
    def traits(self) -> tuple[str, ...]:
        """Traits for which a user may prefer the model."""
        return (MADE_BY + self.maker, OPEN_WEIGHTS) if self.open_weights else (MADE_BY + self.maker,)

    @property
    def origin(self) -> str:
        """Maker and weights in words."""
        return f"Made by {self.maker}, {'open' if self.open_weights else 'closed'} weights."


@cache
def model_cards() -> Mapping[str, ModelCard]:
    """Read the cards, by the models' names in price lists."""
    return {str(name): ModelCard(**card) for name, card in read_yaml(CARDS)["models"].items()}


def api_fields(model: str) -> Mapping[str, Any]:
    """Return the fields of `Expert` that a model's endpoint needs; none for a model without a card."""
    card = model_cards().get(model)
    return card.api if card else {}
