"""What the bytes of an API server mean: objects, pages of lists, watch events, refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

import msgspec

from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube import errors
from karpenter.kube.protocol import Listing, UndecodableObject, WatchEvent, WatchEventType

T = TypeVar("T", bound=Wire)

_GONE_REASONS = frozenset({"Expired", "Gone"})
_MAX_MESSAGE_LENGTH = 300


class _HasMetadata(Protocol):
    @property
    def metadata(self) -> ObjectMeta: ...


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_token: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct):
    items: tuple[msgspec.Raw, ...] | None = None
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)


class _WatchLine(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct):
    metadata: _ListMeta


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: errors.StatusDetails | None = None


_LIST = msgspec.json.Decoder(_List)
_WATCH_LINE = msgspec.json.Decoder(_WatchLine)
_BOOKMARK = msgspec.json.Decoder(_Bookmark)
_STATUS = msgspec.json.Decoder(_Status)


@dataclass(frozen=True, slots=True)
class DecodedPage(Generic[T]):
    """One page of a list; ``continue_token`` is the token of the next one, empty at the end."""

    listing: Listing[T]
    continue_token: str


def metadata_of(obj: Wire) -> ObjectMeta:
    """The metadata every object of a kind has."""
    return cast(_HasMetadata, obj).metadata


def decode_object(kind: Kind[T], data: bytes) -> T:
    """One object. Raises ``errors.Invalid`` when it does not decode: asking again would not help."""
    try:
        return kind.decode(data)
    except msgspec.MsgspecError as error:
        bad = _undecodable(kind, data, error)
        raise errors.Invalid(f"{kind.name} {bad.name} cannot be read: {error}", reason="Undecodable") from error


def decode_page(kind: Kind[T], data: bytes) -> DecodedPage[T]:
    """One page of a list, its undecodable objects apart. Raises ``errors.ServerUnavailable`` when it is no list at all."""
    page = _decode_list(kind, data)
    return DecodedPage(_decode_items(kind, page.items or (), page.metadata), page.metadata.continue_token)


def decode_in_batches(kind: Kind[T], data: bytes, batch_size: int) -> Iterator[Listing[T]]:
    """A whole list, ``batch_size`` objects at a time, so that other tasks run in between. Raises as ``decode_page``."""
    page = _decode_list(kind, data)
    raw_items = page.items or ()
    for start in range(0, max(1, len(raw_items)), batch_size):
        yield _decode_items(kind, raw_items[start : start + batch_size], page.metadata)


def join_listings(listings: Sequence[Listing[T]]) -> Listing[T]:
    """One list of its parts, of which there is at least one."""
    objects = tuple(obj for part in listings for obj in part.items)
    rejected = tuple(bad for part in listings for bad in part.undecodable)
    return Listing(objects, listings[0].resource_version, rejected)


def _decode_list(kind: Kind[T], data: bytes) -> _List:
    try:
        return _LIST.decode(data)
    except msgspec.MsgspecError as error:
        raise errors.ServerUnavailable(f"the answer to a list of {kind.plural} is no list: {error}") from error


def _decode_items(kind: Kind[T], raw_items: Sequence[msgspec.Raw], meta: _ListMeta) -> Listing[T]:
    objects: list[T] = []
    rejected: list[UndecodableObject] = []
    for raw in raw_items:
        # Copied out of the page, since fields kept undecoded would otherwise keep all of it in memory.
        _decode_item(kind, bytes(raw), objects, rejected)
    return Listing(tuple(objects), meta.resource_version, tuple(rejected))


def _decode_item(kind: Kind[T], data: bytes, objects: list[T], rejected: list[UndecodableObject]) -> None:
    try:
        objects.append(kind.decode(data))
    except msgspec.MsgspecError as error:
        rejected.append(_undecodable(kind, data, error))


def decode_event(kind: Kind[T], line: bytes) -> WatchEvent[T]:
    """One line of a watch. Raises ``errors.KubeError`` for an error the server reports in the stream (410: ``Gone``)."""
    try:
        event = _WATCH_LINE.decode(line)
        if event.type == "ERROR":
            raise decode_error(kind, 0, bytes(event.object))
        change = WatchEventType(event.type)
        if change is WatchEventType.BOOKMARK:
            return WatchEvent(change, _BOOKMARK.decode(event.object).metadata.resource_version)
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.ServerUnavailable(f"a watch of {kind.plural} sent a line that is no event: {error}") from error
    return _decode_change(kind, change, bytes(event.object))


def _decode_change(kind: Kind[T], event_type: WatchEventType, data: bytes) -> WatchEvent[T]:
    try:
        obj = kind.decode(data)
    except msgspec.MsgspecError as error:
        bad = _undecodable(kind, data, error)
        return WatchEvent(event_type, _string_field(_raw_metadata(data), "resourceVersion"), None, bad)
    return WatchEvent(event_type, metadata_of(obj).resource_version, obj)


def decode_error(
    kind: Kind[T], http_status: int, body: bytes, retry_after_seconds: float | None = None
) -> errors.KubeError:
    """The error for an answer that is not a success; ``http_status`` 0 takes the code out of the body."""
    try:
        status = _STATUS.decode(body)
    except msgspec.MsgspecError:
        return _error_without_status(kind, http_status, body)
    if status.reason in _GONE_REASONS:
        return errors.Gone(status.message, status=410, reason=status.reason)
    details = status.details or errors.StatusDetails()
    if retry_after_seconds is None:
        retry_after_seconds = details.retry_after_seconds
    code = http_status or status.code
    if code == 404 and status.message.startswith(_NO_SUCH_RESOURCE):
        return errors.kind_not_served(kind.plural, kind.api_version)
    message = status.message or f"HTTP status {code}"
    error = errors.error_from_status(code, status.reason, message, retry_after_seconds=retry_after_seconds)
    error.details = details
    return error


#: What the server says of a version that it knows and does not serve, in a group that it serves.
_NO_SUCH_RESOURCE = "the server could not find the requested resource"


def _error_without_status(kind: Kind[T], http_status: int, body: bytes) -> errors.KubeError:
    """No Status object: a proxy spoke, or the server does not know the path, hence not the kind."""
    if http_status == 404:
        return errors.kind_not_served(kind.plural, kind.api_version)
    text = " ".join(body.decode(errors="replace").split())[:_MAX_MESSAGE_LENGTH]
    return errors.error_from_status(http_status, "", text or f"HTTP status {http_status}")


def _undecodable(kind: Kind[T], data: bytes, error: Exception) -> UndecodableObject:
    loose = _raw_metadata(data)
    return UndecodableObject(kind.name, _string_field(loose, "namespace"), _string_field(loose, "name"), str(error))


def _raw_metadata(data: bytes) -> dict[object, object]:
    """The metadata of an object that does not decode, as far as it is there."""
    try:
        content = msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return {}
    loose = content.get("metadata") if isinstance(content, dict) else None
    return loose if isinstance(loose, dict) else {}


def _string_field(raw_metadata: dict[object, object], key: str) -> str:
    value = raw_metadata.get(key)
    return value if isinstance(value, str) else ""
