"""Reading kinds that a cluster may do without: one the server does not serve is a kind without objects.

An informer over such a reader is in step at once instead of waiting for ever, and finds the kind when it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.kube.errors import KIND_NOT_SERVED, Gone, NotFound
from karpenter.kube.protocol import Listing, Reader, WatchEvent, pages_of

T = TypeVar("T", bound=Wire)

#: Pause between two checks of whether the server serves a kind.
_RECHECK_SECONDS = 60.0


class OptionalKindsReader:
    """Another reader, but for kinds that are not served: those have no objects and no events."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """One object; ``NotFound`` also where there are none of its kind."""
        return await self._reader.get(kind, name, namespace)

    async def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        """All objects."""
        try:
            return await self._reader.list(
                kind, namespace, label_selector=label_selector, field_selector=field_selector
            )
        except NotFound as error:
            return _empty_listing(error)

    async def pages(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncIterator[Listing[T]]:
        """All objects page by page, where the reader can do that."""
        selectors = {"label_selector": label_selector, "field_selector": field_selector}
        try:
            async for page in pages_of(self._reader, kind, namespace, **selectors):
                yield page
        except NotFound as error:
            yield _empty_listing(error)

    async def watch(
        self,
        kind: Kind[T],
        resource_version: str,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent[T]]:
        """Changes; where the kind is not served, silence for a while and then ``Gone``, so that it is listed again."""
        events = self._reader.watch(
            kind, resource_version, namespace, label_selector=label_selector, field_selector=field_selector
        )
        try:
            async for event in events:
                yield event
        except NotFound as error:
            _empty_listing(error)
            await asyncio.sleep(_RECHECK_SECONDS)
            raise Gone(str(error), status=error.status, reason=error.reason) from error


def _empty_listing(error: NotFound) -> Listing[T]:
    """The empty list, if it is the kind that is missing; any other error is raised again."""
    if error.reason != KIND_NOT_SERVED:
        raise error
    return Listing((), "")
