"""Which gangs get places: each with at least its minimum of pods, or none of its pods (docs/design/gangs.md).

All gangs are planned together first; mostly they all fit, and that is the plan. Where one does not, it is planned alone: one
that does not fit alone is refused. The others are admitted in their order, by halves: a half that fits beside those admitted is
admitted as a whole, one that does not is divided. So the first gang in the order gets its places before those after it, and a
gang that is refused holds no room. The work is bounded by a number of plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from karpenter.api.core import Pod
from karpenter.model import labels
from karpenter.scheduling.explain.reason_messages import short_reason_message, unschedulable_message
from karpenter.scheduling.gangs.pending_gangs import Fingerprint, GangProblem, PendingGang
from karpenter.scheduling.problem import Problem
from karpenter.scheduling.scheduling_options import PackingMode
from karpenter.scheduling.solution import GangOutcome, NewNodeClaim, Solution, UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import GangIncomplete, GangShortfall, UnschedulableReason
from karpenter.state.snapshot import pod_key

#: So many plans are made at most; gangs that are not decided by then wait for the next pass.
MAX_PLANS = 64

#: Sets of gangs that may be divided are tried without a search, and so is a single gang beside others with more pods than this:
#: the search finds room for few pods more, in many times the time. One that is refused so is tried again in the next pass.
MAX_PODS_SEARCHED = 128

#: Gangs and the domain each is in, empty for those that may be anywhere.
Served = Mapping[PendingGang, str]
_PlanKey = frozenset[tuple[str, str]]


def solve_with_gangs(problem: Problem, solve_pods: Callable[[Problem], Solution]) -> Solution:
    """The plan in which every gang is complete or gets nothing. ``solve_pods`` plans a problem without gangs."""
    return _GangAdmission(problem, solve_pods).solve()


@dataclass(frozen=True, eq=False)
class _Plan:
    """A plan for some gangs and the single pods."""

    served: Served
    solution: Solution

    @cached_property
    def uids_on_existing(self) -> frozenset[str]:
        """The pods that get a place on a node there is."""
        return frozenset(pod.metadata.uid for placed in self.solution.placed_on_existing for pod in placed.pods)

    @cached_property
    def placed_uids(self) -> frozenset[str]:
        """The pods that get a place."""
        new = (pod.metadata.uid for claim in self.solution.new_claims for pod in claim.pods)
        return frozenset((*new, *self.uids_on_existing))

    def placed(self, pending: PendingGang) -> int:
        """How many pods of a gang get a place where it may have one."""
        uids = self.uids_on_existing if pending.gang.on_existing_nodes_only else self.placed_uids
        return sum(pod.metadata.uid in uids for pod in pending.pods)

    def incomplete(self) -> list[PendingGang]:
        """The gangs of the plan that it leaves short of their minimum."""
        return [pending for pending in self.served if self.placed(pending) < pending.needed]


class _GangAdmission:
    """One decision while it is made."""

    def __init__(self, problem: Problem, solve_pods: Callable[[Problem], Solution]) -> None:
        self._now = problem.now
        self._problem = GangProblem(problem)
        self._solve_pods = solve_pods
        self._plans: dict[_PlanKey, _Plan] = {}
        self._trials: dict[_PlanKey, _Plan] = {}
        self._alone: dict[tuple[Fingerprint, str], _Plan] = {}
        self._refused: dict[PendingGang, GangIncomplete] = {}
        #: The first that was refused beside others, of all that ask for the same.
        self._refused_alike: dict[Fingerprint, PendingGang] = {}
        self._domains: dict[PendingGang, tuple[str, ...]] = {}
        self._plans_left = MAX_PLANS

    def solve(self) -> Solution:
        """The plan of all gangs that are admitted, and the reasons of the others."""
        candidates = [pending for pending in self._problem.gangs if self._may_be_tried(pending)]
        plan = self._final_plan(self._admit({}, candidates))
        refused = [each for pending, cause in self._refused.items() for each in _unschedulable(pending, cause)]
        unschedulable = sorted((*plan.solution.unschedulable, *refused), key=lambda each: pod_key(each.pod))
        return replace(
            plan.solution,
            unschedulable=tuple(unschedulable),
            new_claims=_with_gang_names(plan.solution.new_claims, plan.served),
            # The domain of a gang was chosen before: others might be cheaper together.
            is_optimal=plan.solution.is_optimal and not any(plan.served.values()),
            gangs=tuple(sorted(self._outcomes(plan), key=lambda outcome: outcome.gang)),
        )

    # -- gangs for which no plan is made --------------------------------------------------------------------------------

    def _may_be_tried(self, pending: PendingGang) -> bool:
        """Whether a plan is made for the gang; if not, it is refused. Its domains are known then."""
        gang = pending.gang
        cause: GangIncomplete | None = None
        if gang.error:
            cause = GangIncomplete(gang.name, GangShortfall.UNUSABLE, gang.minimum, detail=gang.error)
        elif gang.topology_key == labels.HOSTNAME:
            text = (
                f"{gang.name} is to be on one host, which is not planned for: {labels.GANG_TOPOLOGY}={labels.HOSTNAME}"
            )
            cause = GangIncomplete(gang.name, GangShortfall.UNUSABLE, gang.minimum, detail=text)
        elif (existing := pending.pod_count + gang.running) < gang.minimum:
            cause = GangIncomplete(gang.name, GangShortfall.TOO_FEW_PODS, gang.minimum, existing)
        elif gang.paused_until is not None and gang.paused_until > self._now:
            until = gang.paused_until.strftime("%H:%M:%S UTC")
            cause = GangIncomplete(gang.name, GangShortfall.PAUSED, gang.minimum, detail=until)
        elif gang.topology_key:
            cause = self._rank_domains(pending)
        else:
            self._domains[pending] = ("",)
        if cause is not None:
            self._refused[pending] = cause
        return cause is None

    def _rank_domains(self, pending: PendingGang) -> GangIncomplete | None:
        """Order the domains in which the gang would be complete: where it is planned already, then the cheapest first."""
        domains = self._problem.domains(pending)
        if not domains:
            text = f"no node and no NodePool has the label {pending.gang.topology_key}"
            return GangIncomplete(pending.gang.name, GangShortfall.NO_PLACE, pending.gang.minimum, detail=text)
        plans = {domain: self._plan_alone(pending, domain) for domain in domains}
        placed = {domain: _placed_alone(plan) for domain, plan in plans.items()}
        complete = [domain for domain in domains if placed[domain] >= pending.needed]
        if not complete:
            best = max(domains, key=lambda domain: placed[domain])
            return self._shortfall(pending, plans[best], best)
        planned = self._problem.planned_domains(pending)
        price = {domain: plans[domain].solution.price_per_hour for domain in complete}
        self._domains[pending] = tuple(sorted(complete, key=lambda domain: (-planned[domain], price[domain], domain)))
        return None

    # -- admission ------------------------------------------------------------------------------------------------------

    def _admit(self, admitted: Served, candidates: Sequence[PendingGang]) -> Served:
        """The admitted gangs with those of the candidates that fit beside them."""
        candidates = [pending for pending in candidates if not self._is_refused(pending)]
        if not candidates:
            return admitted
        if self._plans_left <= 0:
            self._refuse_undecided(candidates)
            return admitted
        plan = self._trial({**admitted, **{pending: self._domains[pending][0] for pending in candidates}})
        incomplete = plan.incomplete()
        if not incomplete:
            return plan.served
        if len(candidates) == 1:
            return self._admit_alone(admitted, candidates[0], plan)
        self._refuse_hopeless(pending for pending in incomplete if pending not in admitted)
        if any(pending in self._refused for pending in candidates):
            return self._admit(admitted, candidates)
        half = len(candidates) // 2
        return self._admit(self._admit(admitted, candidates[:half]), candidates[half:])

    def _admit_alone(self, admitted: Served, pending: PendingGang, first: _Plan) -> Served:
        """The admitted gangs with one that a trial had no room for, if a search or another of its domains has."""
        if sum(each.pod_count for each in first.served) <= MAX_PODS_SEARCHED:
            first = self._plan(first.served)
            if not first.incomplete():
                return first.served
        for domain in self._domains[pending][1:]:
            plan = self._trial({**admitted, pending: domain})
            if not plan.incomplete():
                return plan.served
        self._refuse(pending, self._shortfall(pending, first, first.served[pending]))
        return admitted

    def _is_refused(self, pending: PendingGang) -> bool:
        """Whether the gang is refused, or one that asks for the same was refused beside no more gangs than now."""
        alike = self._refused_alike.get(pending.fingerprint)
        if pending not in self._refused and alike is not None:
            cause = self._refused[alike]
            missing = _counterpart(cause.missing_pod, alike, pending)
            self._refused[pending] = replace(cause, gang=pending.gang.name, missing_pod=missing)
        return pending in self._refused

    def _refuse(self, pending: PendingGang, cause: GangIncomplete) -> None:
        self._refused[pending] = cause
        self._refused_alike.setdefault(pending.fingerprint, pending)

    def _refuse_hopeless(self, incomplete: Iterable[PendingGang]) -> None:
        """Refuse those that would not be complete if they were alone."""
        for pending in incomplete:
            plan = self._plan_alone(pending, self._domains[pending][0])
            if _placed_alone(plan) < pending.needed:
                self._refused[pending] = self._shortfall(pending, plan, "")

    def _refuse_undecided(self, candidates: Iterable[PendingGang]) -> None:
        for pending in candidates:
            gang = pending.gang
            self._refused[pending] = GangIncomplete(gang.name, GangShortfall.NOT_TRIED, gang.minimum)

    # -- plans ----------------------------------------------------------------------------------------------------------

    def _plan(self, served: Served) -> _Plan:
        """The plan that serves these gangs and the single pods."""
        key = _plan_key(served)
        if key not in self._plans:
            self._plans_left -= 1
            self._plans[key] = _Plan(served, self._solve_pods(self._problem.serving(served)))
        return self._plans[key]

    def _trial(self, served: Served) -> _Plan:
        """A plan that only shows whether these gangs fit: the final one if it is known, else one without a search."""
        key = _plan_key(served)
        if key in self._plans or not self._plans:
            return self._plan(served)
        if key not in self._trials:
            self._plans_left -= 1
            problem = self._problem.serving(served)
            options = replace(problem.options, packing_mode=PackingMode.CLASSIC)
            self._trials[key] = _Plan(served, self._solve_pods(replace(problem, options=options)))
        return self._trials[key]

    def _final_plan(self, served: Served) -> _Plan:
        """The cheapest plan that serves these gangs; the one of their trial where the search completes others."""
        plan = self._plan(served)
        return self._trials.get(_plan_key(served), plan) if plan.incomplete() else plan

    def _plan_alone(self, pending: PendingGang, domain: str) -> _Plan:
        """The plan of a gang without any other pod. Gangs that ask for the same share it."""
        key = (pending.fingerprint, domain)
        if key not in self._alone:
            self._plans_left -= 1
            served = {pending: domain}
            self._alone[key] = _Plan(served, self._solve_pods(self._problem.serving(served, alone=True)))
        return self._alone[key]

    def _shortfall(self, pending: PendingGang, plan: _Plan, domain: str) -> GangIncomplete:
        """The first pod that a plan leaves out, and why."""
        own = pending if pending in plan.served else next(iter(plan.served))
        uids = {pod.metadata.uid for pod in own.pods}
        left = next((each for each in plan.solution.unschedulable if each.pod.metadata.uid in uids), None)
        gang = pending.gang
        available = gang.running + plan.placed(own)
        if left is None and gang.on_existing_nodes_only:
            detail = "the others would need new nodes, which are not launched for it"
            return GangIncomplete(
                gang.name, GangShortfall.NO_PLACE, gang.minimum, available, detail=detail, domain=domain
            )
        if left is None:
            displaced = next((each.gang.name for each in plan.incomplete() if each is not own), "other pods")
            detail = f"it would take places of {displaced}"
            return GangIncomplete(
                gang.name, GangShortfall.NO_PLACE, gang.minimum, available, detail=detail, domain=domain
            )
        missing = _counterpart(_pod_name(left.pod), own, pending)
        detail = unschedulable_message(left.reasons, short_reason_message)
        return GangIncomplete(gang.name, GangShortfall.NO_PLACE, gang.minimum, available, missing, detail, domain)

    # -- the outcome ----------------------------------------------------------------------------------------------------

    def _outcomes(self, plan: _Plan) -> Iterable[GangOutcome]:
        for pending, domain in plan.served.items():
            gang = pending.gang
            yield GangOutcome(gang.name, gang.minimum, gang.running, plan.placed(pending), True, domain)
        for pending in self._refused:
            yield GangOutcome(pending.gang.name, pending.gang.minimum, pending.gang.running, 0, is_complete=False)


def _plan_key(served: Served) -> _PlanKey:
    return frozenset((pending.gang.name, domain) for pending, domain in served.items())


def _unschedulable(pending: PendingGang, cause: GangIncomplete) -> Iterable[UnschedulablePod]:
    reasons = (UnschedulableReason(cause),)
    return (UnschedulablePod(pod, reasons) for pod in pending.pods)


def _pod_name(pod: Pod) -> str:
    return "/".join(pod_key(pod))


def _placed_alone(plan: _Plan) -> int:
    (pending,) = plan.served
    return plan.placed(pending)


def _counterpart(name: str, own: PendingGang, pending: PendingGang) -> str:
    """The pod of a gang that is to it what the named one is to another gang that asks for the same."""
    if own is pending or not name:
        return name
    signature = next(group.signature for group in own.groups if any(_pod_name(pod) == name for pod in group.pods))
    return max(_pod_name(pod) for group in pending.groups if group.signature is signature for pod in group.pods)


def _with_gang_names(claims: Sequence[NewNodeClaim], served: Served) -> tuple[NewNodeClaim, ...]:
    """The NodeClaims, each with the gangs that it is created for in an annotation."""
    gang_of = {pod.metadata.uid: pending.gang.name for pending in served for pod in pending.pods}
    return tuple(_with_annotation(claim, gang_of) for claim in claims)


def _with_annotation(planned: NewNodeClaim, gang_of: Mapping[str, str]) -> NewNodeClaim:
    names = Counter(gang_of[uid] for pod in planned.pods if (uid := pod.metadata.uid) in gang_of)
    if not names:
        return planned
    meta = planned.claim.metadata
    annotations = {**meta.annotations, labels.GANG: ",".join(sorted(names))}
    claim = msgspec.structs.replace(planned.claim, metadata=msgspec.structs.replace(meta, annotations=annotations))
    return replace(planned, claim=claim)
