"""What a request asks for, read once: the object, the parameters of lists and deletions, the body.

Everything here refuses as a real server does, in its words, so that the handlers of ``kube.serve`` deal with sense only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml
from starlette.requests import Request

from karpenter.kube.errors import Invalid, KubeError
from karpenter.kube.memory import deletion, patches, protobuf, refusals
from karpenter.kube.memory.deletion import DeleteOptions
from karpenter.kube.memory.resources import Resource
from karpenter.kube.memory.server import MemoryServer
from karpenter.kube.memory.store import JsonDict

EXACT, NOT_OLDER_THAN = "Exact", "NotOlderThan"

_MERGE, _JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
_STRATEGIC, _APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
_PATCHES: Mapping[str, Callable[[Any, Any], Any]] = {
    _MERGE: patches.merge,
    _JSON_PATCH: patches.json_patch,
    _STRATEGIC: patches.strategic,
    _APPLY: patches.strategic,
}
_PROPAGATIONS = (deletion.FOREGROUND, deletion.BACKGROUND, deletion.ORPHAN)


@dataclass(frozen=True, slots=True)
class Call:
    """One request, read: what it is about and what it carries."""

    resource: Resource
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    accept: str
    content: str
    body: Any

    @property
    def wants_table(self) -> bool:
        """Whether the first choice of the client is a table."""
        return "as=Table" in self.accept.partition(",")[0]

    @property
    def watches(self) -> bool:
        """Whether a list goes on as a watch."""
        return self.flag("watch")

    @property
    def applies(self) -> bool:
        """Whether the body is a configuration to apply."""
        return self.content == _APPLY

    def flag(self, key: str) -> bool:
        """A parameter that is on unless absent or written as off."""
        return key in self.query and self.query[key].lower() not in ("false", "0")

    def number(self, key: str) -> int:
        """A whole number, 0 when absent. Raises ``Invalid``."""
        text = self.query.get(key) or "0"
        try:
            return int(text)
        except ValueError as error:
            raise refusals.bad_request(f'{key}: parsing "{text}": invalid syntax') from error


async def read(server: MemoryServer, parts: list[str], request: Request) -> Call:
    """What a request is about. Raises ``NotFound`` for a path that is not served and ``Invalid`` for a body nobody can read."""
    group, version, rest = ("", parts[1], parts[2:]) if parts[0] == "api" else (parts[1], parts[2], parts[3:])
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "")[:3]
    content = request.headers.get("content-type", "application/json").partition(";")[0]
    return Call(
        resource=server.resource(group, version, plural),
        namespace=namespace,
        name=name,
        subresource=subresource,
        query=dict(request.query_params),
        accept=request.headers.get("accept", ""),
        content=content,
        body=_decoded(await request.body(), content),
    )


def _decoded(data: bytes, content: str) -> Any:
    if not data:
        return None
    if "protobuf" in content:
        return protobuf.decode(data)
    try:
        return yaml.safe_load(data) if "yaml" in content else msgspec.json.decode(data)
    except (msgspec.DecodeError, yaml.YAMLError) as error:
        raise refusals.bad_request(f"the body cannot be read: {error}") from error


def as_object(body: Any) -> JsonDict:
    """The body as a JSON object. Raises ``Invalid``."""
    if not isinstance(body, dict):
        raise refusals.bad_request("the body has to be an object")
    return body


def named(call: Call, kind: str) -> JsonDict:
    """A body that has to name the object its path names. Raises ``Invalid``."""
    body = as_object(call.body)
    if (body.get("metadata") or {}).get("name") != call.name:
        raise refusals.bad_request(f"name in URL does not match name in {kind} object")
    return body


# ---- lists --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Parameters of a list or watch. ``initial`` says whether a watch begins with what is there (None: not said)."""

    limit: int
    token: str
    version: str
    match: str
    initial: bool | None

    @property
    def point(self) -> int:
        """The version asked for, 0 for none in particular. Raises ``Invalid``."""
        if not self.version:
            return 0
        if not self.version.isdecimal():
            cause = f'parsing "{self.version}": invalid syntax'
            raise refusals.bad_request(
                f'invalid resource version: resourceVersion: Invalid value: "{self.version}": {cause}'
            )
        return int(self.version)


