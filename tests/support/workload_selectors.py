"""Short words for what selects pods: Services, and the controllers that own them."""

from __future__ import annotations

from collections.abc import Mapping

from karpenter.api.apps import SelectorSpec, SelectorWorkload
from karpenter.api.core import LabelMapSelectorSpec, ReplicationController, Service
from karpenter.api.meta import LabelSelector, LabelSelectorRequirement, ObjectMeta, OwnerReference
from karpenter.state.workload_selectors import SelectorExpressions


def service(name: str, selector: Mapping[str, str] | None, namespace: str = "default") -> Service:
    return Service(metadata=ObjectMeta(name=name, namespace=namespace), spec=LabelMapSelectorSpec(selector=selector))


def replication_controller(name: str, selector: Mapping[str, str]) -> ReplicationController:
    meta = ObjectMeta(name=name, namespace="default", uid=f"uid-{name}")
    return ReplicationController(metadata=meta, spec=LabelMapSelectorSpec(selector=selector))


def selector_workload(name: str, selector: LabelSelector | None) -> SelectorWorkload:
    """A ReplicaSet or StatefulSet."""
    return SelectorWorkload(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"), spec=SelectorSpec(selector=selector)
    )


def owned_by(
    name: str, kind: str = "ReplicaSet", *, controller: bool = True, api_version: str = ""
) -> tuple[OwnerReference, ...]:
    version = api_version or ("v1" if kind == "ReplicationController" else "apps/v1")
    return (OwnerReference(api_version=version, kind=kind, name=name, uid=f"uid-{name}", controller=controller),)


def label_expression(key: str, operator: str, *values: str) -> LabelSelectorRequirement:
    return LabelSelectorRequirement(key=key, operator=operator, values=values)


def label_values(**values: str) -> SelectorExpressions:
    """Labels that must have these values."""
    return tuple(label_expression(key, "In", value) for key, value in sorted(values.items()))
