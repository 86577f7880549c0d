"""What an API server fills into a pod that is created: requests from limits, tolerations, names, and the priority of its class.

Functions of decoded JSON, so that a server keeps fields it does not know. Only defaults that this project reads are filled in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from karpenter.api.priority_class import PriorityClass
from karpenter.model import labels

JsonSpec = dict[str, object]

#: Classes every cluster has.
SYSTEM_PRIORITIES: Mapping[str, int] = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_TOLERATION_SECONDS = 300
_DEFAULT_GRACE_SECONDS = 30
_CONTAINER_LISTS = ("containers", "initContainers")


@dataclass(frozen=True, slots=True)
class PriorityClasses:
    """The priorities of named classes, and that of pods which name none."""

    by_name: Mapping[str, int] = field(default_factory=lambda: SYSTEM_PRIORITIES)
    default: int = 0

    def priority_of(self, name: str) -> int | None:
        """The priority of a class, the default one where the name is empty; None where there is no such class."""
        return self.by_name.get(name) if name else self.default


def priority_classes_of(classes: Iterable[PriorityClass]) -> PriorityClasses:
    """These classes beside those every cluster has. Of several global defaults the one of the least value counts."""
    listed = tuple(classes)
    by_name = {priority_class.metadata.name: priority_class.value for priority_class in listed}
    defaults = [priority_class.value for priority_class in listed if priority_class.global_default]
    return PriorityClasses({**SYSTEM_PRIORITIES, **by_name}, min(defaults, default=0))


def default_pod_spec(spec: JsonSpec) -> None:
    """Fill in what does not depend on other objects."""
    spec.setdefault("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    containers = [container for name in _CONTAINER_LISTS for container in _objects(spec.get(name))]
    for container in containers:
        _default_requests(container)
        if spec.get("hostNetwork"):
            _default_host_ports(container)
    _default_pod_level_requests(spec, containers)
    _default_tolerations(spec)


def _default_requests(container: JsonSpec) -> None:
    """Requests are limits where limits alone are stated."""
    resources = _object(container.get("resources"))
    limits = _object(resources.get("limits"))
    if limits:
        resources["requests"] = {**limits, **_object(resources.get("requests"))}


def _default_host_ports(container: JsonSpec) -> None:
    """On the host's network a port of a container is a port of the host."""
    for port in _objects(container.get("ports")):
        port.setdefault("hostPort", port.get("containerPort"))


def _default_pod_level_requests(spec: JsonSpec, containers: Iterable[JsonSpec]) -> None:
    """Pod-level requests are pod-level limits for resources that no container requests."""
    resources = _object(spec.get("resources"))
    requested = {name for container in containers for name in _requests_of(container)}
    limits = {name: limit for name, limit in _object(resources.get("limits")).items() if name not in requested}
    if limits:
        resources["requests"] = {**limits, **_requests_of(spec)}


def _requests_of(owner: JsonSpec) -> JsonSpec:
    return _object(_object(owner.get("resources")).get("requests"))


def _default_tolerations(spec: JsonSpec) -> None:
    tolerations = _objects(spec.get("tolerations"))
    for key in (labels.NOT_READY_TAINT, labels.UNREACHABLE_TAINT):
        if not any(_tolerates_no_execute(toleration, key) for toleration in tolerations):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATION_SECONDS}
            )
    spec["tolerations"] = tolerations


def _tolerates_no_execute(toleration: Mapping[str, object], key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")


def _object(value: object) -> JsonSpec:
    """The value where it is an object; what is of a wrong type is refused elsewhere."""
    return cast(JsonSpec, value) if isinstance(value, dict) else {}


def _objects(value: object) -> list[JsonSpec]:
    return [_object(entry) for entry in value] if isinstance(value, list | tuple) else []