def list_options(call: Call) -> ListOptions:
    """The parameters of a list or watch. Raises ``Invalid`` for combinations that mean nothing."""
    query = call.query
    options = ListOptions(
        limit=max(0, call.number("limit")),
        token=query.get("continue", ""),
        version=query.get("resourceVersion", ""),
        match=query.get("resourceVersionMatch", ""),
        initial=call.flag("sendInitialEvents") if "sendInitialEvents" in query else None,
    )
    fault = _watch_fault(options) if call.watches else _list_fault(options)
    if fault:
        raise refusals.invalid_options("ListOptions", "resourceVersionMatch", fault)
    if options.token and options.version not in ("", "0"):
        raise refusals.bad_request("specifying resource version is not allowed when using continue")
    return options


def _list_fault(options: ListOptions) -> str:
    if not options.match:
        return ""
    if options.match not in (EXACT, NOT_OLDER_THAN):
        return f'Unsupported value: "{options.match}": supported values: "{EXACT}", "{NOT_OLDER_THAN}", ""'
    if options.token:
        return "Forbidden: resourceVersionMatch is forbidden when continue is provided"
    if not options.version:
        return "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
    if options.match == EXACT and options.version == "0":
        return 'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
    return ""


def _watch_fault(options: ListOptions) -> str:
    if options.initial is None and options.match:
        return "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
    if options.initial is not None and options.match != NOT_OLDER_THAN:
        return f"Forbidden: sendInitialEvents requires setting resourceVersionMatch to {NOT_OLDER_THAN}"
    return ""


# ---- patches ------------------------------------------------------------------------------------------------------------


def patcher(call: Call) -> Callable[[JsonDict], JsonDict]:
    """The change a patch asks for. Raises ``KubeError`` for a format that is not understood or a body of the wrong shape."""
    apply = None if call.resource.custom and call.content == _STRATEGIC else _PATCHES.get(call.content)
    if apply is None:
        raise KubeError("415: Unsupported Media Type", status=415, reason="UnsupportedMediaType")
    wanted = list if call.content == _JSON_PATCH else dict
    if not isinstance(call.body, wanted):
        raise refusals.bad_request(f"error decoding patch: a {call.content} is a JSON {wanted.__name__}")

    def change(body: JsonDict) -> JsonDict:
        try:
            return as_object(apply(body, call.body))
        except patches.PatchError as error:
            raise Invalid(str(error), status=422, reason="Invalid") from error

    return change


def applied(call: Call) -> JsonDict:
    """The configuration to apply. Raises ``Invalid`` unless it says whose and what it is."""
    if not call.query.get("fieldManager"):
        raise refusals.invalid_options("PatchOptions", "fieldManager", "Required value: is required for apply patch")
    body = as_object(call.body)
    if not (body.get("apiVersion") and body.get("kind")):
        raise refusals.bad_request(f"invalid object type: {body.get('apiVersion', '/')}, Kind={body.get('kind', '')}")
    return body


# ---- deletions ----------------------------------------------------------------------------------------------------------


def delete_options(call: Call) -> DeleteOptions:
    """The options of a delete call, from its body or, where there is none, from its parameters. Raises ``Invalid``."""
    if isinstance(call.body, dict):
        return eviction_options(call.body)
    given: JsonDict = {key: call.query[key] for key in ("propagationPolicy",) if key in call.query}
    if "orphanDependents" in call.query:
        given["orphanDependents"] = call.flag("orphanDependents")
    if "gracePeriodSeconds" in call.query:
        given["gracePeriodSeconds"] = call.number("gracePeriodSeconds")
    return eviction_options(given)


def eviction_options(body: JsonDict) -> DeleteOptions:
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
        raise refusals.invalid_options("DeleteOptions", "propagationPolicy", fault)
    if orphans is not None:
        return deletion.ORPHAN if orphans else deletion.BACKGROUND
    return policy or ""
