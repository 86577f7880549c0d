"""How the server says no: the errors of a real one, in its words and with the details it adds (which object, which field)."""

from __future__ import annotations

import math
import re
from typing import TypeVar

import msgspec

from karpenter.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    ServerUnavailable,
    StatusCause,
    StatusDetails,
    TooManyRequests,
)
from karpenter.simulation.apiserver.served_resources import ServedResource

E = TypeVar("E", bound=KubeError)

_FIELD_ERROR = re.compile(r"(?P<field>[\w.\[\]$-]+): (?P<message>.+)", re.DOTALL)
_CAUSE_REASONS = {
    "Required value": "FieldValueRequired",
    "Unsupported value": "FieldValueNotSupported",
    "Duplicate value": "FieldValueDuplicate",
    "Forbidden": "FieldValueForbidden",
    "Too long": "FieldValueTooLong",
    "Too many": "FieldValueTooMany",
}
_REASON_BY_STATUS = {
    400: "BadRequest",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
}
_BUDGET_CAUSE = "DisruptionBudget"
_BUDGET_EXCEEDED_MESSAGE = "Cannot evict pod as it would violate the pod's disruption budget."


def not_found(resource: ServedResource, name: str) -> NotFound:
    """There is no such object."""
    return _with_details(resource, name, NotFound(f'{resource.name} "{name}" not found', status=404, reason="NotFound"))


def no_such_subresource() -> NotFound:
    """The path leads nowhere, although its kind is served."""
    return NotFound("the server could not find the requested resource", status=404, reason="NotFound")


def no_kubelet(resource: ServedResource, subresource: str) -> KubeError:
    """The call is one for a kubelet, and nodes are simulated."""
    text = (
        f"{resource.name}/{subresource} is not served: nodes are simulated, so no kubelet runs the containers of pods"
    )
    return KubeError(text, status=501, reason="NotImplemented")


def already_exists(resource: ServedResource, name: str, *, is_terminating: bool) -> AlreadyExists:
    """The name is taken, perhaps by an object on its way out."""
    text = f'{resource.name} "{name}" already exists'
    text = f"object is being deleted: {text}" if is_terminating else text
    return _with_details(resource, name, AlreadyExists(text, status=409, reason="AlreadyExists"))


def object_modified(resource: ServedResource, name: str) -> Conflict:
    """The object is not at the version the caller read."""
    return _conflict(
        resource, name, "the object has been modified; please apply your changes to the latest version and try again"
    )


def uid_conflict(resource: ServedResource, name: str, expected: str, actual: str) -> Conflict:
    """The replacement is for an object of the same name with another uid."""
    cause = f"Precondition failed: UID in precondition: {expected}, UID in object meta: {actual}"
    return _conflict(resource, name, cause)


def precondition_failed(resource: ServedResource, name: str, field: str, expected: str, actual: str) -> Conflict:
    """A delete or eviction was meant for another object or another version; ``field`` is ``UID`` or ``ResourceVersion``."""
    happened = "deleted and then recreated" if field == "UID" else "modified"
    cause = (
        f"the {field} in the precondition ({expected}) does not match the {field} in record ({actual}). "
        f"The object might have been {happened}"
    )
    return conflict(resource.kind.name, name, cause, StatusDetails(name=name, kind=resource.kind.name))


def conflict(resource_name: str, name: str, cause: str, details: StatusDetails) -> Conflict:
    """The state of the object stands against the call."""
    error = Conflict(
        f'Operation cannot be fulfilled on {resource_name} "{name}": {cause}', status=409, reason="Conflict"
    )
    error.details = details
    return error


def invalid(resource: ServedResource, name: str, *causes: str) -> Invalid:
    """The content is refused; a cause is ``field: sentence`` where a field can be named."""
    kind = resource.kind
    what = f"{kind.name}.{kind.group}" if kind.group else kind.name
    text = causes[0] if len(causes) == 1 else f"[{', '.join(causes)}]"
    error = Invalid(f'{what} "{name}" is invalid: {text}', status=422, reason="Invalid")
    error.details = StatusDetails(name=name, group=kind.group, kind=kind.name, causes=tuple(map(_status_cause, causes)))
    return error


