"""The filters of kube-scheduler (v1.35), written down plainly.

Concrete nodes, whole lists, exact fractions; no index, no cache, and nothing shared with the product but the wire structs.
Every filter answers with a sentence that says why not, or with nothing. The quirks are the scheduler's own: an empty selector
of a spread constraint counts nobody, a pod near which affinity may settle has to match all terms at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from karpenter.api.core import Container, Pod, PodSpec
from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import NodeSelectorTerm, PodAffinityTerm, Taint, TopologySpreadConstraint

HOST = "kubernetes.io/hostname"
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_HARD = ("NoSchedule", "NoExecute")
_CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_EVERY_ADDRESS = ("", "0.0.0.0", "::")
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_PARTS = {"m": 10**3, "u": 10**6, "n": 10**9}
_QUANTITY = re.compile(r"([+-]?[0-9]*\.?[0-9]*)(?:[eE]([+-]?[0-9]+)|([numkMGTPE]?)(i?))")

Amounts = dict[str, Fraction]
#: Key, operator, values.
Expression = tuple[str, str, tuple[str, ...]]
#: Address, protocol, number.
Port = tuple[str, str, int]
#: Labels of namespaces by name.
Namespaces = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Disk:
    """What a volume claim requires of nodes: one of the terms must hold (none: any node), and the driver that attaches it."""

    terms: tuple[NodeSelectorTerm, ...] = ()
    driver: str = ""


@dataclass(frozen=True)
class NodeInfo:
    """A node before the planned pods. ``ports`` are taken, ``free`` is what is left."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    free: Amounts = field(default_factory=dict)
    ports: tuple[Port, ...] = ()
    cordoned: bool = False
    type: str = ""
    capacity: Amounts = field(default_factory=dict)
    attached: frozenset[tuple[str, str]] = frozenset()
    attach_limits: Mapping[str, int] = field(default_factory=dict)


#: A pod and the node it is bound to.
Bound = tuple[Pod, NodeInfo]


# -- resources ----------------------------------------------------------------------------------------------------------


def number(text: object) -> Fraction:
    """A quantity as an exact number."""
    fullmatch = _QUANTITY.fullmatch(str(text))
    assert fullmatch is not None, f"{text!r} is no quantity"
    digits, exponent, suffix, binary = fullmatch.groups(default="")
    if exponent:
        return Fraction(digits) * Fraction(10) ** int(exponent)
    if suffix in _PARTS:
        return Fraction(digits) / _PARTS[suffix]
    return Fraction(digits) * (1024 if binary else 1000) ** _POWERS[suffix]


def amounts(wire: Mapping[str, object]) -> Amounts:
    return {name: number(value) for name, value in wire.items()}


def plus(*parts: Mapping[str, Fraction]) -> Amounts:
    return {name: sum((part.get(name, Fraction(0)) for part in parts), Fraction(0)) for part in parts for name in part}


def minus(left: Mapping[str, Fraction], right: Mapping[str, Fraction]) -> Amounts:
    return {name: amount - right.get(name, Fraction(0)) for name, amount in left.items()}


def most(*parts: Mapping[str, Fraction]) -> Amounts:
    return {name: max(part.get(name, Fraction(0)) for part in parts) for part in parts for name in part}


def lacking(free: Mapping[str, Fraction], needed: Mapping[str, Fraction]) -> list[str]:
    """Requested resources of which too little is free."""
    return [name for name, amount in needed.items() if amount > 0 and amount > free.get(name, 0)]


def _asked(container: Container) -> Amounts:
    return amounts({**container.resources.limits, **container.resources.requests})


def needs(spec: PodSpec) -> Amounts:
    """What a pod holds over its life: sidecars run beside everything later, other init containers alone (KEP-753)."""
    beside: Amounts = {}
    peaks: list[Amounts] = []
    for container in spec.init_containers:
        together = plus(beside, _asked(container))
        peaks.append(together)
        if container.restart_policy == "Always":
            beside = together
    result = most(*peaks, plus(beside, *map(_asked, spec.containers)))
    if spec.resources is not None:
        result |= amounts({**spec.resources.limits, **spec.resources.requests})
    return {**plus(result, amounts(spec.overhead)), "pods": Fraction(1)}


# -- labels, taints, ports ------------------------------------------------------------------------------------------------


