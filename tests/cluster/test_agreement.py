"""The real kube-scheduler agrees with our plans: every planned pod binds, and where we see no room it sees none either.

One control plane, no autoscaler: nodes are objects without kubelets, pods are bound and never start. Each scenario asks twice. A
pod of each kind alone: do we and the scheduler both find it a place on the nodes there are? All pods together: do all that are
planned bind, nominated as the product nominates? The rate of agreement is printed; it has to be 100 %.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pytest

from controlplane.harness import ControlPlane
from controlplane.scheduler_harness import SchedulerHarness
from karpenter.api.core import Pod
from karpenter.scheduling.explain.reason_messages import reason_message
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from support import greedy_plan
from support.agreement_scenarios import TYPES, Scenario, only, scenarios
from support.builders import NOW, indexes, snapshot
from support.kube_filters import spreads
from support.plan_checker import violations

pytestmark = pytest.mark.cluster

#: Kinds the decision still refuses say so with this text. Empty once it knows them all: then it may refuse none.
REFUSED = ""
ALL = tuple(scenarios())
#: Scenarios with a plan in which pods nominated to one node minded each other.
_ONCE_UNBOUND = ("spread-min-domains-3", "mix-22-daemons-spread-zone")


@pytest.fixture(scope="module")
def harness() -> Iterator[SchedulerHarness]:
    with ControlPlane(scheduler=True) as plane:
        result = SchedulerHarness(plane)
        result.open()
        yield result


@dataclass
class Tally:
    """What became of scenarios."""

    planned: int = 0
    asked: int = 0
    refused: int = 0
    cautious: int = 0
    elsewhere: int = 0
    faults: list[str] = field(default_factory=list)
    #: Violations that the plan checker finds; the plans are given to the scheduler all the same.
    invalid: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        total = self.planned + self.asked
        agreed = total - len(self.faults)
        return (
            f"agreement with kube-scheduler: {agreed} of {total} ({agreed / max(total, 1):.2%}); {self.planned} pods planned, "
            f"{self.elsewhere} of them bound elsewhere, {self.asked} asked about alone; refused {self.refused}, "
            f"more cautious than the scheduler {self.cautious}"
        )


#: How a plan for a scenario is made.
Planner = Callable[[Scenario], Solution]


def by_us(scenario: Scenario) -> Solution:
    return solve(build_problem(snapshot(scenario.cluster().objects()), indexes(scenario.pools, TYPES), NOW))


def by_the_plan_checker(scenario: Scenario) -> Solution:
    return greedy_plan.planned(scenario.cluster())


def refused(plan: Solution) -> int:
    return (
        sum(
            any(REFUSED in reason_message(reason) for reason in unschedulable_pod.reasons)
            for unschedulable_pod in plan.unschedulable
        )
        if REFUSED
        else 0
    )


def representatives(pods: Iterable[Pod]) -> list[Pod]:
    """One pod of every kind."""
    return [pod for pod in pods if pod.metadata.name.endswith("-0")]


def apply(harness: SchedulerHarness, scenario: Scenario, planner: Planner, tally: Tally) -> None:
    plan = planner(scenario)
    tally.invalid += [f"{scenario.name}: {problem}" for problem in violations(scenario.cluster(), plan)]
    with harness.applied(scenario):
        for pod in representatives(scenario.pods):
            _ask_alone(harness, scenario, pod, planner, tally)
        where = harness.carried_out(scenario, plan)
        meant = {
            (pod.metadata.namespace, pod.metadata.name): name
            for name, pods in (
                *((g.node_name, g.pods) for g in plan.placed_on_existing),
                *((c.name, c.pods) for c in plan.new_claims),
            )
            for pod in pods
        }
        tally.planned += len(meant)
        tally.refused += refused(plan)
        tally.elsewhere += sum(where[key] != meant[key] for key in where)
        tally.faults += [
            f"{scenario.name}: {key[1]}, planned on {meant[key]}, is not bound: {harness.why(key)}"
            for key in sorted(meant.keys() - where.keys())
        ]


def _ask_alone(harness: SchedulerHarness, scenario: Scenario, pod: Pod, planner: Planner, tally: Tally) -> None:
    plan = planner(only(scenario, pod))
    if refused(plan):
        return
    tally.asked += 1
    where = harness.alone(pod)
    if bool(where) == bool(plan.placed_on_existing):
        return
    if where and planner is by_us and spreads(pod.spec):
        # Domains that could be launched count for us, empty; the scheduler knows only nodes (SCH-490, SCH-541).
        tally.cautious += 1
    else:
        ours = plan.placed_on_existing[0].node_name if plan.placed_on_existing else "nowhere"
        tally.faults.append(
            f"{scenario.name}: {pod.metadata.name} alone goes {ours}, the scheduler says {where or 'nowhere'}"
        )


def _applied(harness: SchedulerHarness, chosen: Iterable[Scenario], planner: Planner) -> Tally:
    tally = Tally()
    for scenario in chosen:
        apply(harness, scenario, planner, tally)
    print("", tally, *tally.invalid, *tally.faults, sep="\n")
    assert not tally.invalid
    assert not tally.faults
    assert tally.planned + tally.asked > 0
    return tally


def slice_of(turn: int) -> list[Scenario]:
    """One scenario of each kind, every tenth mixture, and those in which a plan did not bind before."""
    return [
        scenario
        for scenario in ALL
        if scenario.name in _ONCE_UNBOUND
        or scenario.name.endswith(f"-{turn}")
        or re.match(rf"mix-\d*{turn}-", scenario.name)
    ]


def test_planned_pods_bind_and_pods_without_room_find_none(harness: SchedulerHarness) -> None:
    tally = _applied(harness, slice_of(0), by_us)
    assert REFUSED or not tally.refused


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_planned_pods_bind_in_all_scenarios(harness: SchedulerHarness) -> None:
    tally = _applied(harness, ALL, by_us)
    assert len(ALL) >= 100
    assert REFUSED or not tally.refused


def test_the_plan_checker_agrees_with_the_scheduler(harness: SchedulerHarness) -> None:
    """Plans made with the checker's filters bind, and no single pod binds where the checker finds no node."""
    _applied(harness, slice_of(1)[::16], by_the_plan_checker)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_plan_checker_agrees_with_the_scheduler_in_all_scenarios(harness: SchedulerHarness) -> None:
    _applied(harness, ALL, by_the_plan_checker)
