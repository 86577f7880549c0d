"""The API server as the other packages use it, in three protocols, so that a function depends only on what it uses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeVar, runtime_checkable

from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire

T = TypeVar("T", bound=Wire)

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
JsonObject = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class UndecodableObject:
    """An object that did not decode: which one and why. The rest of its list is unaffected."""

    kind: str
    namespace: str
    name: str
    error: str


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A consistent list and the point in time (``resource_version``) a watch can continue from."""

    items: tuple[T, ...]
    resource_version: str
    undecodable: tuple[UndecodableObject, ...] = ()


class WatchEventType(StrEnum):
    """Kinds of watch events."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One change. ``object`` is None for a bookmark and for an object that did not decode (then ``undecodable`` says why)."""

    type: WatchEventType
    resource_version: str
    object: T | None = None
    undecodable: UndecodableObject | None = None


class Reader(Protocol):
    """Reading and watching. All methods raise ``errors.KubeError``."""

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """One object; ``NotFound`` if it does not exist."""

    async def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        """All objects, paged underneath; an object that does not decode is reported in ``undecodable``."""

    def watch(
        self,
        kind: Kind[T],
        resource_version: str,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent[T]]:
        """Changes after ``resource_version``, in order, bookmarks included.

        The first event is a bookmark of ``resource_version`` itself, given as soon as the server has accepted the watch:
        a watch may be open for minutes before there is an event, and until then a hanging watch would look the same.
        Ends silently when the server closes the stream (call again with the last version seen); raises ``Gone`` when the
        version is too old.
        """


@runtime_checkable
class PagedReader(Protocol):
    """A reader that can return a list page by page. A caller that keeps only part of the list needs no memory for all of it."""

    def pages(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncIterator[Listing[T]]:
        """The pages of one consistent list, each with the list's version.

        Raises ``Gone`` when the server has forgotten that version half-way: what came so far is then no list. ``KubeError`` else.
        """


async def pages_of(
    reader: Reader, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
) -> AsyncIterator[Listing[T]]:
    """The pages of a list; the whole list where the reader has no pages. Raises what the reader raises."""
    if not isinstance(reader, PagedReader):
        yield await reader.list(kind, namespace, label_selector=label_selector, field_selector=field_selector)
        return
    async for page in reader.pages(kind, namespace, label_selector=label_selector, field_selector=field_selector):
        yield page


class Writer(Protocol):
    """Creating, changing and deleting. All methods raise ``errors.KubeError``."""

    async def create(self, kind: Kind[T], obj: T) -> T:
        """Store a new object, in the namespace its metadata names; ``AlreadyExists`` if the name is taken."""

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: JsonObject,
        namespace: str = "",
        *,
        subresource: str = "",
        resource_version: str = "",
    ) -> T:
        """JSON merge patch of the object or one of its subresources (``status``).

        With ``resource_version`` the patch applies only to that version, else ``Conflict``.
        """

    async def delete(
        self, kind: Kind[T], name: str, namespace: str = "", *, uid: str = "", grace_period_seconds: int | None = None
    ) -> None:
        """Delete; finalizers and grace period may keep the object a while. ``uid`` is a precondition (``Conflict``)."""


class PodSubresources(Protocol):
    """The two verbs of pods that are neither read nor write. Both raise ``errors.KubeError``."""

    async def evict(self, name: str, namespace: str, *, uid: str = "") -> None:
        """Ask for a graceful eviction; ``TooManyRequests`` when a disruption budget forbids it now."""

    async def bind(self, name: str, namespace: str, node: str) -> None:
        """Bind a pod to a node, as a scheduler does."""


class Kube(Reader, Writer, PodSubresources, Protocol):
    """All three parts."""
