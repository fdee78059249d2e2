"""What decides a feature's value besides the item itself, as named texts that can be compared field by field."""

from __future__ import annotations

from collections.abc import Mapping

Fingerprint = Mapping[str, str]


def differences(cached: Fingerprint, asked: Fingerprint) -> list[str]:
    """One text per differing field, by name: "precision: cached 'float16', asked 'float32'"."""

    def shown(side: Fingerprint, field: str) -> str:
        return f"'{side[field]}'" if field in side else "nothing"

    return [
        f"{field}: cached {shown(cached, field)}, asked {shown(asked, field)}"
        for field in sorted({*cached, *asked})
        if cached.get(field) != asked.get(field)
    ]
