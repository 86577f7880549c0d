"""What kube-scheduler (v1.35) asks before it binds a pod to a node, written down plainly.

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
    """What a volume claim asks of nodes: one of the terms must hold (none: any node does), and a driver that attaches it."""

    terms: tuple[NodeSelectorTerm, ...] = ()
    driver: str = ""


@dataclass(frozen=True)
class Machine:
    """A node with certain labels, before the pods that are judged. ``ports`` are taken, ``free`` is what is left."""

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
Bound = tuple[Pod, Machine]


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
    """Resources of which too little is free; what nobody asks for does not matter."""
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


def term_holds(term: NodeSelectorTerm, machine: Machine) -> bool:
    """A term without any expression holds nowhere."""
    fields = {"metadata.name": machine.name}
    return bool(term.match_expressions or term.match_fields) and all(
        accepts(operator, values, own.get(key))
        for entries, own in ((term.match_expressions, machine.labels), (term.match_fields, fields))
        for key, operator, values in expressions(entries)
    )


def required_terms(spec: PodSpec) -> tuple[NodeSelectorTerm, ...] | None:
    """Required node-affinity terms of which one must hold; None where nothing is required."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    return affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else None


def wants_node(spec: PodSpec, machine: Machine) -> bool:
    """Node selector and required node affinity."""
    terms = required_terms(spec)
    return all(machine.labels.get(key) == value for key, value in spec.node_selector.items()) and (
        terms is None or any(term_holds(term, machine) for term in terms)
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


# -- one pod on one node, whatever else there is ---------------------------------------------------------------------------


def misfits(pod: Pod, machine: Machine, disks: Mapping[tuple[str, str], Disk]) -> Iterator[str]:
    """Why the pod may never run on the node."""
    if machine.cordoned and not tolerated(_CORDON, pod.spec):
        yield "the node is cordoned"
    for taint in repelled(pod.spec, machine.taints):
        yield f"taint {taint.key}={taint.value}:{taint.effect} is not tolerated"
    if not wants_node(pod.spec, machine):
        yield f"node selector or affinity does not accept {dict(machine.labels)}"
    for name in volume_claims(pod):
        disk = disks.get((pod.metadata.namespace, name))
        if disk is None:
            yield f"volume claim {name} does not exist"
        elif disk.terms and not any(term_holds(term, machine) for term in disk.terms):
            yield f"volume claim {name} is elsewhere than {dict(machine.labels)}"


def volume_claims(pod: Pod) -> Iterator[str]:
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}"


def crowding(pods: Sequence[Pod], machine: Machine, disks: Mapping[tuple[str, str], Disk]) -> Iterator[str]:
    """Why the pods do not fit beside each other on the node: resources, ports, attached volumes."""
    needed = plus(*(needs(pod.spec) for pod in pods))
    for name in lacking(machine.free, needed):
        yield f"{name}: {needed[name]} needed, {machine.free.get(name, 0)} free"
    taken = list(machine.ports)
    for pod in pods:
        own = list(ports(pod.spec))
        for port in own:
            if any(collide(port, other) for other in taken):
                yield f"host port {port} of {pod.metadata.name} is taken"
        taken += own
    attached = machine.attached | {(pod.metadata.namespace, name) for pod in pods for name in volume_claims(pod)}
    for driver, limit in machine.attach_limits.items():
        held, count = (
            sum(disks.get(key, Disk()).driver == driver for key in keys) for keys in (machine.attached, attached)
        )
        if count > max(limit, held):
            yield f"{count} volumes of {driver}, at most {limit} can be attached"


# -- neighbours -----------------------------------------------------------------------------------------------------------


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """A missing selector selects nobody, an empty one everybody."""
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
    """Whether an affinity or anti-affinity term of the owner is about the other pod."""
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


def near(spec: PodSpec) -> tuple[PodAffinityTerm, ...]:
    """Required pod affinity."""
    return spec.affinity.pod_affinity.required if spec.affinity and spec.affinity.pod_affinity else ()