def invalid_options(options: str, field: str, cause: str) -> Invalid:
    """The parameters of a call are refused; ``options`` is the kind that holds them, such as ``ListOptions``."""
    text = f'{options}.meta.k8s.io "" is invalid: {field}: {cause}'
    error = Invalid(text, status=422, reason="Invalid")
    error.details = StatusDetails(group="meta.k8s.io", kind=options, causes=(_status_cause(f"{field}: {cause}"),))
    return error


def bad_request(message: str) -> Invalid:
    """The request makes no sense, whatever the objects are."""
    return Invalid(message, status=400, reason="BadRequest")


def forbidden(resource: ServedResource, name: str, cause: str) -> Forbidden:
    """The call is not allowed here and now."""
    text = f'{resource.name} "{name}" is forbidden: {cause}'
    return _with_details(resource, name, Forbidden(text, status=403, reason="Forbidden"))


def namespace_terminating(resource: ServedResource, name: str, namespace: str) -> Forbidden:
    """Nothing can be created in a namespace on its way out."""
    cause = f"unable to create new content in namespace {namespace} because it is being terminated"
    error = forbidden(resource, name, cause)
    ground = StatusCause("NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace")
    error.details = msgspec.structs.replace(error.details, causes=(ground,))
    return error


def resource_expired(message: str) -> Gone:
    """The requested resource version is too old."""
    return Gone(message, status=410, reason="Expired")


def server_error(message: str, reason: str = "") -> ServerUnavailable:
    """Status 500, as a real server answers an error without a status of its own."""
    return ServerUnavailable(message, status=500, reason=reason)


def version_too_large(version: int, current: int) -> ServerUnavailable:
    """A list at a version that does not exist yet."""
    text = f"Timeout: Too large resource version: {version}, current: {current}"
    error = ServerUnavailable(text, status=504, reason="Timeout")
    error.retry_after_seconds = 1.0
    cause = StatusCause("ResourceVersionTooLarge", "Too large resource version")
    error.details = StatusDetails(causes=(cause,), retry_after_seconds=1)
    return error


def budget_exceeded(cause: str, retry_after_seconds: int | None = None) -> TooManyRequests:
    """A disruption budget does not let the pod go now; the server suggests a time only while it is still counting."""
    error = TooManyRequests(_BUDGET_EXCEEDED_MESSAGE, retry_after_seconds=retry_after_seconds or 1.0)
    error.details = StatusDetails(causes=(StatusCause(_BUDGET_CAUSE, cause),), retry_after_seconds=retry_after_seconds)
    return error


def _conflict(resource: ServedResource, name: str, cause: str) -> Conflict:
    details = StatusDetails(name=name, group=resource.kind.group, kind=resource.kind.plural)
    return conflict(resource.name, name, cause, details)


def _with_details(resource: ServedResource, name: str, error: E) -> E:
    error.details = StatusDetails(name=name, group=resource.kind.group, kind=resource.kind.plural)
    return error


def _status_cause(text: str) -> StatusCause:
    fullmatch = _FIELD_ERROR.fullmatch(text)
    if fullmatch is None:
        return StatusCause("FieldValueInvalid", text)
    word = next(
        (word for start, word in _CAUSE_REASONS.items() if fullmatch["message"].startswith(start)), "FieldValueInvalid"
    )
    return StatusCause(word, fullmatch["message"], fullmatch["field"])


def status_of(error: KubeError) -> dict[str, object]:
    """The ``Status`` object an answer carries."""
    code = error.status or 500
    details: dict[str, object] = msgspec.to_builtins(error.details)
    seconds = retry_after_seconds(error)
    if seconds:
        details["retryAfterSeconds"] = seconds
    status: dict[str, object] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    status["message"] = str(error)
    reason = error.reason or _REASON_BY_STATUS.get(code, "")
    if reason:
        status["reason"] = reason
    if details:
        status["details"] = details
    return {**status, "code": code}


def retry_after_seconds(error: KubeError) -> int:
    """Seconds of ``Retry-After``; 0 without one."""
    if error.details != StatusDetails():
        return round(error.details.retry_after_seconds or 0)
    seconds = error.retry_after_seconds if isinstance(error, TooManyRequests | ServerUnavailable) else 0.0
    return math.ceil(seconds)
