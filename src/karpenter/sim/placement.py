"""Where one pod goes: the filters and scores of kube-scheduler, over a board of nodes kept current pod by pod.

Filters are applied in kube-scheduler's order (``Refusal`` lists them), scores with its default weights: free capacity 1,
balance 1, node affinity 2, pod affinity 2, spread 2, preferred taints 3. Where kube-scheduler draws among equals, the first
name wins here. A nominated node is tried before all others, and room for a nominated pod is kept from pods of the same or
lower priority.

Left out, because nothing in this room provides them: volumes, device claims, image locality, preemption.

Cost. Whatever depends only on node and pod template is remembered per node and template; usage is a running sum; counts
for spread and affinity come from the census. So an attempt is one pass over the nodes, and an attempt equal to one that
failed since the board last changed is not made.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from karpenter.api.core import (
    Node,
    NodeAffinity,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodSpec,
    TopologySpreadConstraint,
)
from karpenter.kube.informer import Key
from karpenter.model import pods, requirements, taints
from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.sim import domains
from karpenter.sim.domains import Census
from karpenter.sim.following import key_of

_HARD = frozenset({"NoSchedule", "NoExecute"})
_ABSENT_PASSES = frozenset({requirements.Op.NOT_IN, requirements.Op.DOES_NOT_EXIST})
_FULL_SCORE = 100
# The two classes every cluster has; others come with the number filled in by admission.
_CLASS_PRIORITY = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
# What kube-scheduler assumes, for scoring only, of a pod that requests nothing: 100m and 200 MiB.
_ASSUMED = {res.CPU: 100, res.MEMORY: 200 * 2**20 * 1000}


class Refusal(StrEnum):
    """Why a node does not take a pod; in the order the questions are asked."""

    CORDONED = "cordoned"
    TAINTED = "had taints the pod does not tolerate"
    NODE_AFFINITY = "did not match the pod's node selector or affinity"
    HOST_PORT = "had a requested host port in use"
    RESOURCES = "had too few free resources"
    SPREAD = "would break the pod's topology spread"
    POD_AFFINITY = "had no pod near that the pod requires"
    ANTI_AFFINITY = "had a pod near that excludes the pod or that it excludes"


@dataclass(frozen=True, slots=True)
class Placed:
    """A node takes the pod."""

    node: str


@dataclass(frozen=True, slots=True)
class Refused:
    """No node takes the pod; how many nodes gave which reason first."""

    nodes: int
    reasons: tuple[tuple[Refusal, int], ...]

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {reason}" for reason, count in self.reasons)
        return f"0/{self.nodes} nodes are available" + (f": {counted}." if counted else ".")


Port = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Ask:
    """A pod with everything a scheduling attempt reads worked out."""

    pod: Pod
    requests: Resources
    ports: tuple[Port, ...]
    priority: int
    template: bytes
    signature: bytes
    looks_around: bool


def ask(pod: Pod) -> Ask:
    """Prepare a pod for scheduling. Raises ``quantity.QuantityError``."""
    spec = pod.spec
    affinity = spec.affinity
    node_affinity = affinity.node_affinity if affinity is not None else None
    requests = pods.requests(pod)
    ports = tuple(_ports(spec))
    template = msgspec.json.encode((spec.node_selector, node_affinity, spec.tolerations))
    around = (
        spec.topology_spread_constraints,
        affinity.pod_affinity if affinity is not None else None,
        affinity.pod_anti_affinity if affinity is not None else None,
    )
    priority = spec.priority if spec.priority is not None else _CLASS_PRIORITY.get(spec.priority_class_name, 0)
    identity = (pod.metadata.namespace, pod.metadata.labels, pod.status.nominated_node_name, priority)
    signature = msgspec.json.encode((identity, requests, ports, around)) + template
    return Ask(pod, requests, ports, priority, template, signature, any(around))


def _ports(spec: PodSpec) -> Iterable[Port]:
    for container in spec.containers:
        for port in container.ports:
            if port.host_port:
                yield (port.host_ip or "0.0.0.0", port.protocol, port.host_port)


def _ports_collide(left: Port, right: Port) -> bool:
    same_address = left[0] == right[0] or "0.0.0.0" in (left[0], right[0])
    return same_address and left[1:] == right[1:]


def matches_node(spec: PodSpec, node: Node) -> bool:
    """Whether node selector and required node affinity accept the node: any one term will do."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    affinity = _node_affinity(spec)
    if affinity is None or affinity.required is None:
        return True
    return any(_term_matches(term, node) for term in affinity.required.node_selector_terms)


