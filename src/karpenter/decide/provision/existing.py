"""Stage 1: pods onto machines that exist or are on their way (SCH §10), by class and in counts.

A kin is poured into one machine after another, as many pods as its free resources and seats hold; that is arithmetic, not a loop
over pods. Machines still to be launched promise only what every one of their instance types has.

A `Field` is all machines of a decision with bit sets over them: which have so much left, which carry a label. Most of
thousands of machines are ruled out by a few ANDs; what is left is asked one by one. The sets are made once, from what was
free at the start: machines only fill up, so they never miss one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from karpenter.api.core import Pod, Taint, Toleration
from karpenter.catalog.index import Axis, TypeIndex, axes, covering, members
from karpenter.cluster.classes import PodClass, ports_of
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Daemon, PodKey, Snapshot, pod_key
from karpenter.cluster.terms import NodeFilter
from karpenter.cluster.volumes import Mounted
from karpenter.decide.provision.company import Chance, Constraint, chance_to_count
from karpenter.decide.provision.hosting import Rules, Seats
from karpenter.decide.provision.mounting import Attaching, Mounts
from karpenter.decide.provision.prospects import Prospects
from karpenter.decide.provision.templates import runs_on, terms_of
from karpenter.decide.provision.variants import Variant
from karpenter.model import labels, taints
from karpenter.model import resources as res
from karpenter.model.requirements import Op, Requirement, Requirements, compatible, from_labels
from karpenter.model.resources import Resources

#: Stands for the value of a label that a machine yet to be launched has not settled; no label reads so.
OPEN = "\0"
#: A set of machines: bit i stands for the i-th of the field.
MachineSet = int

_STRICT: frozenset[str] = frozenset()
_NO_MOUNTS: Mounted = {}


def most_copies(requests: Resources, left: Mapping[str, int], wanted: int) -> int:
    """How many pods with these requests fit into what is left, at most ``wanted``."""
    for name, amount in requests.items():
        if amount > 0:
            wanted = min(wanted, left.get(name, 0) // amount)
            if wanted <= 0:
                return 0
    return wanted


@dataclass(frozen=True, eq=False)
class Guest:
    """Pods of one kin as machines see them, at one step of their ladder. ``mounts``: what those attach that have volumes."""

    pod_class: PodClass
    variant: Variant
    rules: Rules | None = None
    mounts: Mapping[PodKey, Mounted] = field(default_factory=dict)

    def mounted(self, pods: Sequence[Pod]) -> list[Mounted]:
        """What each of the pods attaches to its node."""
        return [self.mounts.get(pod_key(pod), _NO_MOUNTS) for pod in pods]


class Machine:
    """A machine during one decision: its view, what is still free on it, and who has been planned here in this round."""

    def __init__(
        self,
        view: NodeView,
        index: TypeIndex | None,
        daemons: Sequence[Daemon],
        prospects: Prospects,
        attaching: Attaching,
    ) -> None:
        self.view = view
        self._index = index
        self._types = prospects.types(view, self._index) if self._index is not None else 0
        self._labels = _defined(view, self._index)
        offered = (
            prospects.promised(view, self._index)
            if self._index is not None and self._types
            else self._allocatable(daemons)
        )
        self._daemons = daemons
        self._free = {**res.subtract(offered, view.requested), **attaching.plenty}
        self.left = dict(self._free)
        self._seats = Seats(self.host)
        self._ports_known = False
        self._attaching = attaching
        self._mounts: Mounts | None = None
        self.pods: list[Pod] = []

    @property
    def host(self) -> str:
        """The Node's name, empty before there is one."""
        return self.view.node.metadata.name if self.view.node is not None else ""

    @property
    def free(self) -> Resources:
        """What pods could take before anything was planned here."""
        return self._free

    def start_over(self) -> None:
        """Forget what was planned here."""
        if self.pods:
            self.left = dict(self._free)
            self.pods = []
        self._seats = Seats(self.host)
        self._ports_known = False
        self._mounts = None

    def keep(self, pods: Sequence[Pod], requests: Iterable[Resources]) -> None:
        """These have moved in for good, and nothing else is planned: what follows is about what they leave."""
        self._free = res.subtract(self._free, res.add(*requests))
        self.view = replace(self.view, pods=(*self.view.pods, *pods))
        self.left = dict(self._free)
        self.start_over()

    def _allocatable(self, daemons: Sequence[Daemon]) -> Resources:
        """What the machine has, less what DaemonSets will still take: all that run here less those already bound (SCH-220)."""
        view = self.view
        asked = res.parse(view.claim.spec.resources.requests) if view.claim is not None else {}
        allocatable = view.allocatable if view.launched else asked
        expected = (daemon.requests for daemon in daemons if self._runs(daemon))
        missing = res.subtract(res.add(*expected), view.daemon_requested)
        return res.subtract(allocatable, {name: max(0, amount) for name, amount in missing.items()})

    def _runs(self, daemon: Daemon) -> bool:
        """Whether the DaemonSet runs here; a node that still starts is going to be registered and initialised."""
        held = self._labels
        if self.view.managed and not self.view.initialized:
            held = held.without(labels.SIMULATION_ONLY).intersect(
                from_labels(dict.fromkeys(labels.SIMULATION_ONLY, "true"))
            )
        return runs_on(daemon.spec, self.view.taints) and any(
            compatible(held, term, _STRICT) for term in terms_of(daemon.spec)
        )

    def offers(self, asked: Requirements) -> bool:
        """Whether the machine's labels satisfy what is asked (strict, SCH-167); before launch, whichever it will get."""
        return all(self._certain(item) for item in asked.values())

    def _certain(self, asked: Requirement) -> bool:
        if self.view.launched or self._index is None or asked.key not in self._index.well_known:
            return compatible(self._labels, Requirements((asked,)), _STRICT)
        held = self.view.offers.of(asked.key)
        if asked.key in self.view.offers and held.implies(asked):
            return True
        return bool(self._types) and not self._types & ~self._index.implying(held, asked)

    def chance_to_count(self, counted: NodeFilter | None) -> Chance:
        """Whether a constraint will count the pods of this machine, which is yet to be launched."""
        return chance_to_count(counted, self.view.taints, self.value, self._chance_of)

    def _chance_of(self, asked: Requirements) -> Chance:
        if not compatible(self.view.offers, asked, labels.WELL_KNOWN):
            return Chance.NEVER
        return Chance.SURELY if self.offers(asked) else Chance.PERHAPS

    def value(self, key: str) -> str | None:
        """The value a label has, or is sure to get, here: None where it lacks it, ``OPEN`` while that is not settled."""
        held = self._labels.get(key)
        if held is None and not self.view.launched:
            return self._coming_value(key)
        if held is not None and held.operator is Op.IN and len(held.values) == 1:
            return next(iter(held.values))
        return None

    def _coming_value(self, key: str) -> str | None:
        """The only value a machine yet to be launched may get, None where it will lack the label, ``OPEN`` where either may be.

        Labels its pool gives are on the claim already; only those that machines bring with them come later (SCH-622).
        """
        if self._index is not None and self._certain(Requirement(key, False)):
            return None
        held = self.view.offers.of(key)
        if held.operator is Op.IN and len(held.values) == 1:
            return next(iter(held.values))
        sold = self._index.values(key, self._types) if self._index is not None and self._types else frozenset()
        possible = [value for value in sold if held.allows(value)]
        if len(possible) == 1 and self._certain(Requirement(key, False, frozenset(possible))):
            return possible[0]
        return OPEN

    def seats(self, rules: Rules) -> Seats:
        """Who sits here, as far as these rules ask."""
        if rules.ports and not self._ports_known:
            self._ports_known = True
            bound = [port for pod in self.view.pods for port in ports_of(pod.spec)]
            coming = [port for daemon in self._daemons for port in ports_of(daemon.spec) if self._runs(daemon)]
            self._seats.ports = (*self._seats.ports, *bound, *coming)
        return self._seats

    def _attached(self) -> Mounts:
        """What is attached here by now, and what may be (SCH-470)."""
        if self._mounts is None:
            self._mounts = self._attaching.of_machine(self.view)
        return self._mounts

    def room(self, guest: Guest, pods: Sequence[Pod], founding: Container[Constraint]) -> int:
        """How many of the leading pods fit here (SCH-272). ``founding``: affinity nobody satisfies yet."""
        fitting = most_copies(guest.pod_class.requests, self.left, len(pods))
        if not fitting or taints.untolerated(self.view.taints, guest.variant.tolerations):
            return 0
        if guest.variant.requirements and not self.offers(guest.variant.requirements):
            return 0
        if guest.mounts:
            fitting = self._attached().room(guest.mounted(pods[:fitting]))
        return guest.rules.room(self.seats(guest.rules), fitting, founding) if guest.rules is not None else fitting

    def take(self, guest: Guest, pods: Sequence[Pod]) -> None:
        """Commit pods (SCH-274)."""
        for name, amount in guest.pod_class.requests.items():
            self.left[name] = self.left.get(name, 0) - amount * len(pods)
        if guest.mounts:
            self._mounts = self._attached().take(guest.mounted(pods))
        if guest.rules is not None:
            guest.rules.take(self.seats(guest.rules), len(pods))
        self.pods.extend(pods)


