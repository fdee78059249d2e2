"""What a user can choose about views."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from vlpipe.derive.spans import KINDS, Kind
from vlpipe.foundation.config import Config

View = Literal["core", "paraphrase", "back_translation", "deletion"]
WRITTEN = ("paraphrase", "back_translation")  # by a language model


class ViewsConfig(Config):
    """Which views to make, and what they must keep to."""

    views: list[View] = Field(default=["core"], min_length=1)
    seed: int = Field(default=0, ge=0)
    shares: list[float] = Field(default=[0.1, 0.3, 0.5, 0.7], min_length=1)  # of deletion, in whole per cents
    delete: list[Kind] = Field(default=list(KINDS), min_length=1)  # of deletion: what
    spans: Literal["tagger", "model"] = "tagger"  # of deletion: who finds what there is to delete
    tries: int = Field(default=3, ge=1)  # of the model, before a core-only view stands in
    min_words: int = Field(default=5, ge=1)
    max_words: int = Field(default=30, ge=1)
    min_cosine: float = Field(default=0.25, ge=-1, le=1)

    @field_validator("shares")
    @classmethod
    def _per_cents(cls, shares: list[float]) -> list[float]:
        if any(not 0 < share <= 1 or abs(100 * share - round(100 * share)) > 1e-9 for share in shares):
            raise ValueError("expected whole per cents above 0 and up to 1, for example 0.3")
        return shares

    @field_validator("views", "delete", "shares")
    @classmethod
    def _once(cls, values: list[Any]) -> list[Any]:
        if len(set(values)) < len(values):
            raise ValueError("a value stands twice")
        return values

    @property
    def needs_model(self) -> list[str]:
        """What only a language model can do, of what is asked."""
        asked = [f"view '{name}'" for name in self.views if name in WRITTEN]
        return asked + (["spans = 'model'"] if self.spans == "model" and "deletion" in self.views else [])


def deletion_name(kind: Kind, share: float) -> str:
    """`delete-counts-30`: the view of one kind and share of deletion."""
    return f"delete-{kind}-{round(100 * share)}"