def accepts(operator: str, values: Sequence[str], value: str | None) -> bool:
    """Whether a label with this value (None: absent) satisfies one expression; a broken expression holds nowhere."""
    if operator in ("NotIn", "DoesNotExist"):
        return value is None or (operator == "NotIn" and value not in values)
    if value is None:
        return False
    if operator == "In":
        return value in values
    if operator == "Exists":
        return True
    try:
        bound, result = int(values[0]), int(value)
    except (IndexError, ValueError):
        return False
    return {"Gt": result > bound, "Lt": result < bound, "Gte": result >= bound, "Lte": result <= bound}.get(
        operator, False
    )


def expressions(entries: Iterable[object]) -> tuple[Expression, ...]:
    return tuple((entry.key, entry.operator, tuple(entry.values)) for entry in entries)  # type: ignore[attr-defined]


def term_holds(term: NodeSelectorTerm, node_info: NodeInfo) -> bool:
    """A term without any expression holds nowhere."""
    fields = {"metadata.name": node_info.name}
    return bool(term.match_expressions or term.match_fields) and all(
        accepts(operator, values, own.get(key))
        for entries, own in ((term.match_expressions, node_info.labels), (term.match_fields, fields))
        for key, operator, values in expressions(entries)
    )


def required_terms(spec: PodSpec) -> tuple[NodeSelectorTerm, ...] | None:
    """Required node-affinity terms of which one must hold; None where nothing is required."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    return affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else None


def wants_node(spec: PodSpec, node_info: NodeInfo) -> bool:
    """Node selector and required node affinity."""
    terms = required_terms(spec)
    return all(node_info.labels.get(key) == value for key, value in spec.node_selector.items()) and (
        terms is None or any(term_holds(term, node_info) for term in terms)
    )


def tolerated(taint: Taint, spec: PodSpec) -> bool:
    return any(
        toleration.effect in ("", taint.effect)
        and toleration.key in ("", taint.key)
        and (
            toleration.operator == "Exists"
            or (toleration.operator in ("", "Equal") and toleration.value == taint.value)
        )
        for toleration in spec.tolerations
    )


def repelled(spec: PodSpec, taints: Iterable[Taint]) -> list[Taint]:
    """Hard taints the pod does not tolerate."""
    return [taint for taint in taints if taint.effect in _HARD and not tolerated(taint, spec)]


def ports(spec: PodSpec) -> Iterator[Port]:
    """Ports taken of the host by what runs as long as the pod does; in the host's network these are all its ports."""
    sidecars = (container for container in spec.init_containers if container.restart_policy == "Always")
    for container in (*spec.containers, *sidecars):
        for port in container.ports:
            taken = port.host_port or (port.container_port if spec.host_network else 0)
            if taken:
                yield (port.host_ip, port.protocol or "TCP", taken)


def collide(left: Port, right: Port) -> bool:
    anywhere = left[0] in _EVERY_ADDRESS or right[0] in _EVERY_ADDRESS
    return left[1:] == right[1:] and (anywhere or left[0] == right[0])


# -- one pod on one node, without other pods -------------------------------------------------------------------------------


def node_filter_failures(pod: Pod, node_info: NodeInfo, disks: Mapping[tuple[str, str], Disk]) -> Iterator[str]:
    """Why the pod may never run on the node."""
    if node_info.cordoned and not tolerated(_CORDON, pod.spec):
        yield "the node is cordoned"
    for taint in repelled(pod.spec, node_info.taints):
        yield f"taint {taint.key}={taint.value}:{taint.effect} is not tolerated"
    if not wants_node(pod.spec, node_info):
        yield f"node selector or affinity does not accept {dict(node_info.labels)}"
    for name in volume_claims(pod):
        disk = disks.get((pod.metadata.namespace, name))
        if disk is None:
            yield f"volume claim {name} does not exist"
        elif disk.terms and not any(term_holds(term, node_info) for term in disk.terms):
            yield f"volume claim {name} is elsewhere than {dict(node_info.labels)}"


def volume_claims(pod: Pod) -> Iterator[str]:
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}"


