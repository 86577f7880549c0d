"""Index from provider IDs to object names."""

from __future__ import annotations


class ProviderIdIndex:
    """Names of the objects that carry a provider ID, normally one. Of several, the first by name counts."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}

    def add(self, provider_id: str, name: str) -> None:
        """Record that an object carries the provider ID."""
        if provider_id:
            self._names.setdefault(provider_id, set()).add(name)

    def discard(self, provider_id: str, name: str) -> None:
        """Remove an object from a provider ID."""
        names = self._names.get(provider_id, set())
        names.discard(name)
        if not names:
            self._names.pop(provider_id, None)

    def first(self, provider_id: str) -> str:
        """The first name, empty when there is none."""
        return min(self._names.get(provider_id, ()), default="")

    def names_of(self, provider_id: str) -> list[str]:
        """All names, sorted."""
        return sorted(self._names.get(provider_id, ()))
