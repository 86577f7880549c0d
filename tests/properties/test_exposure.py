"""Exposure never costs a pod its place, and where it does not hold the plan says so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from random import Random

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from karpenter.api.core import Pod
from karpenter.model.shares import share_of
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, ExposureLimits, Objective
from karpenter.scheduling.scheduling_options import SchedulingOptions
from support.builders import left, node_and_claim, node_pool, owner, plan, pod
from support.examples import examples
from support.instance_types import inc

#: Smaller plans may be on one node.
_SHARED_PLAN_PODS = 40
OFF = SchedulingOptions(objective=Objective(exposure=NO_EXPOSURE_LIMITS))


@dataclass(frozen=True)
class Case:
    """Workloads by number of pods and size, what limits the pool, whether a node is there, and the share."""

    workloads: tuple[tuple[int, int], ...]
    limits: tuple[tuple[str, str], ...]
    is_there: bool
    share: Fraction

    @property
    def options(self) -> SchedulingOptions:
        return SchedulingOptions(objective=Objective(exposure=ExposureLimits.uniform(self.share)))

    def pods(self) -> list[Pod]:
        return [
            pod(f"w{at}-{number}", {"cpu": f"{cpu}m"}, meta={"owner_references": (owner("ReplicaSet", f"w{at}"),)})
            for at, (count, cpu) in enumerate(self.workloads)
            for number in range(count)
        ]

    def objects(self) -> list[object]:
        there = [*node_and_claim("n1", {"cpu": "2"})] if self.is_there else []
        return [node_pool(limits=dict(self.limits)), *there, *self.pods()]


cases = st.builds(
    Case,
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from([100, 300, 900, 2500])), min_size=1, max_size=5).map(tuple),
    st.sampled_from(
        [(), (), (("nodes", "1"),), (("nodes", "2"),), (("nodes", "4"),), (("cpu", "6"),), (("cpu", "30"),)]
    ),
    st.booleans(),
    st.sampled_from([Fraction(1, 10), Fraction(1, 4), Fraction(1, 2), Fraction(9, 10)]),
)


@settings(max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck))
@given(cases)
@example(Case(((2, 300), (4, 100), (12, 100)), (("nodes", "1"),), True, Fraction(1, 10)))
def test_exposure_never_costs_a_pod_its_place(case: Case) -> None:
    """As many pods are served as without, whatever limits leave."""
    exposed, free = (plan(case.objects(), types=inc(8), options=options) for options in (case.options, OFF))
    assert len(left(exposed)) <= len(left(free))


@settings(max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck))
@given(cases)
@example(Case(((1, 100), (3, 100), (12, 100), (12, 100), (12, 100)), (("nodes", "1"),), False, Fraction(1, 10)))
def test_every_exceeded_exposure_is_reported_and_nothing_else(case: Case) -> None:
    """Counted anew: every node with too much of a workload, or of a plan of 40 pods or more, is among the concessions, with its
    numbers, and only where limits are."""
    solution = plan(case.objects(), types=inc(8), options=case.options)
    sizes = dict(enumerate(count for count, _ in case.workloads))
    expected: Counter[tuple[str, str, int, int]] = Counter()
    planned = sum(len(claim.pods) for claim in solution.new_claims)
    for claim in solution.new_claims:
        for at, number in Counter(
            int(listed_pod.metadata.name[1:].partition("-")[0]) for listed_pod in claim.pods
        ).items():
            most = share_of(case.share, sizes[at]) if sizes[at] >= 4 else sizes[at]
            if number > most:
                expected[f"ReplicaSet default/w{at}", f"NodeClaim {claim.name}", number, most] += 1
        most = share_of(case.options.objective.exposure.per_plan, planned)
        if planned >= _SHARED_PLAN_PODS and len(claim.pods) > most:
            expected["the plan", f"NodeClaim {claim.name}", len(claim.pods), most] += 1
    assert (
        Counter(
            (violation.subject, violation.place, violation.actual, violation.limit)
            for violation in solution.exposure_violations
        )
        == expected
    )
    assert not expected or case.limits


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(cases, st.integers(0, 2**32))
def test_exposed_plans_do_not_depend_on_the_order_of_anything(case: Case, seed: int) -> None:
    """SCH-862."""
    objects, types = case.objects(), list(inc(8))
    first = plan(objects, types=types, options=case.options)
    Random(seed).shuffle(objects)
    Random(seed).shuffle(types)
    again = plan(objects, types=types, options=case.options)
    assert [(c.name, c.claim, c.instance_types) for c in again.new_claims] == [
        (c.name, c.claim, c.instance_types) for c in first.new_claims
    ]
    assert (again.exposure_violations, left(again)) == (first.exposure_violations, left(first))
