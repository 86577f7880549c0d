"""Reading kinds in the newest of their versions that the server serves, where the structs of all versions are the same.

A version that is found is kept for watches until the next list, which begins with the newest again: so an upgrade of the API
server is followed at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.kube.errors import KIND_NOT_SERVED, Gone, NotFound
from karpenter.kube.protocol import Listing, Reader, WatchEvent, pages_of

T = TypeVar("T", bound=Wire)


class VersionFallbackReader:
    """Another reader, which falls back to older versions of a kind; ``older_versions`` from the newest on."""

    def __init__(self, reader: Reader, older_versions: Sequence[str]) -> None:
        self._reader = reader
        self._older_versions = tuple(older_versions)
        #: The version that the last list found, by plural name.
        self._served: dict[str, str] = {}

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """One object, in the newest version that is served."""
        for each in self._versions_of(kind):
            try:
                return await self._reader.get(each, name, namespace)
            except NotFound as error:
                last = _only_if_not_served(error)
        raise last

    async def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        """All objects."""
        for each in self._versions_of(kind):
            try:
                listing = await self._reader.list(
                    each, namespace, label_selector=label_selector, field_selector=field_selector
                )
            except NotFound as error:
                last = _only_if_not_served(error)
            else:
                self._served[kind.plural] = each.version
                return listing
        raise last

    async def pages(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncIterator[Listing[T]]:
        """All objects page by page, where the reader can do that."""
        selectors = {"label_selector": label_selector, "field_selector": field_selector}
        for each in self._versions_of(kind):
            try:
                async for page in pages_of(self._reader, each, namespace, **selectors):
                    self._served[kind.plural] = each.version
                    yield page
            except NotFound as error:
                last = _only_if_not_served(error)
            else:
                return
        raise last

    async def watch(
        self,
        kind: Kind[T],
        resource_version: str,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent[T]]:
        """Changes in the version of the last list; ``Gone`` once an older version is not served any more."""
        version = self._served.get(kind.plural, kind.version)
        events = self._reader.watch(
            replace(kind, version=version),
            resource_version,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
        )
        try:
            async for event in events:
                yield event
        except NotFound as error:
            if version == kind.version:
                raise
            _only_if_not_served(error)
            raise Gone(str(error), status=error.status, reason=error.reason) from error

    def _versions_of(self, kind: Kind[T]) -> Iterator[Kind[T]]:
        yield kind
        for version in self._older_versions:
            yield replace(kind, version=version)


def _only_if_not_served(error: NotFound) -> NotFound:
    """The error, if the version of the kind is what is missing; any other error is raised again."""
    if error.reason != KIND_NOT_SERVED:
        raise error
    return error
