"""What a request asks for, read once: the object, the parameters of lists and deletions, the body.

Malformed requests are refused with a real server's messages, so that the handlers get valid requests only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml
from starlette.requests import Request

from karpenter.kube.errors import Invalid, KubeError
from karpenter.model.bounded_yaml import load_yaml
from karpenter.simulation.apiserver import object_deletion, patch_formats, protobuf_bodies, status_errors
from karpenter.simulation.apiserver.memory_server import MemoryServer
from karpenter.simulation.apiserver.object_deletion import DeleteOptions
from karpenter.simulation.apiserver.object_store import JsonDict
from karpenter.simulation.apiserver.served_resources import ServedResource

EXACT, NOT_OLDER_THAN = "Exact", "NotOlderThan"

_MERGE_PATCH, _JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
_STRATEGIC_MERGE_PATCH, _APPLY_PATCH = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
_PATCH_FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    _MERGE_PATCH: patch_formats.merge_patch,
    _JSON_PATCH: patch_formats.json_patch,
    _STRATEGIC_MERGE_PATCH: patch_formats.strategic_merge_patch,
    _APPLY_PATCH: patch_formats.strategic_merge_patch,
}
_PROPAGATIONS = (object_deletion.FOREGROUND, object_deletion.BACKGROUND, object_deletion.ORPHAN)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request, read: what it is about and what it carries."""

    resource: ServedResource
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    accept: str
    content_type: str
    body: Any

    @property
    def wants_table(self) -> bool:
        """Whether the first choice of the client is a table."""
        return "as=Table" in self.accept.partition(",")[0]

    @property
    def is_watch(self) -> bool:
        """Whether a list goes on as a watch."""
        return self.flag_parameter("watch")

    @property
    def is_apply(self) -> bool:
        """Whether the body is a configuration to apply."""
        return self.content_type == _APPLY_PATCH

    def flag_parameter(self, key: str) -> bool:
        """A parameter that is on unless absent or written as off."""
        return key in self.query and self.query[key].lower() not in ("false", "0")

    def integer_parameter(self, key: str) -> int:
        """A whole number, 0 when absent. Raises ``Invalid``."""
        text = self.query.get(key) or "0"
        try:
            return int(text)
        except ValueError as error:
            raise status_errors.bad_request(f'{key}: parsing "{text}": invalid syntax') from error


async def parse_request(server: MemoryServer, path_parts: list[str], request: Request) -> ApiRequest:
    """The object or list of a request. Raises ``NotFound`` for a path that is not served, ``Invalid`` for an unreadable body."""
    group, version, rest = (
        ("", path_parts[1], path_parts[2:])
        if path_parts[0] == "api"
        else (path_parts[1], path_parts[2], path_parts[3:])
    )
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "")[:3]
    content = request.headers.get("content-type", "application/json").partition(";")[0]
    return ApiRequest(
        resource=server.resource(group, version, plural),
        namespace=namespace,
        name=name,
        subresource=subresource,
        query=dict(request.query_params),
        accept=request.headers.get("accept", ""),
        content_type=content,
        body=_decode_body(await request.body(), content),
    )


def _decode_body(data: bytes, content: str) -> Any:
    if not data:
        return None
    if "protobuf" in content:
        return protobuf_bodies.decode_protobuf(data)
    try:
        return load_yaml(data) if "yaml" in content else msgspec.json.decode(data)
    except (msgspec.DecodeError, yaml.YAMLError) as error:
        raise status_errors.bad_request(f"the body cannot be read: {error}") from error


def as_object(body: Any) -> JsonDict:
    """The body as a JSON object. Raises ``Invalid``."""
    if not isinstance(body, dict):
        raise status_errors.bad_request("the body has to be an object")
    return body


def body_named_as_path(request: ApiRequest, kind: str) -> JsonDict:
    """A body that has to name the object its path names. Raises ``Invalid``."""
    body = as_object(request.body)
    if (body.get("metadata") or {}).get("name") != request.name:
        raise status_errors.bad_request(f"name in URL does not match name in {kind} object")
    return body


# ---- lists --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Parameters of a list or watch. ``send_initial_events`` says whether a watch begins with what is there (None: not said)."""

    limit: int
    continue_token: str
    resource_version: str
    resource_version_match: str
    send_initial_events: bool | None

    @property
    def version_number(self) -> int:
        """The version asked for, 0 for none in particular. Raises ``Invalid``."""
        if not self.resource_version:
            return 0
        if not self.resource_version.isdecimal():
            cause = f'parsing "{self.resource_version}": invalid syntax'
            raise status_errors.bad_request(
                f'invalid resource version: resourceVersion: Invalid value: "{self.resource_version}": {cause}'
            )
        return int(self.resource_version)


