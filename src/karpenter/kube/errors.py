"""What can go wrong between us and an API server.

KubeError
├── NotFound          the object (or the kind) does not exist
├── AlreadyExists     an object of that name does
├── Conflict          it changed since it was read, or a precondition failed: read again
├── Gone              the watch or list point is too old: list again
├── Invalid           the server rejects the content: do not retry unchanged
├── Unauthorized      credentials missing, wrong or expired
├── Forbidden         credentials lack a permission
├── TooManyRequests   asked too often, or an eviction is not possible now: wait ``retry_after_seconds``
└── ServerUnavailable no usable answer (connection, time-out, 5xx): it may have been done or not; look again, with back-off
    └── RequestNotSent no connection came about, so the server has seen nothing: anything may be repeated
"""

from __future__ import annotations

import msgspec

from karpenter.model.expected_error import ExpectedError

#: ``reason`` of a ``NotFound`` that is about the kind, not the object: its CustomResourceDefinition is not installed.
KIND_NOT_SERVED = "KindNotServed"


class StatusCause(msgspec.Struct, frozen=True, omit_defaults=True):
    """One cause of a refusal: the API's reason code, a sentence, and the field that is meant (may be empty)."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a refusal is about, as far as the server says.

    ``kind`` is the plural of the resource where an object is missing or in conflict, the kind itself where it is invalid.
    """

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: float | None = None


class KubeError(ExpectedError):
    """An API call failed. ``status`` is the HTTP status (0 when there was none), ``reason`` the API's reason code.

    ``retry_after_seconds`` is the pause the server asked for, 0 when it named none.
    """

    details = StatusDetails()
    retry_after_seconds = 0.0

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFound(KubeError):
    """The object or its kind does not exist.

    ``api_version`` is that of a kind which is not served (reason ``KIND_NOT_SERVED``), else empty.
    """

    api_version = ""


class AlreadyExists(KubeError):
    """An object of that name exists."""


class Conflict(KubeError):
    """The object changed since it was read, or a precondition failed."""


class Gone(KubeError):
    """The resource version is too old to continue from."""


class Invalid(KubeError):
    """The server rejects the content of the request."""


class Unauthorized(KubeError):
    """The credentials are missing, wrong or expired."""


class Forbidden(KubeError):
    """The credentials lack a permission."""


class TooManyRequests(KubeError):
    """Asked too often, or a disruption budget forbids the eviction now."""

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0, reason: str = "TooManyRequests") -> None:
        super().__init__(message, status=429, reason=reason)
        self.retry_after_seconds = retry_after_seconds


class ServerUnavailable(KubeError):
    """No usable answer: connection, time-out or a server error."""


class RequestNotSent(ServerUnavailable):
    """No connection to the server came about: it has not seen the request."""


def kind_not_served(plural: str, api_version: str) -> NotFound:
    """The error for a kind the server does not have."""
    error = NotFound(f"the server does not serve {plural} of {api_version}", status=404, reason=KIND_NOT_SERVED)
    error.api_version = api_version
    return error


def error_from_status(status: int, reason: str, message: str, *, retry_after_seconds: float | None = None) -> KubeError:
    """The error for an HTTP status and the ``reason`` of the API's Status object."""
    if status == 429:
        return TooManyRequests(message, retry_after_seconds=retry_after_seconds or 1.0)
    by_status: dict[int, type[KubeError]] = {
        400: Invalid,
        401: Unauthorized,
        403: Forbidden,
        404: NotFound,
        409: AlreadyExists if reason == "AlreadyExists" else Conflict,
        410: Gone,
        422: Invalid,
    }
    kind = by_status.get(status, ServerUnavailable if status >= 500 or status == 0 else KubeError)
    error = kind(message, status=status, reason=reason)
    if isinstance(error, ServerUnavailable):
        error.retry_after_seconds = retry_after_seconds or 0.0
    return error