def fit_failures(pods: Sequence[Pod], node_info: NodeInfo, disks: Mapping[tuple[str, str], Disk]) -> Iterator[str]:
    """Why the pods do not fit beside each other on the node: resources, ports, attached volumes."""
    needed = plus(*(needs(pod.spec) for pod in pods))
    for name in lacking(node_info.free, needed):
        yield f"{name}: {needed[name]} needed, {node_info.free.get(name, 0)} free"
    taken = list(node_info.ports)
    for pod in pods:
        own = list(ports(pod.spec))
        for port in own:
            if any(collide(port, other) for other in taken):
                yield f"host port {port} of {pod.metadata.name} is taken"
        taken += own
    attached = node_info.attached | {(pod.metadata.namespace, name) for pod in pods for name in volume_claims(pod)}
    for driver, limit in node_info.attach_limits.items():
        held, count = (
            sum(disks.get(key, Disk()).driver == driver for key in keys) for keys in (node_info.attached, attached)
        )
        if count > max(limit, held):
            yield f"{count} volumes of {driver}, at most {limit} can be attached"


# -- topology -------------------------------------------------------------------------------------------------------------


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """A missing selector selects no pod, an empty one every pod."""
    if selector is None:
        return False
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        accepts(operator, values, labels.get(key))
        for key, operator, values in expressions(selector.match_expressions)
        if operator not in ("Gt", "Lt", "Gte", "Lte")
    )


def _is_empty(selector: LabelSelector | None) -> bool:
    return selector is not None and not selector.match_labels and not selector.match_expressions


