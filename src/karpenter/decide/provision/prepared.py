"""One snapshot, many questions: where would these bound pods go if their machines were gone (DIS §7)?

Disruption asks that of every machine and of many sets of machines. What all questions share is made once: templates and what they
sell, the machines with their bit sets, what bound pods mean to each other. A question then costs what its own pods cost, whatever
the size of the cluster. The steps are those of a provisioning decision, so a move is judged as its pods will be placed.

What is decided can be settled: its machines are gone and its pods where they were planned for every question that follows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from math import inf

from karpenter.api.core import Pod
from karpenter.catalog.index import TypeIndex, members
from karpenter.cluster.classes import PodClass, PodClasses
from karpenter.cluster.faces import Counts, Face, face_of, is_counted
from karpenter.cluster.nodes import NO_USAGE, NodeView, view
from karpenter.cluster.snapshot import PodGroup, PodKey, Snapshot, age, pod_key
from karpenter.cluster.terms import Term
from karpenter.decide.plan import PlacedPods, PlannedClaim, UnplacedPod
from karpenter.decide.provision import eligible
from karpenter.decide.provision.company import Scene, counts_on, domain_of
from karpenter.decide.provision.decision import Deciding, Options
from karpenter.decide.provision.demand import Claim, Demand
from karpenter.decide.provision.existing import Field, Guest, Machine, MachineSet
from karpenter.decide.provision.finalise import planned_claims
from karpenter.decide.provision.rounds import SEARCHED_ALONE, Rounds
from karpenter.decide.provision.settling import Caps, Failed, Kin, Settling
from karpenter.decide.provision.topology import Domains
from karpenter.decide.reasons import Category, Reason
from karpenter.model import resources as res
from karpenter.model.buffers import is_virtual

#: Ways CPU is weighed against memory in bounds, beside each by itself; and how many bytes of memory weigh like a core.
_WEIGHINGS = 12
_MEMORY_PER_CPU = 4.0 * 2**30
#: After so many moves the sets of machines by what is left are made anew; till then they hold some that are full by now.
_REFRESHED = 16
#: In which order machines are offered to pods: initialised ones first whatever it says.
Order = Callable[[NodeView], object]


_USUAL = Options()


def _by_name(view: NodeView) -> object:
    return view.name


@dataclass(frozen=True, eq=False)
class Relocated:
    """Where pods would go. ``placed`` are those for machines that exist, ``bought`` machines for others, ``stranded`` the rest.

    ``uninitialised``: keys of machines among those that exist that are not ready for pods yet (DIS-165).
    """

    placed: tuple[PlacedPods, ...]
    bought: tuple[Claim, ...]
    stranded: tuple[UnplacedPod, ...]
    uninitialised: frozenset[str]
    _demands: tuple[Demand, ...]
    _taken: Collection[str]

    @property
    def price_per_hour(self) -> float:
        """USD of the machines to buy, each at its cheapest offering."""
        return sum(claim.cheapest.price_per_hour for claim in self.bought)

    def claims(self, bought: Sequence[Claim] | None = None) -> tuple[PlannedClaim, ...]:
        """The machines to buy as NodeClaims. ``bought``: the same ones with fewer types."""
        return planned_claims(self.bought if bought is None else bought, self._demands, self._taken)

    @cached_property
    def hosted(self) -> frozenset[PodKey]:
        """The pods for machines that exist."""
        return frozenset(pod_key(pod) for item in self.placed for pod in item.pods)


class Prepared:
    """The questions' common ground. ``order``: machines of equal standing in the order pods fill them, by name unless given."""

    def __init__(
        self,
        snapshot: Snapshot,
        indexes: Mapping[str, TypeIndex],
        now: datetime,
        options: Options = _USUAL,
        order: Order = _by_name,
    ) -> None:
        self._base = _Moving(snapshot, indexes, now, options, order)

    def elsewhere(self, leaving: Iterable[Pod], gone: Iterable[str]) -> Relocated | None:
        """Where the pods go without a new machine, None if that cannot be. ``gone``: keys of machines that are not there."""
        return self._base.elsewhere(tuple(leaving), self._base.places(gone), 0, {})

    def as_planned(
        self, leaving: Iterable[Pod], gone: Iterable[str], beside: Iterable[str], planned: Mapping[str, str]
    ) -> Relocated | None:
        """The same for pods that were planned somewhere, by uid: they go there if they may, and elsewhere if they may not.

        ``beside``: keys of closed machines that are open to these pods all the same.
        """
        return self._base.elsewhere(tuple(leaving), self._base.places(gone), self._base.places(beside), planned)

    def moved(self, leaving: Iterable[Pod], gone: Iterable[str], below: float = inf) -> Relocated | None:
        """Where the pods go, on machines that exist or new ones.

        None where it is plain that those to buy cost ``below`` USD per hour or more; nothing is packed then.
        """
        return self._base.moved(tuple(leaving), self._base.places(gone), below)

    def least_price(self, pods: Iterable[Pod]) -> float:
        """USD per hour that machines for these pods alone would cost at least, whatever the packing."""
        return self._base.least_price(pods)

    def least_beside(self, leaving: Iterable[Pod], gone: Iterable[str]) -> float:
        """USD per hour that new machines for those of the pods who find no room cost at least, whatever the packing."""
        return self._base.least_beside(tuple(leaving), self._base.places(gone))

    def settle(
        self,
        placed: Iterable[PlacedPods],
        leaving: Iterable[Pod],
        gone: Iterable[str] = (),
        bought: Iterable[PlannedClaim] = (),
    ) -> None:
        """From now on these machines are gone, ``leaving`` are away from where they were, and ``placed`` have moved in.

        ``bought`` are on their way with their pods; they take nobody else.
        """
        self._base.settle(tuple(placed), tuple(leaving), self._base.places(gone))
        self._base.buy(bought)

    def close(self, keys: Iterable[str]) -> None:
        """These machines take nobody any more, yet stay with the pods they have (DIS-166)."""
        self._base.closed |= self._base.places(keys)


