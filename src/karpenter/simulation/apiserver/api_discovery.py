"""How the server describes itself to command lines: versions, groups, resources and just enough OpenAPI.

The OpenAPI documents name the calls that exist, which is what ``kubectl`` looks up before it sends one, and describe our own
kinds, which is what ``kubectl explain`` reads. They do not describe the core kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from karpenter.api.crds import schema
from karpenter.simulation.apiserver.object_store import JsonDict
from karpenter.simulation.apiserver.served_resources import ServedResource

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
#: The Kubernetes release whose behaviour is imitated.
_MAJOR, _MINOR = "1", "35"
VERSION: JsonDict = {
    "major": _MAJOR,
    "minor": _MINOR,
    "gitVersion": f"v{_MAJOR}.{_MINOR}.0+karpenter.memory",
    "platform": "memory",
}


def is_object_path(parts: Sequence[str]) -> bool:
    """Whether a path leads to objects, rather than to one of the documents of this module."""
    return (parts[:1] == ["api"] and len(parts) > 2) or (parts[:1] == ["apis"] and len(parts) > 3)


def discovery_document(resources: Sequence[ServedResource], parts: Sequence[str]) -> JsonDict | None:
    """The document at a path, None when there is none."""
    match parts:
        case ["version"]:
            return VERSION
        case ["openapi", "v3"]:
            return openapi_index(resources)
        case ["openapi", "v3", *root]:
            return openapi(resources, "/".join(root))
        case ["api"]:
            return api_versions()
        case ["apis"]:
            return groups(resources)
        case ["apis", name]:
            return group(resources, name)
        case ["api" | "apis", *version]:
            return resource_list(resources, "/".join(version))
        case _:
            return None


def api_versions() -> JsonDict:
    """``/api``."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def groups(resources: Iterable[ServedResource]) -> JsonDict:
    """``/apis``."""
    versions: dict[str, list[str]] = {}
    for resource in resources:
        kind = resource.kind
        if kind.group and kind.version not in versions.setdefault(kind.group, []):
            versions[kind.group].append(kind.version)
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(*version) for version in versions.items()]}


def _group(name: str, versions: list[str]) -> JsonDict:
    served = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": served, "preferredVersion": served[0]}


def group(resources: Iterable[ServedResource], name: str) -> JsonDict | None:
    """``/apis/GROUP``, None when there is no such group."""
    api_group = next((entry for entry in groups(resources)["groups"] if entry["name"] == name), None)
    return api_group and {"kind": "APIGroup", "apiVersion": "v1", **api_group}


def resource_list(resources: Iterable[ServedResource], api_version: str) -> JsonDict | None:
    """``/api/v1`` or ``/apis/GROUP/VERSION``, None when nothing is served there."""
    served = [resource for resource in resources if resource.kind.api_version == api_version]
    if not served:
        return None
    listed = [line for resource in served for line in _lines(resource)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": listed}


def _lines(resource: ServedResource) -> Iterable[JsonDict]:
    kind = resource.kind
    line: JsonDict = {
        "name": kind.plural,
        "singularName": kind.name.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.name,
        "verbs": _VERBS,
    }
    if resource.short_names:
        line["shortNames"] = list(resource.short_names)
    if resource.categories:
        line["categories"] = list(resource.categories)
    yield line
    part: JsonDict = {"singularName": "", "namespaced": kind.namespaced, "kind": kind.name}
    if resource.has_status:
        yield {**part, "name": f"{kind.plural}/status", "verbs": ["get", "patch", "update"]}
    if resource.is_scalable:
        scale = {"name": f"{kind.plural}/scale", "kind": "Scale", "group": "autoscaling", "version": "v1"}
        yield {**part, **scale, "verbs": ["get", "patch", "update"]}
    if kind.name == "Pod":
        yield {**part, "name": "pods/binding", "kind": "Binding", "verbs": ["create"]}
        eviction = {"name": "pods/eviction", "kind": "Eviction", "group": "policy", "version": "v1"}
        yield {**part, **eviction, "verbs": ["create"]}


def _api_root(resource: ServedResource) -> str:
    kind = resource.kind
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def openapi_index(resources: Iterable[ServedResource]) -> JsonDict:
    """``/openapi/v3``."""
    roots = {_api_root(resource): {"serverRelativeURL": f"/openapi/v3/{_api_root(resource)}"} for resource in resources}
    return {"paths": roots}


def openapi(resources: Iterable[ServedResource], root: str) -> JsonDict | None:
    """``/openapi/v3/ROOT``: the calls of one group and version, None when nothing is served there."""
    served = [resource for resource in resources if _api_root(resource) == root]
    if not served:
        return None
    paths: JsonDict = {}
    for resource in served:
        paths |= _openapi_paths(resource)
    schemas = {_schema_name(resource): _schema(resource) for resource in served}
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _openapi_paths(resource: ServedResource) -> JsonDict:
    kind = resource.kind
    collection = kind.path("{namespace}" if kind.namespaced else "")
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{_schema_name(resource)}"}}}
    answer = {"responses": {"200": {"description": "OK", "content": content}}}

    def call(action: str) -> JsonDict:
        return {"x-kubernetes-action": action, "x-kubernetes-group-version-kind": _identity(resource), **answer}

    validated = {"parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]}
    return {
        collection: {"get": call("list"), "post": call("post") | validated},
        f"{collection}/{{name}}": {
            "get": call("get"),
            "put": call("put") | validated,
            "patch": call("patch") | validated,
            "delete": call("delete"),
        },
    }


def _identity(resource: ServedResource) -> JsonDict:
    kind = resource.kind
    return {"group": kind.group, "version": kind.version, "kind": kind.name}


def _schema_name(resource: ServedResource) -> str:
    kind = resource.kind
    domain = ".".join(reversed(kind.group.split("."))) if kind.group else "io.k8s.api.core"
    return f"{domain}.{kind.version}.{kind.name}"


def _schema(resource: ServedResource) -> JsonDict:
    definition = dict(schema(resource.kind.type)) if resource.is_custom else {"type": "object"}
    return {**definition, "x-kubernetes-group-version-kind": [_identity(resource)]}
