"""A pass that is known before a decision counts for what it was made of, and for nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from karpenter.scheduling.existing_nodes import ExistingNodeIndex
from karpenter.scheduling.pass_context import PassContext
from karpenter.scheduling.pass_result import DomainOrder, PassResult, PlannedPlacements
from karpenter.scheduling.prepared_problem import PreparedProblem
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.topology.bound_pod_counts import BoundPodCounts
from karpenter.scheduling.topology.topology_domains import TopologyDomains
from support.builders import NOW, node_pool, snapshot
from support.instance_types import STD, index_of

_GROUPS = ()
_RESULT = PassResult((), (), ())


def _prepared() -> PreparedProblem:
    indexes = {"np": index_of(STD)}
    return PreparedProblem(build_problem(snapshot(node_pool()), indexes, NOW), indexes)


def _domains(prepared: PreparedProblem) -> TopologyDomains:
    counts = BoundPodCounts(prepared.problem.snapshot)
    return TopologyDomains(counts, prepared.templates, prepared.existing_nodes)


def _context(**changed: Any) -> PassContext:
    prepared = _prepared()
    domains = _domains(prepared)
    known = prepared.pass_context(prepared.existing_nodes, domains, PlannedPlacements()).with_known_pass(
        _GROUPS, _RESULT
    )
    return replace(known, **changed)


def test_a_known_pass_over_the_same_groups_is_not_made_again() -> None:
    assert _context().known_result(_GROUPS) is _RESULT
    assert (
        _context(limits={"np": {"cpu": 1}}).known_result(_GROUPS) is _RESULT
    )  # what can be launched within them is compared


def test_a_pass_over_other_groups_is_not_known() -> None:
    groups: list[Any] = []
    assert _context().known_result(groups) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"existing_nodes": ExistingNodeIndex(())},
        {"launch_options": _prepared().launch_options_within({"np": {"cpu": 1}})},
        {"domains": _domains(_prepared())},
        {"planned": PlannedPlacements({"uid": "node"}, 1)},
        {"domain_order": DomainOrder.BALANCED},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_known_pass_does_not_count_where_something_else_differs(changed: dict[str, Any]) -> None:
    assert _context(**changed).known_result(_GROUPS) is None