def _node_affinity(spec: PodSpec) -> NodeAffinity | None:
    return spec.affinity.node_affinity if spec.affinity is not None else None


def _term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.metadata.name}
    return all(_holds(item, node.metadata.labels) for item in term.match_expressions) and all(
        _holds(item, fields) for item in term.match_fields
    )


def _holds(item: NodeSelectorRequirement, values: Mapping[str, str]) -> bool:
    value = values.get(item.key)
    if value is None:
        return item.operator in _ABSENT_PASSES
    return requirements.requirement(item.key, item.operator, item.values).allows(value)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """What a node thinks of a pod template, whatever else runs."""

    refusal: Refusal | None
    matches: bool
    preference: int
    soft_taints: int


@dataclass(slots=True)
class _Slot:
    """A node and what is on it. ``node`` is None while only its pods are known."""

    name: str
    node: Node | None = None
    allocatable: Resources = field(default_factory=dict)
    free: dict[str, int] = field(default_factory=dict)
    scored: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_ASSUMED, 0))
    held: dict[Key, Ask] = field(default_factory=dict)
    nominated: dict[Key, Ask] = field(default_factory=dict)
    fixed: dict[bytes, _Fixed] = field(default_factory=dict)

    def set_node(self, node: Node | None) -> None:
        self.node = node
        self.fixed.clear()
        self.allocatable = res.parse(node.status.allocatable) if node is not None else {}
        self.free = dict(self.allocatable)
        for held in self.held.values():
            self._use(held, 1)

    def hold(self, item: Ask) -> None:
        self.held[key_of(item.pod.metadata)] = item
        self._use(item, 1)
        self._weigh(item, 1)

    def release(self, key: Key) -> Ask:
        item = self.held.pop(key)
        self._use(item, -1)
        self._weigh(item, -1)
        return item

    def _use(self, item: Ask, by: int) -> None:
        for name, amount in item.requests.items():
            self.free[name] = self.free.get(name, 0) - by * amount

    def _weigh(self, item: Ask, by: int) -> None:
        for name, assumed in _ASSUMED.items():
            self.scored[name] += by * (item.requests.get(name, 0) or assumed)

    @property
    def labels(self) -> Mapping[str, str]:
        return self.node.metadata.labels if self.node is not None else {}