def far(spec: PodSpec) -> tuple[PodAffinityTerm, ...]:
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
class Scene:
    """Who is where. ``universe`` are domains that count as there, empty, though no node has them yet."""

    machines: Sequence[Machine]
    bound: Sequence[Bound]
    namespaces: Namespaces = field(default_factory=dict)
    universe: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def objections(self, pod: Pod, machine: Machine) -> Iterator[str]:
        """Why neighbours, or their absence, keep the pod from the node now."""
        yield from self._uneven(pod, machine)
        yield from self.lonely(pod, machine)
        yield from self._disliked(pod, machine)

    # -- topology spread --------------------------------------------------------------------------------------------

    def _uneven(self, pod: Pod, machine: Machine) -> Iterator[str]:
        hard = spreads(pod.spec)
        for constraint in hard:
            domain = machine.labels.get(constraint.topology_key)
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
            for value in self.universe.get(constraint.topology_key, ())
            if constraint.node_affinity_policy == "Ignore" or _may_want(pod.spec, constraint.topology_key, value)
        }
        counted = {
            machine.name: machine.labels[constraint.topology_key]
            for machine in self.machines
            if all(key in machine.labels for key in keys) and _includes(constraint, pod, machine)
        }
        counts.update(dict.fromkeys(counted.values(), 0))
        for other, machine in self.bound:
            if machine.name in counted and self._counts_for(constraint, pod, other):
                counts[counted[machine.name]] += 1
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

    def lonely(self, pod: Pod, machine: Machine) -> Iterator[str]:
        """Why the pod's own affinity keeps it from the node."""
        terms = near(pod.spec)
        for term in terms:
            if term.topology_key not in machine.labels:
                yield f"the node has no label {term.topology_key} to be near somebody by"
                return
        company = [where for other, where in self.bound if self._suits_all(terms, pod, other)]
        missing = [term for term in terms if not any(_together(term.topology_key, machine, where) for where in company)]
        settled = any(term.topology_key in where.labels for term in terms for where in company)
        if missing and (settled or not self._suits_all(terms, pod, pod)):
            yield f"nobody the pod wants near by {missing[0].topology_key}"

    def _suits_all(self, terms: Sequence[PodAffinityTerm], pod: Pod, other: Pod) -> bool:
        return bool(terms) and all(term_selects(term, pod, other, self.namespaces) for term in terms)

    # -- pod anti-affinity, both directions -------------------------------------------------------------------------

    def _disliked(self, pod: Pod, machine: Machine) -> Iterator[str]:
        for other, where in self.bound:
            for term in far(pod.spec):
                if _together(term.topology_key, machine, where) and term_selects(term, pod, other, self.namespaces):
                    yield f"wants to be far from {other.metadata.name} by {term.topology_key}"
            for term in far(other.spec):
                if _together(term.topology_key, machine, where) and term_selects(term, other, pod, self.namespaces):
                    yield f"{other.metadata.name} wants it far away by {term.topology_key}"


def _together(key: str, left: Machine, right: Machine) -> bool:
    return key in left.labels and left.labels[key] == right.labels.get(key)


def _includes(constraint: TopologySpreadConstraint, pod: Pod, machine: Machine) -> bool:
    """Whether the node's pods and domain count (``nodeAffinityPolicy``, ``nodeTaintsPolicy``)."""
    if constraint.node_affinity_policy != "Ignore" and not wants_node(pod.spec, machine):
        return False
    return constraint.node_taints_policy != "Honor" or not repelled(pod.spec, machine.taints)


def _may_want(spec: PodSpec, key: str, value: str) -> bool:
    """Whether the pod may go to a domain as far as its own words about that key say."""
    if spec.node_selector.get(key, value) != value:
        return False
    terms = required_terms(spec)
    return terms is None or any(
        all(accepts(op, values, value) for name, op, values in expressions(term.match_expressions) if name == key)
        for term in terms
    )