def _same(keys: Iterable[str], own: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """``matchLabelKeys`` as the API server merges them into the selector: keys the owner lacks do not count."""
    return all(other.get(key) == own[key] for key in keys if key in own)


def _different(keys: Iterable[str], own: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return all(other.get(key) != own[key] for key in keys if key in own)


def term_selects(term: PodAffinityTerm, owner: Pod, other: Pod, namespaces: Namespaces) -> bool:
    """Whether an affinity or anti-affinity term of the owner selects the other pod."""
    named = set(term.namespaces)
    if not named and term.namespace_selector is None:
        named = {owner.metadata.namespace}
    space = other.metadata.namespace
    labels = {_NAMESPACE_NAME: space, **namespaces.get(space, {})}
    own, its = owner.metadata.labels, other.metadata.labels
    return (
        (space in named or selects(term.namespace_selector, labels))
        and selects(term.label_selector, its)
        and _same(term.match_label_keys, own, its)
        and _different(term.mismatch_label_keys, own, its)
    )


def required_affinity(spec: PodSpec) -> tuple[PodAffinityTerm, ...]:
    """Required pod affinity."""
    return spec.affinity.pod_affinity.required if spec.affinity and spec.affinity.pod_affinity else ()


def required_anti_affinity(spec: PodSpec) -> tuple[PodAffinityTerm, ...]:
    """Required pod anti-affinity."""
    return spec.affinity.pod_anti_affinity.required if spec.affinity and spec.affinity.pod_anti_affinity else ()


def spreads(spec: PodSpec) -> tuple[TopologySpreadConstraint, ...]:
    """Spread constraints that must hold."""
    return tuple(
        spread_constraint
        for spread_constraint in spec.topology_spread_constraints
        if spread_constraint.when_unsatisfiable == "DoNotSchedule"
    )


@dataclass(frozen=True)
class SchedulerSnapshot:
    """All nodes and the pods bound to them. ``domains`` count as existing and empty though no node has them yet."""

    node_infos: Sequence[NodeInfo]
    bound: Sequence[Bound]
    namespaces: Namespaces = field(default_factory=dict)
    domains: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def topology_failures(self, pod: Pod, node_info: NodeInfo) -> Iterator[str]:
        """Why spread, affinity or anti-affinity keeps the pod from the node now."""
        yield from self._spread_failures(pod, node_info)
        yield from self.affinity_failures(pod, node_info)
        yield from self._anti_affinity_failures(pod, node_info)

    # -- topology spread --------------------------------------------------------------------------------------------

    def _spread_failures(self, pod: Pod, node_info: NodeInfo) -> Iterator[str]:
        hard = spreads(pod.spec)
        for constraint in hard:
            domain = node_info.labels.get(constraint.topology_key)
            if domain is None:
                yield f"the node has no label {constraint.topology_key} to spread over"
                continue
            counts = self._counts(pod, constraint, [spread_constraint.topology_key for spread_constraint in hard])
            least = 0 if len(counts) < (constraint.min_domains or 1) else min(counts.values())
            own = self._spread_selects(constraint, pod, pod.metadata.labels)
            if counts.get(domain, 0) + own - least > constraint.max_skew:
                yield f"spread over {constraint.topology_key}: {domain} is ahead in {counts}, skew {constraint.max_skew}"

    def _counts(self, pod: Pod, constraint: TopologySpreadConstraint, keys: Sequence[str]) -> dict[str, int]:
        counts = {
            value: 0
            for value in self.domains.get(constraint.topology_key, ())
            if constraint.node_affinity_policy == "Ignore" or _may_want(pod.spec, constraint.topology_key, value)
        }
        counted = {
            node_info.name: node_info.labels[constraint.topology_key]
            for node_info in self.node_infos
            if all(key in node_info.labels for key in keys) and _includes(constraint, pod, node_info)
        }
        counts.update(dict.fromkeys(counted.values(), 0))
        for other, node_info in self.bound:
            if node_info.name in counted and self._counts_for(constraint, pod, other):
                counts[counted[node_info.name]] += 1
        return counts

    def _counts_for(self, constraint: TopologySpreadConstraint, pod: Pod, other: Pod) -> bool:
        if _is_empty(constraint.label_selector) and not self._keys(constraint, pod):
            return False
        alive = other.metadata.deletion_timestamp is None and other.metadata.namespace == pod.metadata.namespace
        return alive and self._spread_selects(constraint, pod, other.metadata.labels)

    @staticmethod
    def _keys(constraint: TopologySpreadConstraint, pod: Pod) -> list[str]:
        return [key for key in constraint.match_label_keys if key in pod.metadata.labels]

    @staticmethod
    def _spread_selects(constraint: TopologySpreadConstraint, pod: Pod, labels: Mapping[str, str]) -> bool:
        own = pod.metadata.labels
        return selects(constraint.label_selector, labels) and _same(constraint.match_label_keys, own, labels)

    # -- pod affinity ---------------------------------------------------------------------------------------------------

    def affinity_failures(self, pod: Pod, node_info: NodeInfo) -> Iterator[str]:
        """Why the pod's own affinity keeps it from the node."""
        terms = required_affinity(pod.spec)
        for term in terms:
            if term.topology_key not in node_info.labels:
                yield f"the node has no label {term.topology_key} that affinity needs"
                return
        matching = [where for other, where in self.bound if self._suits_all(terms, pod, other)]
        missing = [
            term for term in terms if not any(_together(term.topology_key, node_info, where) for where in matching)
        ]
        matched_anywhere = any(term.topology_key in where.labels for term in terms for where in matching)
        if missing and (matched_anywhere or not self._suits_all(terms, pod, pod)):
            yield f"no pod that its affinity selects is near, by {missing[0].topology_key}"

    def _suits_all(self, terms: Sequence[PodAffinityTerm], pod: Pod, other: Pod) -> bool:
        return bool(terms) and all(term_selects(term, pod, other, self.namespaces) for term in terms)

    # -- pod anti-affinity, both directions -------------------------------------------------------------------------

    def _anti_affinity_failures(self, pod: Pod, node_info: NodeInfo) -> Iterator[str]:
        for other, where in self.bound:
            for term in required_anti_affinity(pod.spec):
                if _together(term.topology_key, node_info, where) and term_selects(term, pod, other, self.namespaces):
                    yield f"its anti-affinity keeps it far from {other.metadata.name} by {term.topology_key}"
            for term in required_anti_affinity(other.spec):
                if _together(term.topology_key, node_info, where) and term_selects(term, other, pod, self.namespaces):
                    yield f"anti-affinity of {other.metadata.name} keeps it far away by {term.topology_key}"


def _together(key: str, left: NodeInfo, right: NodeInfo) -> bool:
    return key in left.labels and left.labels[key] == right.labels.get(key)


def _includes(constraint: TopologySpreadConstraint, pod: Pod, node_info: NodeInfo) -> bool:
    """Whether the node's pods and domain count (``nodeAffinityPolicy``, ``nodeTaintsPolicy``)."""
    if constraint.node_affinity_policy != "Ignore" and not wants_node(pod.spec, node_info):
        return False
    return constraint.node_taints_policy != "Honor" or not repelled(pod.spec, node_info.taints)


def _may_want(spec: PodSpec, key: str, value: str) -> bool:
    """Whether the pod's node selector and affinity accept a domain."""
    if spec.node_selector.get(key, value) != value:
        return False
    terms = required_terms(spec)
    return terms is None or any(
        all(accepts(op, values, value) for name, op, values in expressions(term.match_expressions) if name == key)
        for term in terms
    )