class Board:
    """All nodes with what they hold; answers where a pod goes.

    A pod that was refused need not ask again before ``stamp`` has changed for it.
    """

    def __init__(self) -> None:
        self._grown = 0
        self._changed = 0
        self.census = Census()
        self._slots: dict[str, _Slot] = {}
        self._names: list[str] = []
        self._node_of: dict[Key, str] = {}
        self._nominated_on: dict[Key, str] = {}
        self._failed: dict[bytes, Refused] = {}

    def stamp(self, item: Ask) -> int:
        """Counts the changes that may let this pod fit: more room, or any change for a pod that looks at others."""
        return self._changed if item.looks_around else self._grown

    def set_node(self, name: str, node: Node | None) -> None:
        """A node came, changed, or went (None)."""
        slot = self._slots.setdefault(name, _Slot(name))
        if slot.node is not None and node is not None and _same_for_pods(slot.node, node):
            return
        if slot.node is None and node is not None:
            insort(self._names, name)
        elif slot.node is not None and node is None:
            self._names.remove(name)
        slot.set_node(node)
        self._grew()
        self._tidy(slot)

    def put(self, item: Ask, node: str) -> None:
        """The pod is on the node (bound or about to be); replaces what was known of the pod."""
        key = key_of(item.pod.metadata)
        before = self._take(key)
        reserved = self._unreserve(key)
        self._slots.setdefault(node, _Slot(node)).hold(item)
        self._node_of[key] = node
        self.census.put(item.pod, node)
        self._changed += 1
        if (before is not None and before.requests != item.requests) or reserved not in ("", node):
            self._grew()

    def drop(self, key: Key) -> None:
        """The pod holds nothing any more."""
        if self._take(key) is not None:
            self._grew()

    def _take(self, key: Key) -> Ask | None:
        node = self._node_of.pop(key, None)
        if node is None:
            return None
        slot = self._slots[node]
        item = slot.release(key)
        self.census.drop(key)
        self._tidy(slot)
        return item

    def nominate(self, item: Ask) -> None:
        """Keep room for a waiting pod on the node its status nominates, if any."""
        key = key_of(item.pod.metadata)
        node = item.pod.status.nominated_node_name
        if self._nominated_on.get(key, "") == node:
            return
        self.withdraw(key)
        if node:
            self._nominated_on[key] = node
            self._slots.setdefault(node, _Slot(node)).nominated[key] = item

    def withdraw(self, key: Key) -> None:
        """The pod's nomination holds no room any more."""
        if self._unreserve(key):
            self._grew()

    def _unreserve(self, key: Key) -> str:
        node = self._nominated_on.pop(key, "")
        if node:
            slot = self._slots[node]
            del slot.nominated[key]
            self._tidy(slot)
        return node

    def _grew(self) -> None:
        self._grown += 1
        self._changed += 1
        self._failed.clear()

    def _tidy(self, slot: _Slot) -> None:
        if slot.node is None and not slot.held and not slot.nominated:
            self._slots.pop(slot.name, None)

    def place(self, item: Ask) -> Placed | Refused:
        """The node for a pod, or why there is none."""
        known = self._failed.get(item.signature)
        if known is not None:
            return known
        around = _Surroundings(self, item)
        nominated = self._slots.get(item.pod.status.nominated_node_name)
        if nominated is not None and nominated.node is not None and _refusal(item, nominated, around) is None:
            return Placed(nominated.name)
        return self._choose(item, around)

    def _choose(self, item: Ask, around: _Surroundings) -> Placed | Refused:
        open_slots: list[_Slot] = []
        refusals: Counter[Refusal] = Counter()
        for slot in self.slots():
            refusal = _refusal(item, slot, around)
            if refusal is None:
                open_slots.append(slot)
            else:
                refusals[refusal] += 1
        if open_slots:
            return Placed(_best(item, open_slots, around).name)
        reasons = tuple((reason, refusals[reason]) for reason in Refusal if refusals[reason])
        refused = Refused(len(self._names), reasons)
        if not item.looks_around:
            self._failed[item.signature] = refused
        return refused

    def slots(self) -> Iterable[_Slot]:
        """Every known node, by name."""
        return (self._slots[name] for name in self._names)


def _same_for_pods(left: Node, right: Node) -> bool:
    return (
        left.metadata.labels == right.metadata.labels
        and left.spec == right.spec
        and left.status.allocatable == right.status.allocatable
    )


def _refusal(item: Ask, slot: _Slot, around: _Surroundings) -> Refusal | None:
    fixed = _fixed(item, slot)
    if fixed.refusal is not None:
        return fixed.refusal
    if item.ports and _port_taken(item, slot):
        return Refusal.HOST_PORT
    if not _fits(item, slot):
        return Refusal.RESOURCES
    return around.refusal(slot) if item.looks_around or around.refused_near else None


def _fixed(item: Ask, slot: _Slot) -> _Fixed:
    known = slot.fixed.get(item.template)
    if known is None:
        assert slot.node is not None
        known = slot.fixed[item.template] = _judge(item.pod.spec, slot.node)
    return known


def _judge(spec: PodSpec, node: Node) -> _Fixed:
    open_taints = taints.untolerated(node.spec.taints, spec.tolerations)
    soft = sum(taint.effect not in _HARD for taint in open_taints)
    affinity = _node_affinity(spec)
    preferred = affinity.preferred if affinity is not None else ()
    weight = sum(term.weight for term in preferred if _term_matches(term.preference, node))
    matches = matches_node(spec, node)
    refusal = None if matches else Refusal.NODE_AFFINITY
    if len(open_taints) > soft:
        refusal = Refusal.TAINTED
    if node.spec.unschedulable and not _tolerates_cordon(spec):
        refusal = Refusal.CORDONED
    return _Fixed(refusal, matches, weight, soft)