def _defined(view: NodeView, index: TypeIndex | None) -> Requirements:
    """Labels that are settled. A claim's own labels are; a custom key it only requires will not become a label (SCH-622)."""
    if view.launched or view.claim is None:
        return view.offers
    if index is None:
        return Requirements(item for item in view.offers.values() if item.operator is Op.IN and len(item.values) == 1)
    return from_labels({**view.claim.metadata.labels, labels.HOSTNAME: view.hostname})


def machines(
    snapshot: Snapshot,
    indexes: Mapping[str, TypeIndex],
    daemons: Sequence[Daemon],
    attaching: Attaching,
    prospects: Prospects,
) -> tuple[Machine, ...]:
    """Machines pods may join, in the order they are tried: initialised first, then by name (SCH-270, SCH-095).

    What is on its way is told by its pool's types, even if the pool sells no more of them.
    """
    staying = (view for view in snapshot.nodes if not view.leaving)
    ordered = sorted(staying, key=lambda view: (not view.initialized, view.name))
    return tuple(Machine(view, indexes.get(view.pool), daemons, prospects, attaching) for view in ordered)


class Field:
    """All machines of a decision, in the order they are tried, with sets over them."""

    def __init__(self, found: Sequence[Machine]) -> None:
        self.machines = tuple(found)
        self.everyone: MachineSet = (1 << len(self.machines)) - 1
        self._by_taints: dict[tuple[Taint, ...], MachineSet] = {}
        for place, machine in enumerate(self.machines):
            known = self._by_taints.get(machine.view.taints, 0)
            self._by_taints[machine.view.taints] = known | 1 << place
        self._tolerated: dict[tuple[Toleration, ...], MachineSet] = {}
        self._by_label: dict[str, dict[str | None, MachineSet]] = {}

    @cached_property
    def _resources(self) -> Mapping[str, Axis]:
        return axes([machine.free for machine in self.machines])

    def refresh(self) -> None:
        """Machines have filled up for good: know again which have how much left."""
        self.__dict__.pop("_resources", None)

    def holding(self, requests: Resources) -> MachineSet:
        """Machines that had so much free at the start."""
        return covering(requests, self._resources, self.everyone)

    def tolerated(self, tolerations: tuple[Toleration, ...]) -> MachineSet:
        """Machines none of whose taints keeps such pods away."""
        known = self._tolerated.get(tolerations)
        if known is None:
            known = 0
            for node_taints, having in self._by_taints.items():
                if not taints.untolerated(node_taints, tolerations):
                    known |= having
            self._tolerated[tolerations] = known
        return known

    def values(self, key: str) -> Mapping[str | None, MachineSet]:
        """Machines by the value of a label, see ``Machine.value``."""
        known = self._by_label.get(key)
        if known is None:
            known = self._by_label[key] = {}
            for place, machine in enumerate(self.machines):
                value = machine.value(key)
                known[value] = known.get(value, 0) | 1 << place
        return known

    def candidates(self, guest: Guest) -> MachineSet:
        """Machines worth asking: none that is left out could take a single one of the pods."""
        found = self.holding(guest.pod_class.requests) & self.tolerated(guest.variant.tolerations)
        for key, asked in guest.variant.requirements.items():
            if found and asked.operator is Op.IN:
                by_value = self.values(key)
                matching = by_value.get(OPEN, 0)
                for value in asked.values:
                    matching |= by_value.get(value, 0)
                found &= matching
        return found

    def among(self, candidates: MachineSet) -> Iterator[Machine]:
        """The members of a set, in the order they are tried."""
        return (self.machines[place] for place in members(candidates))