class _Moving(Deciding):
    """A decision about pods that are bound, made again and again."""

    def __init__(
        self,
        snapshot: Snapshot,
        indexes: Mapping[str, TypeIndex],
        now: datetime,
        options: Options,
        order: Order,
    ) -> None:
        super().__init__(snapshot, indexes, now, options)
        ordered = sorted(self._field.machines, key=lambda m: (not m.view.initialized, order(m.view)))
        self._whole = Field(ordered)
        self._place = {machine.view.key: 1 << at for at, machine in enumerate(ordered)}
        self._basis = _Ground(snapshot)
        self._domains = Domains(self._basis, self._templates, self._whole)
        self._classes = PodClasses()
        self._grouped: dict[str, tuple[PodClass, Face]] = {}
        self._names = frozenset(view.key for view in snapshot.nodes)
        self._not_read: dict[str, Reason] = {}
        self.closed: MachineSet = 0
        self._settled_since = 0

    def places(self, keys: Iterable[str]) -> MachineSet:
        """The machines of these names."""
        found = 0
        for key in keys:
            found |= self._place.get(key, 0)
        return found

    # -- questions --------------------------------------------------------------------------------------------------------

    def elsewhere(
        self, leaving: Sequence[Pod], gone: MachineSet, beside: MachineSet, planned: Mapping[str, str]
    ) -> Relocated | None:
        """See ``Prepared.elsewhere`` and ``Prepared.as_planned``."""
        kins = self._kins_of(leaving)
        if self._unplaced:
            return None
        with _Part(self, gone, beside) as part:
            part.look_at(self.places(planned.values()))
            settled = Settling(part, self._market, self._domains, planned, Caps()).settle(kins)
            if settled.standing or settled.failed:
                return None
            return self._relocated(part, (), (), ())

    def moved(self, leaving: Sequence[Pod], gone: MachineSet, below: float) -> Relocated | None:
        """See ``Prepared.moved``."""
        kins = self._kins_of(leaving)
        with _Part(self, gone) as part:
            if below < inf and self._least(kins, part) >= below:
                return None
            self._field = part
            rounds = Rounds(self._ground(self._domains))
            outcome = rounds.outcome(kins)
            settled = outcome.settled
            is_many = settled.needing >= SEARCHED_ALONE
            packing = rounds.cheapest(outcome, None) if is_many else rounds.simplest(outcome)
            self._unplaced += [item for failed in settled.failed for item in _left(failed)]
            demands = tuple(item.demand for item in settled.standing)
            return self._relocated(part, packing.claims, demands, self._unplaced)

    def least_beside(self, leaving: Sequence[Pod], gone: MachineSet) -> float:
        """See ``Prepared.least_beside``."""
        kins = self._kins_of(leaving)
        with _Part(self, gone) as part:
            return self._least(kins, part)

    def _least(self, kins: Sequence[Kin], part: _Part) -> float:
        """USD per hour that new machines for those who find no room cost at least.

        Each of them needs a machine that holds it, and together they need so much of every resource: whatever the packing.
        """
        standing = Settling(part, self._market, self._domains, {}, Caps()).settle(kins).standing
        if not standing:
            return 0.0
        total = res.add(*({n: a * len(s.demand.pods) for n, a in s.demand.requests.items()} for s in standing))
        single = max(min(option.cheapest for option in s.demand.options) for s in standing)
        return max(single, self._priced(total))

    def least_price(self, pods: Iterable[Pod]) -> float:
        """See ``Prepared.least_price``."""
        known = (look[0].requests for pod in pods if (look := self._look(pod)) is not None)
        return self._priced(res.add(*known))

    def _priced(self, total: Mapping[str, int]) -> float:
        return max((_amount(total, weights) * rate for weights, rate in self._rates), default=0.0)

    @cached_property
    def _rates(self) -> tuple[tuple[Mapping[str, float], float], ...]:
        """Ways to weigh resources against each other, each with USD per hour for a unit where it is cheapest.

        However pods are packed, their machines cost at least what their requests weigh at that price: every way is a bound.
        """
        names = {name for template in self._templates for kind in template.index.types for name in kind.allocatable}
        ways: list[Mapping[str, float]] = [{name: 1.0} for name in sorted(names)]
        ways += [
            {res.CPU: part / _WEIGHINGS, res.MEMORY: (1 - part / _WEIGHINGS) / _MEMORY_PER_CPU}
            for part in range(1, _WEIGHINGS)
        ]
        return tuple((weights, rate) for weights in ways if (rate := self._cheapest(weights)) < inf)

    def _cheapest(self, weights: Mapping[str, float]) -> float:
        rates: list[float] = []
        for template in self._templates:
            prices = template.index.prices(template.requirements)
            for position in members(template.types & prices.buyable):
                weight = _amount(template.index.types[position].allocatable, weights)
                if weight > 0:
                    rates.append(prices.offering[position].price_per_hour / weight)
        return min(rates, default=inf)

    def _relocated(
        self, part: _Part, bought: tuple[Claim, ...], demands: tuple[Demand, ...], stranded: Iterable[UnplacedPod]
    ) -> Relocated:
        used = [machine for machine in part.machines if machine.pods]
        return Relocated(
            placed=tuple(PlacedPods(m.view.key, m.view.name, tuple(m.pods)) for m in used),
            bought=bought,
            stranded=tuple(stranded),
            uninitialised=frozenset(m.view.key for m in used if m.view.managed and not m.view.initialized),
            _demands=demands,
            _taken=self._names,
        )

    def _kins_of(self, leaving: Iterable[Pod]) -> list[Kin]:
        self._unplaced = []
        leaving = [*leaving]
        self._exposures.consider(leaving)
        groups = self._default_spread.into(self._groups(leaving))
        served = self._served(groups, eligible.objections_to_moving, eligible.volume_faults_of_moving)
        return self._kins(served, _Standpoint(self._basis, [(item.pod_class, item.face, item.pods) for item in served]))

    def _groups(self, leaving: Iterable[Pod]) -> Iterator[PodGroup]:
        groups: defaultdict[tuple[PodClass, Face, bool], list[Pod]] = defaultdict(list)
        for pod in leaving:
            known = self._look(pod)
            if known is None:
                self._unplaced.append(UnplacedPod(pod, (self._not_read[pod.metadata.uid],)))
            else:
                groups[(*known, is_virtual(pod))].append(pod)
        for (pod_class, face, _), items in groups.items():
            yield PodGroup(pod_class, face, tuple(sorted(items, key=age)))

    def _look(self, pod: Pod) -> tuple[PodClass, Face] | None:
        """The pod's class and look, None where its requests cannot be read; worked out once."""
        uid = pod.metadata.uid
        known = self._grouped.get(uid)
        if known is None and uid not in self._not_read:
            try:
                known = self._grouped[uid] = (self._classes.of(pod), face_of(pod))
            except ValueError as error:
                self._not_read[uid] = Reason(Category.POD, detail=str(error))
        return known

    # -- what is decided ----------------------------------------------------------------------------------------------------

    def settle(self, placed: Sequence[PlacedPods], leaving: Sequence[Pod], gone: MachineSet) -> None:
        """See ``Prepared.settle``."""
        self.closed |= gone
        for pod in leaving:
            self._record(pod, pod.spec.node_name, -1)
        for item in placed:
            place = self._place.get(item.key, 0)
            for at in members(place):
                machine = self._whole.machines[at]
                machine.keep(item.pods, [known[0].requests for pod in item.pods if (known := self._look(pod))])
                for pod in item.pods:
                    self._record(pod, machine.host, 1)
        self._settled_since += 1
        if self._settled_since >= _REFRESHED:
            self._settled_since = 0
            self._whole.refresh()

    def buy(self, bought: Iterable[PlannedClaim]) -> None:
        """See ``Prepared.settle``."""
        for planned in bought:
            self._basis.expect(planned.name, view(None, planned.claim, NO_USAGE, marked=False))
            for pod in planned.pods:
                self._record(pod, planned.name, 1)

    def _record(self, pod: Pod, node: str, number: int) -> None:
        known = self._look(pod)
        if known is not None and not is_virtual(pod) and (number > 0 or is_counted(pod)):
            self._basis.count(known[0], known[1], node, number)

    @property
    def whole(self) -> Field:
        """All machines."""
        return self._whole


