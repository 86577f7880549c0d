"""The zone a waiting pod will end up in, as far as that is settled before anything is planned (SCH-668).

What the pod requires, where its volumes are and what its own constraints between pods leave are intersected: one zone has its
name, several are `FLEXIBLE`, and where none is left it is `NONE`. Every OR-term and every place of its volumes counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from karpenter.cluster.terms import Term
from karpenter.decide.plan import ZonedPods
from karpenter.decide.provision.company import Company
from karpenter.decide.provision.settling import Kin
from karpenter.decide.provision.topology import Domains, Ledger, asking_of
from karpenter.model import labels
from karpenter.model.requirements import Op, Requirement, Requirements

FLEXIBLE = "flexible"
NONE = "none"


def effective_zones(kins: Iterable[Kin], domains: Domains) -> tuple[ZonedPods, ...]:
    """The pods whose zone is settled, or of which none is left; all others are flexible."""
    looking = _Looking(Ledger(domains))
    found = ((looking.zone_of(kin), kin) for kin in kins)
    return tuple(ZonedPods(zone, kin.pods) for zone, kin in found if zone != FLEXIBLE)


class _Looking:
    """Answers by what kin have in common. ``ledger``: who is where before anybody is planned."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._left: dict[tuple[Company, Requirements, tuple[Term, ...]], set[str] | None] = {}

    def zone_of(self, kin: Kin) -> str:
        """One zone's name, ``FLEXIBLE`` or ``NONE``."""
        asked = [variant.requirements.of(labels.ZONE) for variant in kin.variants]
        first = kin.variants[0]
        common = (kin.company, first.requirements, first.terms)
        if common not in self._left:
            self._left[common] = _left_by_company(*common, self._ledger)
        allowed = self._left[common]
        if allowed is None:
            return _settled(asked)
        return _one_of(zone for zone in allowed if any(item.allows(zone) for item in asked))


def _settled(asked: Sequence[Requirement]) -> str:
    """The zones named, where nothing but names is accepted."""
    if any(item.operator in (Op.EXISTS, Op.NOT_IN) for item in asked):
        return FLEXIBLE
    return _one_of(zone for item in asked for zone in item.values)


def _left_by_company(company: Company, asked: Requirements, terms: tuple[Term, ...], ledger: Ledger) -> set[str] | None:
    """The zones the pod's own constraints leave, also those it would give up; None where it states none by zone."""
    if not company.stated:
        return None
    asking = asking_of(company, asked, terms)
    open_to = ledger.open_to(asking) if asking is not None and labels.ZONE in asking.place else {}
    found = open_to.get(asking.place[labels.ZONE]) if asking is not None and open_to else None
    return None if found is None else {zone for zone in found if zone is not None}


def _one_of(zones: Iterable[str]) -> str:
    found = set(zones)
    if not found:
        return NONE
    return found.pop() if len(found) == 1 else FLEXIBLE
