"""What the bytes of an API server mean: objects, pages of lists, watch events, refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

import msgspec

from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube import errors
from karpenter.kube.protocol import EventType, Listing, Rejected, WatchEvent

T = TypeVar("T", bound=Wire)

_TOO_OLD = frozenset({"Expired", "Gone"})
_LONGEST_TEXT = 300


class _HasMetadata(Protocol):
    @property
    def metadata(self) -> ObjectMeta: ...


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    following: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct):
    items: tuple[msgspec.Raw, ...] | None = None
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct):
    metadata: _ListMeta


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: errors.Details | None = None


_LIST = msgspec.json.Decoder(_List)
_LINE = msgspec.json.Decoder(_Line)
_BOOKMARK = msgspec.json.Decoder(_Bookmark)
_STATUS = msgspec.json.Decoder(_Status)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list; ``following`` is the token of the next one, empty at the end."""

    listing: Listing[T]
    following: str


def metadata(obj: Wire) -> ObjectMeta:
    """The metadata every object of a kind has."""
    return cast(_HasMetadata, obj).metadata


def one(kind: Kind[T], data: bytes) -> T:
    """One object. Raises ``errors.Invalid`` when it does not decode: asking again would not help."""
    try:
        return kind.decode(data)
    except msgspec.MsgspecError as error:
        bad = _rejected(kind, data, error)
        raise errors.Invalid(f"{kind.name} {bad.name} cannot be read: {error}", reason="Undecodable") from error


def page(kind: Kind[T], data: bytes) -> Page[T]:
    """One page of a list, its undecodable objects apart. Raises ``errors.Unavailable`` when it is no list at all."""
    found = _list(kind, data)
    return Page(_listing(kind, found.items or (), found.metadata), found.metadata.following)


def pieces(kind: Kind[T], data: bytes, size: int) -> Iterator[Listing[T]]:
    """A whole list, ``size`` objects at a time: decoding thousands at once would hold up everything else. Raises as ``page``."""
    found = _list(kind, data)
    items = found.items or ()
    for start in range(0, max(1, len(items)), size):
        yield _listing(kind, items[start : start + size], found.metadata)


def joined(parts: Sequence[Listing[T]]) -> Listing[T]:
    """One list of its parts, of which there is at least one."""
    items = tuple(item for part in parts for item in part.items)
    rejected = tuple(bad for part in parts for bad in part.rejected)
    return Listing(items, parts[0].resource_version, rejected)


def _list(kind: Kind[T], data: bytes) -> _List:
    try:
        return _LIST.decode(data)
    except msgspec.MsgspecError as error:
        raise errors.Unavailable(f"the answer to a list of {kind.plural} is no list: {error}") from error


def _listing(kind: Kind[T], raws: Sequence[msgspec.Raw], meta: _ListMeta) -> Listing[T]:
    items: list[T] = []
    rejected: list[Rejected] = []
    for raw in raws:
        # Copied out of the page, since fields kept undecoded would otherwise keep all of it in memory.
        _sort(kind, bytes(raw), items, rejected)
    return Listing(tuple(items), meta.resource_version, tuple(rejected))


def _sort(kind: Kind[T], data: bytes, items: list[T], rejected: list[Rejected]) -> None:
    try:
        items.append(kind.decode(data))
    except msgspec.MsgspecError as error:
        rejected.append(_rejected(kind, data, error))


def event(kind: Kind[T], line: bytes) -> WatchEvent[T]:
    """One line of a watch. Raises ``errors.KubeError`` for an error the server reports in the stream (410: ``Gone``)."""
    try:
        found = _LINE.decode(line)
        if found.type == "ERROR":
            raise refusal(kind, 0, bytes(found.object))
        change = EventType(found.type)
        if change is EventType.BOOKMARK:
            return WatchEvent(change, _BOOKMARK.decode(found.object).metadata.resource_version)
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.Unavailable(f"a watch of {kind.plural} sent a line that is no event: {error}") from error
    return _change(kind, change, bytes(found.object))


def _change(kind: Kind[T], change: EventType, data: bytes) -> WatchEvent[T]:
    try:
        obj = kind.decode(data)
    except msgspec.MsgspecError as error:
        bad = _rejected(kind, data, error)
        return WatchEvent(change, _text(_loose_metadata(data), "resourceVersion"), None, bad)
    return WatchEvent(change, metadata(obj).resource_version, obj)


def refusal(kind: Kind[T], http_status: int, body: bytes, retry_after_seconds: float | None = None) -> errors.KubeError:
    """The error for an answer that is not a success; ``http_status`` 0 takes the code out of the body."""
    try:
        status = _STATUS.decode(body)
    except msgspec.MsgspecError:
        return _plain(kind, http_status, body)
    if status.reason in _TOO_OLD:
        return errors.Gone(status.message, status=410, reason=status.reason)
    details = status.details or errors.Details()
    if retry_after_seconds is None:
        retry_after_seconds = details.retry_after_seconds
    code = http_status or status.code
    message = status.message or f"HTTP status {code}"
    error = errors.from_status(code, status.reason, message, retry_after_seconds=retry_after_seconds)
    error.details = details
    return error


def _plain(kind: Kind[T], http_status: int, body: bytes) -> errors.KubeError:
    """No Status object: a proxy spoke, or the server does not know the path, hence not the kind."""
    if http_status == 404:
        return errors.not_served(kind.plural, kind.api_version)
    text = " ".join(body.decode(errors="replace").split())[:_LONGEST_TEXT]
    return errors.from_status(http_status, "", text or f"HTTP status {http_status}")


def _rejected(kind: Kind[T], data: bytes, error: Exception) -> Rejected:
    loose = _loose_metadata(data)
    return Rejected(kind.name, _text(loose, "namespace"), _text(loose, "name"), str(error))


def _loose_metadata(data: bytes) -> dict[object, object]:
    """The metadata of an object that does not decode, as far as it is there."""
    try:
        found = msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return {}
    loose = found.get("metadata") if isinstance(found, dict) else None
    return loose if isinstance(loose, dict) else {}


def _text(loose: dict[object, object], key: str) -> str:
    value = loose.get(key)
    return value if isinstance(value, str) else ""