def list_options(request: ApiRequest) -> ListOptions:
    """The parameters of a list or watch. Raises ``Invalid`` for combinations that mean nothing."""
    query = request.query
    options = ListOptions(
        limit=max(0, request.integer_parameter("limit")),
        continue_token=query.get("continue", ""),
        resource_version=query.get("resourceVersion", ""),
        resource_version_match=query.get("resourceVersionMatch", ""),
        send_initial_events=request.flag_parameter("sendInitialEvents") if "sendInitialEvents" in query else None,
    )
    fault = _watch_options_error(options) if request.is_watch else _list_options_error(options)
    if fault:
        raise status_errors.invalid_options("ListOptions", "resourceVersionMatch", fault)
    if options.continue_token and options.resource_version not in ("", "0"):
        raise status_errors.bad_request("specifying resource version is not allowed when using continue")
    return options


def _list_options_error(options: ListOptions) -> str:
    if not options.resource_version_match:
        return ""
    if options.resource_version_match not in (EXACT, NOT_OLDER_THAN):
        return f'Unsupported value: "{options.resource_version_match}": supported values: "{EXACT}", "{NOT_OLDER_THAN}", ""'
    if options.continue_token:
        return "Forbidden: resourceVersionMatch is forbidden when continue is provided"
    if not options.resource_version:
        return "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
    if options.resource_version_match == EXACT and options.resource_version == "0":
        return 'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
    return ""


def _watch_options_error(options: ListOptions) -> str:
    if options.send_initial_events is None and options.resource_version_match:
        return "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
    if options.send_initial_events is not None and options.resource_version_match != NOT_OLDER_THAN:
        return f"Forbidden: sendInitialEvents requires setting resourceVersionMatch to {NOT_OLDER_THAN}"
    return ""


# ---- patches ------------------------------------------------------------------------------------------------------------


def patch_function(request: ApiRequest) -> Callable[[JsonDict], JsonDict]:
    """The change a patch asks for. Raises ``KubeError`` for a format that is not understood or a body of the wrong shape."""
    apply = (
        None
        if request.resource.is_custom and request.content_type == _STRATEGIC_MERGE_PATCH
        else _PATCH_FUNCTIONS.get(request.content_type)
    )
    if apply is None:
        raise KubeError("415: Unsupported Media Type", status=415, reason="UnsupportedMediaType")
    wanted = list if request.content_type == _JSON_PATCH else dict
    if not isinstance(request.body, wanted):
        raise status_errors.bad_request(f"error decoding patch: a {request.content_type} is a JSON {wanted.__name__}")

    def change(body: JsonDict) -> JsonDict:
        try:
            return as_object(apply(body, request.body))
        except patch_formats.PatchError as error:
            raise Invalid(str(error), status=422, reason="Invalid") from error

    return change


def apply_configuration(request: ApiRequest) -> JsonDict:
    """The configuration to apply. Raises ``Invalid`` unless it says whose and what it is."""
    if not request.query.get("fieldManager"):
        raise status_errors.invalid_options(
            "PatchOptions", "fieldManager", "Required value: is required for apply patch"
        )
    body = as_object(request.body)
    if not (body.get("apiVersion") and body.get("kind")):
        raise status_errors.bad_request(
            f"invalid object type: {body.get('apiVersion', '/')}, Kind={body.get('kind', '')}"
        )
    return body


# ---- deletions ----------------------------------------------------------------------------------------------------------


def delete_options(request: ApiRequest) -> DeleteOptions:
    """The options of a delete call, from its body or, where there is none, from its parameters. Raises ``Invalid``."""
    if isinstance(request.body, dict):
        return delete_options_from(request.body)
    given: JsonDict = {key: request.query[key] for key in ("propagationPolicy",) if key in request.query}
    if "orphanDependents" in request.query:
        given["orphanDependents"] = request.flag_parameter("orphanDependents")
    if "gracePeriodSeconds" in request.query:
        given["gracePeriodSeconds"] = request.integer_parameter("gracePeriodSeconds")
    return delete_options_from(given)


def delete_options_from(body: JsonDict) -> DeleteOptions:
    """``DeleteOptions`` as JSON. Raises ``Invalid``."""
    preconditions = body.get("preconditions") or {}
    return DeleteOptions(
        uid=preconditions.get("uid") or "",
        resource_version=preconditions.get("resourceVersion") or "",
        grace_period_seconds=body.get("gracePeriodSeconds"),
        propagation=_propagation(body),
    )


def _propagation(body: JsonDict) -> str:
    policy, orphans = body.get("propagationPolicy"), body.get("orphanDependents")
    fault = ""
    if policy is not None and orphans is not None:
        fault = f'Invalid value: "{policy}": orphanDependents and deletionPropagation cannot be both set'
    elif policy is not None and policy not in _PROPAGATIONS:
        names = ", ".join(f'"{name}"' for name in (*_PROPAGATIONS, "nil"))
        fault = f'Unsupported value: "{policy}": supported values: {names}'
    if fault:
        raise status_errors.invalid_options("DeleteOptions", "propagationPolicy", fault)
    if orphans is not None:
        return object_deletion.ORPHAN if orphans else object_deletion.BACKGROUND
    return policy or ""
