"""What constraints by host name and host ports ask of a single machine: plain arithmetic on counts per machine (SCH-900.4).

Every machine is a domain of its own, and another empty one can always be bought, so the smallest count there is is taken as none
(SCH-541). `Rules` belong to a kin and say how many of its pods one machine may take; `Seats` belong to a machine and remember who
sits on it. Both serve machines that exist and machines that a packing only thinks of.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from karpenter.cluster.classes import HostPort, PodClass
from karpenter.cluster.terms import Relation, Term
from karpenter.decide.provision.company import Company, Constraint


@dataclass(frozen=True, eq=False)
class Exposed:
    """A workload of which no more than ``most`` pods should be on one new machine; NodePools may say otherwise (``most_in``).

    ``name`` is how users know it, ``replicas`` how many pods it has, waiting or bound.
    """

    name: str
    replicas: int
    most: int
    most_in: Mapping[str, int] = field(default_factory=dict)

    @property
    def least(self) -> int:
        """The fewest that any NodePool says."""
        return min((self.most, *self.most_in.values()))

    def most_on(self, pool: str) -> int:
        """How many a machine of the NodePool should take."""
        return self.most_in.get(pool, self.most)


class Seats:
    """Who sits on one machine. ``host`` is its Node's name, empty for one without Node, on which nobody is bound yet.

    ``pool``: the NodePool of a machine to be bought.
    """

    __slots__ = ("_exposed", "_host", "_met", "_owners", "_pool", "ports")

    def __init__(self, host: str = "", ports: tuple[HostPort, ...] = (), pool: str = "") -> None:
        self._host = host
        self._pool = pool
        self._exposed: dict[Exposed, int] = {}
        self._met: dict[Constraint, int] = {}
        self._owners: dict[Constraint, int] = {}
        self.ports = ports

    def met(self, constraint: Constraint) -> int:
        """How many pods the constraint means are here."""
        known = self._met.get(constraint)
        if known is not None:
            return known
        return constraint.numbers.get(self._host, 0) if self._host else 0

    def owners(self, constraint: Constraint) -> int:
        """How many pods that repel by the constraint are here."""
        known = self._owners.get(constraint)
        if known is not None:
            return known
        return constraint.owners.get(self._host, 0) if self._host else 0

    def meet(self, constraint: Constraint, number: int) -> None:
        """So many pods the constraint means have come."""
        self._met[constraint] = self.met(constraint) + number

    def own(self, constraint: Constraint, number: int) -> None:
        """So many pods that repel by it have come."""
        self._owners[constraint] = self.owners(constraint) + number

    def open_to(self, exposed: Exposed) -> int:
        """How many more pods of a workload should come here."""
        return max(0, exposed.most_on(self._pool) - self._exposed.get(exposed, 0))

    def expose(self, exposed: Exposed, number: int) -> None:
        """So many pods of the workload have come."""
        self._exposed[exposed] = self._exposed.get(exposed, 0) + number

    def collision(self, ports: Iterable[HostPort]) -> tuple[HostPort, HostPort] | None:
        """The first pair of a taken and an asked port that collide."""
        return next(((held, port) for port in ports for held in self.ports if held.collides(port)), None)


@dataclass(frozen=True, eq=False)
class Rules:
    """What one kin asks of each machine, and what it means to those who come after.

    The flag beside a constraint says whether the kin's own pods are among those it means. ``met`` and ``owned`` are what its pods
    add to. ``spared`` are spreads of others that mean these pods: where a pod that spreads so is planned they keep within its
    skew, because nobody knows whom the scheduler binds first. ``exposed`` is the workload they are of, where not all of that
    should be on one new machine.
    """

    spread: tuple[tuple[Constraint, bool], ...] = ()
    apart: tuple[tuple[Constraint, bool], ...] = ()
    near: tuple[tuple[Constraint, bool], ...] = ()
    repelled_by: tuple[Constraint, ...] = ()
    spared: tuple[Constraint, ...] = ()
    met: tuple[Constraint, ...] = ()
    owned: tuple[Constraint, ...] = ()
    ports: tuple[HostPort, ...] = ()
    exposed: Exposed | None = None

    def room(self, seats: Seats, wanted: int, founding: Container[Constraint]) -> int:
        """How many pods a machine may take, at most ``wanted``.

        ``founding``: affinity nobody satisfies yet, so that the first may begin.
        """
        if (self.repelled_by or self.near or self.ports) and self._barred(seats, founding):
            return 0
        if self.ports:
            wanted = min(wanted, 1)
        if self.exposed is not None:
            wanted = min(wanted, seats.open_to(self.exposed))
        for constraint, itself in self.apart:
            if seats.met(constraint):
                return 0
            wanted = min(wanted, 1) if itself else wanted
        return self._even(seats, wanted)

    def _even(self, seats: Seats, wanted: int) -> int:
        """How many of so many pods keep within all skews that matter here."""
        for constraint, itself in self.spread:
            free = constraint.term.max_skew - seats.met(constraint)
            if free < itself:
                return 0
            wanted = min(wanted, free) if itself else wanted
        for constraint in self.spared:
            if seats.owners(constraint):
                wanted = max(0, min(wanted, constraint.term.max_skew - seats.met(constraint)))
        return wanted

    def _barred(self, seats: Seats, founding: Container[Constraint]) -> bool:
        """Whether who sits there already, or does not, keeps all of them away."""
        if self.ports and seats.ports and seats.collision(self.ports):
            return True
        for constraint in self.repelled_by:
            if seats.owners(constraint):
                return True
        return any(
            not seats.met(constraint) and not (itself and constraint in founding) for constraint, itself in self.near
        )

    def take(self, seats: Seats, number: int) -> None:
        """So many pods have been given seats."""
        for constraint in self.met:
            seats.meet(constraint, number)
        for constraint in self.owned:
            seats.own(constraint, number)
        if self.ports:
            seats.ports = (*seats.ports, *self.ports)
        if self.exposed is not None:
            seats.expose(self.exposed, number)

    def obstacle(self, seats: Seats, founding: Container[Constraint]) -> Constraint | None:
        """The constraint for which not even one pod may come, ports aside; None when one may."""
        for constraint in self.repelled_by:
            if seats.owners(constraint):
                return constraint
        own = (*self.near, *self.apart, *self.spread)
        alone = (
            *(Rules(near=(item,)) for item in self.near),
            *(Rules(apart=(item,)) for item in self.apart),
            *(Rules(spread=(item,)) for item in self.spread),
        )
        blocking = (item[0] for item, rule in zip(own, alone, strict=True) if not rule.room(seats, 1, founding))
        return next(blocking, None)


def rules_of(pod_class: PodClass, company: Company, active: Iterable[Term]) -> Rules | None:
    """The rules of a kin while these terms of it are active; None where machines need not care."""
    by_relation: dict[Relation, list[tuple[Constraint, bool]]] = {relation: [] for relation in Relation}
    for term in active:
        if term.by_host:
            constraint = company.stated[term]
            by_relation[term.relation].append((constraint, company.means_itself(constraint)))
    met = tuple(c for c in company.meant_by if c.by_host)
    spread = tuple(by_relation[Relation.SPREAD])
    own = [constraint for constraint, _ in spread]
    rules = Rules(
        spread=spread,
        apart=tuple(by_relation[Relation.ANTI_AFFINITY]),
        near=tuple(by_relation[Relation.AFFINITY]),
        repelled_by=tuple(c for c in met if c.required and c.term.relation is Relation.ANTI_AFFINITY),
        spared=tuple(c for c in met if c.required and c.term.relation is Relation.SPREAD and c not in own),
        met=met,
        owned=tuple(c for c in (*company.owned, *own) if c.by_host and c in company.required),
        ports=pod_class.ports,
    )
    return rules if met or pod_class.ports or rules.spread or rules.apart or rules.near else None


def exposed_by(rules: Rules | None, exposed: Exposed | None) -> Rules | None:
    """The rules of pods on new machines, their workload's exposure among them; pods that must be together stay together."""
    if exposed is None or (rules is not None and rules.near):
        return rules
    return replace(rules if rules is not None else Rules(), exposed=exposed)