class _Part(Field):
    """The field without some machines, for one question. Remembers who was asked, to leave them as they were found."""

    def __init__(self, moving: _Moving, gone: MachineSet, beside: MachineSet = 0) -> None:
        self._all = moving.whole
        self.everyone = self._all.everyone & ~(gone | moving.closed) | beside
        self._asked: dict[Machine, None] = {}

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self._asked:
            machine.start_over()

    def look_at(self, wanted: MachineSet) -> None:
        """Pods may be planned on these beforehand, as far as they are part of it."""
        for _ in self.among(wanted & self.everyone):
            pass

    @property
    def machines(self) -> tuple[Machine, ...]:  # type: ignore[override]
        """Those that were asked by now: nobody else can have been changed."""
        return tuple(self._asked)

    def values(self, key: str) -> Mapping[str | None, MachineSet]:
        """See ``Field``."""
        return self._all.values(key)

    def candidates(self, guest: Guest) -> MachineSet:
        """See ``Field``."""
        return self._all.candidates(guest) & self.everyone

    def among(self, candidates: MachineSet) -> Iterator[Machine]:
        """See ``Field``."""
        for machine in self._all.among(candidates):
            self._asked[machine] = None
            yield machine


class _Ground(Scene):
    """What bound pods mean to each other, kept up to date as pods move; answers are remembered."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot, ())
        self._by_face = {face: dict(counts) for face, counts in snapshot.census.items()}
        self._by_term = {term: _sum(found) for term, found in self._repelling.items()}
        self._census = self._by_face
        self._repelling = {term: [counts] for term, counts in self._by_term.items()}
        self._meant: dict[tuple[Term, Face], bool] = {}
        self._summed: dict[Term, dict[str, int]] = {}
        self._owned: dict[Term, dict[str, int]] = {}
        self._repellers: dict[Face, tuple[Term, ...]] = {}

    def expect(self, name: str, view: NodeView) -> None:
        """A machine is on its way: its pods count wherever it is sure to be."""
        self._nodes[name] = view

    def means(self, term: Term, face: Face) -> bool:
        """See ``Scene``."""
        known = self._meant.get((term, face))
        if known is None:
            known = self._meant[term, face] = super().means(term, face)
        return known

    def numbers(self, term: Term) -> dict[str, int]:
        """See ``Scene``; not to be changed."""
        known = self._summed.get(term)
        if known is None:
            known = self._summed[term] = super().numbers(term)
        return known

    def owners(self, term: Term) -> dict[str, int]:
        """See ``Scene``; not to be changed."""
        known = self._owned.get(term)
        if known is None:
            known = self._owned[term] = super().owners(term)
        return known

    def repellers(self, face: Face) -> tuple[Term, ...]:
        """Terms by which bound pods keep away those that look so."""
        known = self._repellers.get(face)
        if known is None:
            known = self._repellers[face] = tuple(term for term in self._repelling if self.means(term, face))
        return known

    def domain(self, term: Term, node: str) -> str:
        """The domain in which a term counts the pods of a node; empty where it counts none."""
        view = self._nodes.get(node)
        return domain_of(term.key, view) if view is not None and counts_on(term.counted, view) else ""

    def count(self, pod_class: PodClass, face: Face, node: str, number: int) -> None:
        """So many more, or fewer, pods of a kind on a node."""
        if face not in self._by_face:
            self._by_face[face] = {}
            self._by_namespace.setdefault(face.namespace, []).append(face)
            self._by_label.clear()
        _add(self._by_face[face], node, number)
        for term, numbers in self._summed.items():
            if self.means(term, face):
                _add(numbers, self.domain(term, node), number)
        for term in pod_class.terms.repelling:
            if term not in self._by_term:
                counts = self._by_term[term] = {}
                self._repelling[term] = [counts]
                self._repellers.clear()
            _add(self._by_term[term], node, number)
            if term in self._owned:
                _add(self._owned[term], self.domain(term, node), number)


def _amount(resources: Mapping[str, int], weights: Mapping[str, float]) -> float:
    return sum(resources.get(name, 0) * weight for name, weight in weights.items())


def _sum(found: Iterable[Counts]) -> dict[str, int]:
    total: dict[str, int] = {}
    for counts in found:
        for node, number in counts.items():
            total[node] = total.get(node, 0) + number
    return total


def _add(numbers: dict[str, int], domain: str, number: int) -> None:
    if domain:
        numbers[domain] = numbers.get(domain, 0) + number
        if numbers[domain] <= 0:
            del numbers[domain]


class _Standpoint(Scene):
    """The ground as pods see it that are about to move: without themselves, and only as far as it concerns them."""

    def __init__(self, ground: _Ground, moving: Sequence[tuple[PodClass, Face, Sequence[Pod]]]) -> None:
        self._ground = ground
        faces = dict.fromkeys(face for _, face, _ in moving)
        self._terms = tuple(dict.fromkeys(term for face in faces for term in ground.repellers(face)))
        self._leaving: defaultdict[Face, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._giving_up: defaultdict[Term, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        for pod_class, face, items in moving:
            for pod in items:
                if is_counted(pod):
                    self._leaving[face][pod.spec.node_name] += 1
                for term in pod_class.terms.repelling:
                    self._giving_up[term][pod.spec.node_name] += 1

    @property
    def repelling(self) -> Iterable[Term]:
        """Those that mean somebody who is moving."""
        return self._terms

    def means(self, term: Term, face: Face) -> bool:
        """See ``Scene``."""
        return self._ground.means(term, face)

    def numbers(self, term: Term) -> dict[str, int]:
        """See ``Scene``."""
        found = dict(self._ground.numbers(term))
        for face, nodes in self._leaving.items():
            if self.means(term, face):
                self._take_away(term, nodes, found)
        return found

    def owners(self, term: Term) -> dict[str, int]:
        """See ``Scene``."""
        found = dict(self._ground.owners(term))
        self._take_away(term, self._giving_up.get(term, {}), found)
        return found

    def _take_away(self, term: Term, nodes: Counts, found: dict[str, int]) -> None:
        for node, number in nodes.items():
            _add(found, self._ground.domain(term, node), -number)


def _left(failed: Failed) -> Iterator[UnplacedPod]:
    """Pods without a place; why is told by the constraint that left none, if it was one."""
    category = Category.TOPOLOGY if failed.obstacle else Category.NO_TYPES
    reason = Reason(category, detail=failed.obstacle)
    return (UnplacedPod(pod, (reason,)) for pod in failed.pods)