def _tolerates_cordon(spec: PodSpec) -> bool:
    return any(
        toleration.operator == "Exists"
        and toleration.key in ("", "node.kubernetes.io/unschedulable")
        and toleration.effect in ("", "NoSchedule")
        for toleration in spec.tolerations
    )


def _others_nominated(item: Ask, slot: _Slot) -> list[Ask]:
    own = key_of(item.pod.metadata)
    return [
        other
        for key, other in slot.nominated.items()
        if key != own and other.priority >= item.priority and key not in slot.held
    ]


def _port_taken(item: Ask, slot: _Slot) -> bool:
    holders = (*slot.held.values(), *_others_nominated(item, slot))
    return any(_ports_collide(own, other) for own in item.ports for holder in holders for other in holder.ports)


def _fits(item: Ask, slot: _Slot) -> bool:
    if not slot.nominated:
        return res.fits(item.requests, slot.free)
    kept = res.add(*(other.requests for other in _others_nominated(item, slot)))
    return res.fits(res.add(item.requests, kept), slot.free)


class _Surroundings:
    """What spread and pod affinity say about each node, worked out once per attempt."""

    def __init__(self, board: Board, item: Ask) -> None:
        self._census = board.census
        self._pod = item.pod
        self._nodes = [(slot.name, slot.labels) for slot in board.slots()] if item.looks_around else []
        self._spread = [self._hard_spread(each, item, board) for each in _hard(item.pod)]
        affinity = item.pod.spec.affinity
        self._wanted = self._near(affinity.pod_affinity if affinity is not None else None)
        self._unwanted = self._near(affinity.pod_anti_affinity if affinity is not None else None)
        self._starts_group = self._is_first_of_group()
        self.refused_near = self._refused_near(board)

    def _count(self, pattern: domains.Pattern, topology_key: str) -> dict[str, int]:
        return domains.per_domain(self._census.tally(pattern), topology_key, self._nodes)

    def _hard_spread(
        self, constraint: TopologySpreadConstraint, item: Ask, board: Board
    ) -> tuple[str, dict[str, int], int]:
        """Topology key, matching pods per domain, and the most a domain may hold before this pod joins it."""
        pattern = domains.of_constraint(item.pod, constraint)
        keys = [each.topology_key for each in _hard(item.pod)]
        counted = [
            (slot.name, slot.labels)
            for slot in board.slots()
            if all(key in slot.labels for key in keys) and _counts_for_spread(constraint, item, slot)
        ]
        totals = domains.per_domain(self._census.tally(pattern), constraint.topology_key, counted)
        fewest = min(totals.values(), default=0) if len(totals) >= (constraint.min_domains or 1) else 0
        joins = self._census.matches(pattern, item.pod)
        return constraint.topology_key, totals, constraint.max_skew + fewest - joins

    def _near(self, affinity: PodAffinity | None) -> list[tuple[str, dict[str, int]]]:
        return [
            (term.topology_key, self._count(domains.of_term(self._pod, term), term.topology_key))
            for term in domains.required(affinity)
        ]

    def _is_first_of_group(self) -> bool:
        """Whether the pod wants its own kind near and nobody of that kind has a node yet: then any domain will do."""
        affinity = self._pod.spec.affinity
        terms = domains.required(affinity.pod_affinity) if affinity is not None else ()
        patterns = [domains.of_term(self._pod, term) for term in terms]
        return all(self._census.matches(pattern, self._pod) for pattern in patterns) and not any(
            self._census.tally(pattern) for pattern in patterns
        )

    def _refused_near(self, board: Board) -> set[tuple[str, str]]:
        near: set[tuple[str, str]] = set()
        for topology_key, tally in self._census.refusing(self._pod):
            for slot in board.slots():
                domain = slot.labels.get(topology_key)
                if domain is not None and slot.name in tally:
                    near.add((topology_key, domain))
        return near

    def refusal(self, slot: _Slot) -> Refusal | None:
        labels = slot.labels
        for key, totals, most in self._spread:
            if key not in labels or totals.get(labels[key], 0) > most:
                return Refusal.SPREAD
        if any(
            key not in labels or not (self._starts_group or totals.get(labels[key])) for key, totals in self._wanted
        ):
            return Refusal.POD_AFFINITY
        excluded = any(key in labels and totals.get(labels[key]) for key, totals in self._unwanted)
        if excluded or any(labels.get(key) == domain for key, domain in self.refused_near):
            return Refusal.ANTI_AFFINITY
        return None

    def spread_scores(self, slots: list[_Slot]) -> list[float]:
        """How crowded each node's domains are in the eyes of the soft spread constraints; fewer is better."""
        crowding = [0.0] * len(slots)
        for constraint in self._pod.spec.topology_spread_constraints:
            if constraint.when_unsatisfiable != "ScheduleAnyway":
                continue
            totals = self._count(domains.of_constraint(self._pod, constraint), constraint.topology_key)
            weight = math.log(len(totals) + 2)
            for index, slot in enumerate(slots):
                count = totals.get(slot.labels.get(constraint.topology_key, ""), 0)
                crowding[index] += count * weight + constraint.max_skew - 1
        return crowding

    def affinity_scores(self, slots: list[_Slot]) -> list[float]:
        """Weighted count of pods the pod prefers near, less those it prefers far; more is better."""
        affinity = self._pod.spec.affinity
        sums = [0.0] * len(slots)
        if affinity is None:
            return sums
        for sign, side in ((1, affinity.pod_affinity), (-1, affinity.pod_anti_affinity)):
            for preferred in side.preferred if side is not None else ():
                term = preferred.pod_affinity_term
                totals = self._count(domains.of_term(self._pod, term), term.topology_key)
                for index, slot in enumerate(slots):
                    count = totals.get(slot.labels.get(term.topology_key, ""), 0)
                    sums[index] += sign * preferred.weight * count
        return sums


