"""What an API server refuses in pods and workloads, as far as planning depends on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from karpenter.api.apps import DaemonSet, Deployment, ReplicaSet, StatefulSet
from karpenter.api.core import Container, PodSpec
from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import (
    NodeAffinity,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodAffinity,
    Toleration,
    TopologySpreadConstraint,
)
from karpenter.model import quantity, selectors
from karpenter.model.pod_templates import PodCarrier, pod_spec_of, pod_spec_path
from karpenter.model.structural_schema import Finding, child_path, nearest_name

_NODE_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_SELECTOR_OPERATORS = _NODE_OPERATORS[:4]
_TOLERATION_OPERATORS = ("", "Equal", "Exists", "Gt", "Lt")
_TAINT_EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
_UNSATISFIABLE = ("DoNotSchedule", "ScheduleAnyway")
_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_MIN_SIMILARITY = 0.5


def pod_findings(carrier: PodCarrier) -> tuple[Finding, ...]:
    """What is wrong with a pod, or with a workload and the pods of its template. Quantities can be read by now."""
    spec, path = pod_spec_of(carrier), ".".join(pod_spec_path(type(carrier)))
    return (*_workload(carrier), *_pod_spec(spec, path))


def _workload(carrier: PodCarrier) -> Iterator[Finding]:
    if not isinstance(carrier, Deployment | ReplicaSet | StatefulSet | DaemonSet):
        return
    selector, labels = carrier.spec.selector, carrier.spec.template.metadata.labels
    if selector is None:
        if not isinstance(carrier, DaemonSet):
            yield Finding("spec.selector", "required", "is missing; expected the labels of the template")
    elif not selectors.selector_matches(selector, labels):
        has = ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or "none"
        yield Finding("spec.selector", "selector", f"does not match the labels of the template ({has})")
    replicas = None if isinstance(carrier, DaemonSet) else carrier.spec.replicas
    if replicas is not None and replicas < 0:
        yield Finding("spec.replicas", "range", f"{replicas} is below zero")


def _pod_spec(spec: PodSpec, path: str) -> Iterator[Finding]:
    if not spec.containers:
        yield Finding(f"{path}.containers", "required", "is missing; expected at least one container")
    for name, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for index, container in enumerate(containers):
            yield from _resources(container, f"{path}.{name}[{index}].resources")
    for index, toleration in enumerate(spec.tolerations):
        yield from _toleration(toleration, f"{path}.tolerations[{index}]")
    for index, constraint in enumerate(spec.topology_spread_constraints):
        yield from _spread(constraint, f"{path}.topologySpreadConstraints[{index}]")
    if spec.affinity is not None:
        yield from _node_affinity(spec.affinity.node_affinity, f"{path}.affinity.nodeAffinity")
        yield from _pod_affinity(spec.affinity.pod_affinity, f"{path}.affinity.podAffinity")
        yield from _pod_affinity(spec.affinity.pod_anti_affinity, f"{path}.affinity.podAntiAffinity")


def _resources(container: Container, path: str) -> Iterator[Finding]:
    requests, limits = container.resources.requests, container.resources.limits
    for name in {**limits, **requests}:
        if "/" not in name and name not in _RESOURCES and not name.startswith("hugepages-"):
            near = nearest_name(name, _RESOURCES)
            hint = f"; did you mean {near}?" if near else "; extended resources have a domain, such as nvidia.com/gpu"
            yield Finding(path, "resource", f"Kubernetes has no resource {name}{hint}")
    for name, request in requests.items():
        if name in limits and quantity.parse_milli(request) > quantity.parse_milli(limits[name]):
            yield Finding(
                child_path(f"{path}.requests", name), "range", f"{request} is more than the limit {limits[name]}"
            )


def _toleration(toleration: Toleration, path: str) -> Iterator[Finding]:
    yield from _choice(f"{path}.operator", toleration.operator, _TOLERATION_OPERATORS)
    yield from _choice(f"{path}.effect", toleration.effect, _TAINT_EFFECTS)
    if toleration.operator == "Exists" and toleration.value:
        yield Finding(f"{path}.value", "value", "must be empty with operator Exists; use operator Equal")


def _spread(constraint: TopologySpreadConstraint, path: str) -> Iterator[Finding]:
    yield from _choice(f"{path}.whenUnsatisfiable", constraint.when_unsatisfiable, _UNSATISFIABLE)
    if constraint.max_skew < 1:
        yield Finding(f"{path}.maxSkew", "range", f"{constraint.max_skew} is too small, the least is 1")
    yield from _selector(constraint.label_selector, f"{path}.labelSelector")


def _node_affinity(affinity: NodeAffinity | None, path: str) -> Iterator[Finding]:
    if affinity is None:
        return
    if affinity.required is not None:
        required = f"{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        for index, term in enumerate(affinity.required.node_selector_terms):
            yield from _term(term, f"{required}[{index}]")
    for index, weighted in enumerate(affinity.preferred):
        yield from _term(
            weighted.preference, f"{path}.preferredDuringSchedulingIgnoredDuringExecution[{index}].preference"
        )


def _term(term: NodeSelectorTerm, path: str) -> Iterator[Finding]:
    yield from _expressions(term.match_expressions, f"{path}.matchExpressions")


def _expressions(expressions: Iterable[NodeSelectorRequirement], path: str) -> Iterator[Finding]:
    for index, expression in enumerate(expressions):
        yield from _choice(f"{path}[{index}].operator", expression.operator, _NODE_OPERATORS)
        if expression.operator in ("In", "NotIn") and not expression.values:
            yield Finding(f"{path}[{index}].values", "values", f"operator {expression.operator} must have a value")


def _pod_affinity(affinity: PodAffinity | None, path: str) -> Iterator[Finding]:
    if affinity is None:
        return
    terms = [
        (f"{path}.requiredDuringSchedulingIgnoredDuringExecution[{i}]", t) for i, t in enumerate(affinity.required)
    ]
    terms += [
        (f"{path}.preferredDuringSchedulingIgnoredDuringExecution[{index}].podAffinityTerm", weighted.pod_affinity_term)
        for index, weighted in enumerate(affinity.preferred)
    ]
    for where, term in terms:
        if not term.topology_key:
            yield Finding(
                f"{where}.topologyKey", "required", "is missing; expected a node label such as kubernetes.io/hostname"
            )
        yield from _selector(term.label_selector, f"{where}.labelSelector")


def _selector(selector: LabelSelector | None, path: str) -> Iterator[Finding]:
    for index, expression in enumerate(selector.match_expressions if selector is not None else ()):
        yield from _choice(f"{path}.matchExpressions[{index}].operator", expression.operator, _SELECTOR_OPERATORS)


def _choice(path: str, value: str, choices: Sequence[str]) -> Iterator[Finding]:
    if value in choices:
        return
    near = nearest_name(value, filter(None, choices), _MIN_SIMILARITY)
    hint = f"; did you mean {near}?" if near else ""
    yield Finding(path, "enum", f"{value!r} is not one of {', '.join(filter(None, choices))}{hint}")
