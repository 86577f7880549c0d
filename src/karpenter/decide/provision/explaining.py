"""What a plan says about pods it leaves waiting: a reason per NodePool, and over all of them the nearest miss (SCH §13 Beyond).

Asked once for all pods that fail alike, and only for those that fail; the answers cost no more for many pods than for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from karpenter.catalog.index import TypeIndex
from karpenter.cluster.snapshot import Daemon, Snapshot
from karpenter.decide.obstacles import Miss, Short, StaticFull
from karpenter.decide.plan import SkippedPool, UnplacedPod
from karpenter.decide.provision import templates
from karpenter.decide.provision.existing import Field, Machine, MachineSet
from karpenter.decide.provision.failures import why_not
from karpenter.decide.provision.misses import Seeking, Study, nearness
from karpenter.decide.provision.settling import Failed
from karpenter.decide.provision.templates import Template
from karpenter.decide.provision.variants import Variant
from karpenter.decide.reasons import Category, Reason, Skip
from karpenter.model.requirements import Op
from karpenter.model.resources import Resources

_NO_POOLS = (Reason(Category.NO_POOL),)
#: Alternatives of a pod, and machines there are, that are compared for the nearest miss.
_VARIANTS = 8
_MACHINES = 64
#: Eighths of what a pod asks that machines had free which are looked at, those with most first.
_EIGHTHS = (8, 7, 6, 4)


@dataclass(frozen=True)
class Left:
    """What is left of limits, by pool, and of reservations."""

    limits: Mapping[str, Mapping[str, int]]
    units: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Scenery:
    """What a decision chose among: the picture, the types of each pool, pools in the order tried and those left out, machines.

    ``strict``: minValues may not be lowered.
    """

    snapshot: Snapshot
    indexes: Mapping[str, TypeIndex]
    templates: Sequence[Template]
    skipped: Sequence[SkippedPool]
    daemons: tuple[Daemon, ...]
    field: Field
    strict: bool


@dataclass(frozen=True, eq=False)
class _Told:
    """What is said to all pods that failed alike."""

    reasons: tuple[Reason, ...]
    nearest: Miss | None = None
    beside: Miss | None = None


class Explaining:
    """Explains the pods of one decision."""

    def __init__(self, scenery: Scenery) -> None:
        self._scenery = scenery
        self._known: dict[tuple[object, ...], _Told] = {}

    def of(self, failed: Failed, left: Left) -> list[UnplacedPod]:
        """Each of the pods with its reasons. ``left`` is what there was when they were turned away."""
        told = self._told(failed, left)
        return [UnplacedPod(pod, told.reasons, told.nearest, told.beside) for pod in failed.pods]

    def _told(self, failed: Failed, left: Left) -> _Told:
        if failed.blocked is not None:
            miss = Miss((failed.blocked,))
            return _Told((Reason(Category.TOPOLOGY, detail=failed.obstacle, miss=miss),), miss)
        variant = failed.variant
        key = (failed.kin.pod_class, variant.requirements, variant.tolerations, failed.confined, failed.capped)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._studied(failed, left)
        return known

    def _studied(self, failed: Failed, left: Left) -> _Told:
        reasons = self._reasons(failed, left)
        misses = [*self._misses(failed, reasons, left), *self._of_static_pools(failed)]
        nearest = min(misses, key=nearness, default=None)
        if nearest is not None:
            nearest = replace(nearest, confined=failed.confined)
        return _Told(reasons, nearest, self._beside(failed.kin.pod_class.requests, failed.variant))

    def _reasons(self, failed: Failed, left: Left) -> tuple[Reason, ...]:
        """One reason per pool tried, then per pool left out (SCH-115)."""
        scenery = self._scenery
        found = why_not(self._seeking(failed, failed.variant, left.units), scenery.templates, left.limits)
        category = Category.SKIPPED_POOL if found else Category.NO_POOL
        return (*found, *(_left_out(skipped, category) for skipped in scenery.skipped)) or _NO_POOLS

    def _misses(self, failed: Failed, reasons: Iterable[Reason], left: Left) -> Iterable[Miss]:
        """The nearest miss in each pool, for the step the reasons are about and for the pod's other alternatives."""
        yield from (reason.miss for reason in reasons if reason.miss is not None)
        for variant in _others(failed):
            for template in self._scenery.templates:
                study = Study(self._seeking(failed, variant, left.units), template, left.limits.get(template.name))
                if study.miss is not None:
                    yield study.miss

    def _seeking(self, failed: Failed, variant: Variant, units: Mapping[str, int]) -> Seeking:
        return Seeking(failed.kin.pod_class, variant, self._scenery.daemons, self._scenery.strict, units)

    # -- pools with a fixed number of machines --------------------------------------------------------------------------

    @cached_property
    def _static(self) -> tuple[Template, ...]:
        scenery = self._scenery
        return templates.of_static(scenery.snapshot.pools, scenery.indexes, scenery.daemons)

    def _of_static_pools(self, failed: Failed) -> Iterable[Miss]:
        """Static pools buy nothing for pods, but a pod that suits one may think it waits for that."""
        for template in self._static:
            study = Study(self._seeking(failed, failed.variant, {}), template, None)
            if study.fits:
                yield Miss((StaticFull(template.pool.spec.replicas or 0),), node_pool=template.name)

    # -- machines there are ---------------------------------------------------------------------------------------------

    def _beside(self, requests: Resources, variant: Variant) -> Miss | None:
        """The machine that would take such a pod if it had a little more room: half of what is asked, or less."""
        field = self._scenery.field
        candidates = field.tolerated(variant.tolerations) & _labelled(field, variant)
        for eighths in _EIGHTHS if candidates else ():
            part = {name: -(-amount * eighths // 8) for name, amount in requests.items()}
            there = candidates & field.holding(part)
            candidates &= ~there
            found = (
                (machine, short)
                for machine in islice(field.among(there), _MACHINES)
                if (short := _short(machine, requests)) and machine.offers(variant.requirements)
            )
            best = min((Miss(short, node=m.view.name) for m, short in found), key=nearness, default=None)
            if best is not None:
                return best
        return None


def _labelled(field: Field, variant: Variant) -> MachineSet:
    """Machines that have one of the values asked for, as far as values are named."""
    found = field.everyone
    for key, asked in variant.requirements.items():
        if asked.operator is Op.IN:
            by_value = field.values(key)
            matching = 0
            for value in asked.values:
                matching |= by_value.get(value, 0)
            found &= matching
    return found


def _short(machine: Machine, requests: Resources) -> tuple[Short, ...]:
    """What the machine lacks; nothing where that is no little, or nothing at all."""
    left = machine.left
    if any(2 * left.get(name, 0) < amount for name, amount in requests.items()):
        return ()
    name = machine.view.name
    lacking = [item for item in sorted(requests.items()) if item[1] > left.get(item[0], 0)]
    return tuple(Short(resource, amount, left.get(resource, 0), name) for resource, amount in lacking)


def _others(failed: Failed) -> Sequence[Variant]:
    """The pods' other alternatives without any wish; none where they are held to a domain."""
    ladder = failed.kin.variants
    if failed.confined:
        return ()
    last = ladder[-1]
    seen = {last.requirements}
    found: list[Variant] = []
    for variant in reversed(ladder):
        if len(found) == _VARIANTS:
            break
        if variant.requirements not in seen and variant.tolerations == last.tolerations:
            seen.add(variant.requirements)
            found.append(variant)
    return found


def _left_out(skipped: SkippedPool, category: Category) -> Reason:
    """A pool that took no part; unless its types were looked at, in this category."""
    if skipped.reason in (Skip.FILTERED, Skip.FILTERED_MIN_VALUES):
        detail = "nodepool requirements filtered out all available instance types"
        return Reason(Category.NO_TYPES, skipped.node_pool, detail=detail)
    return Reason(category, skipped.node_pool, detail=skipped.detail, skip=skipped.reason)