def _hard(pod: Pod) -> list[TopologySpreadConstraint]:
    return [each for each in pod.spec.topology_spread_constraints if each.when_unsatisfiable != "ScheduleAnyway"]


def _counts_for_spread(constraint: TopologySpreadConstraint, item: Ask, slot: _Slot) -> bool:
    assert slot.node is not None
    if constraint.node_affinity_policy != "Ignore" and not _fixed(item, slot).matches:
        return False
    if constraint.node_taints_policy != "Honor":
        return True
    open_taints = taints.untolerated(slot.node.spec.taints, item.pod.spec.tolerations)
    return not any(taint.effect in _HARD for taint in open_taints)


def _best(item: Ask, slots: list[_Slot], around: _Surroundings) -> _Slot:
    if len(slots) == 1:
        return slots[0]
    totals = [_free_score(item, slot) for slot in slots]
    fixed = [_fixed(item, slot) for slot in slots]
    weighted: list[tuple[int, list[int]]] = [
        (2, _highest_is_best([each.preference for each in fixed])),
        (3, _lowest_is_best([each.soft_taints for each in fixed])),
    ]
    if item.looks_around:
        weighted.append((2, _lowest_is_best(around.spread_scores(slots))))
        weighted.append((2, _highest_is_best(around.affinity_scores(slots))))
    for weight, scores in weighted:
        totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
    # The slots are in the order of their names and max keeps the first of equals.
    return max(zip(totals, slots, strict=True), key=lambda pair: pair[0])[1]


def _free_score(item: Ask, slot: _Slot) -> int:
    """Least-allocated plus balance, each 0 to 100."""
    used: list[float] = []
    for name, assumed in _ASSUMED.items():
        whole = slot.allocatable.get(name, 0)
        wanted = slot.scored[name] + (item.requests.get(name, 0) or assumed)
        used.append(min(1.0, wanted / whole) if whole > 0 else 1.0)
    least = sum(int((1 - share) * _FULL_SCORE) for share in used) // len(used)
    balance = int((1 - abs(used[0] - used[1]) / 2) * _FULL_SCORE)
    return least + balance


def _highest_is_best(values: Iterable[float]) -> list[int]:
    given = list(values)
    lowest, highest = min(min(given), 0), max(given)
    span = highest - lowest
    return [int(_FULL_SCORE * (value - lowest) / span) if span else 0 for value in given]


def _lowest_is_best(values: Iterable[float]) -> list[int]:
    return [_FULL_SCORE - score for score in _highest_is_best(values)]
