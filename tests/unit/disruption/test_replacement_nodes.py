"""A replacement that may get the offering of the removed instance counts only if it also saves another node."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from karpenter.api.meta import Wire
from karpenter.disruption.decide.disruption_problem import DisruptionSolution
from karpenter.model import labels
from support.builders import wanted
from support.disruption_cases import CPUS, decide, gone, pool, replacement_types, running, with_annotation
from support.examples import examples

#: Type, zone, and the CPU of each pod.
_Node = tuple[str, str, tuple[float, ...]]
#: USD per hour.
PRICES = {kind: cpu / 2 for kind, cpu in CPUS.items()}


@st.composite
def clusters(draw: st.DrawFn) -> list[_Node]:
    """Nodes of three sizes in two zones, each with as many pods as it holds at most."""
    drawn: list[_Node] = []
    for _ in range(draw(st.integers(2, 5))):
        kind = draw(st.sampled_from(sorted(CPUS)))
        pods: list[float] = []
        for cpu in draw(st.lists(st.sampled_from([0.5, 1.0, 1.5, 3.0]), min_size=1, max_size=4)):
            if sum(pods) + cpu <= CPUS[kind]:
                pods.append(cpu)
        drawn.append((kind, draw(st.sampled_from(["z1", "z2"])), tuple(pods)))
    return drawn


def decided(cluster: Sequence[_Node], least_types: int, kept: str = "") -> DisruptionSolution:
    """The decision, without the node ``kept`` as a candidate."""
    several = [wanted(labels.INSTANCE_TYPE, "Exists", least=least_types)] if least_types > 1 else []
    objects: list[Wire] = [pool(requirements=[wanted(labels.CAPACITY_TYPE, "In", "on-demand"), *several])]
    for number, (kind, zone, pods) in enumerate(cluster):
        host, *others = running(f"n{number}", kind, *pods, zone=zone)
        stays = f"n{number}" == kept
        objects += [with_annotation(host, labels.DO_NOT_DISRUPT, "true") if stays else host, *others]
    return decide(objects)


def price_after(cluster: Sequence[_Node], solution: DisruptionSolution) -> float:
    """USD per hour of the nodes that stay and of those that are launched."""
    removed = set(gone(solution))
    stay = sum(PRICES[kind] for number, (kind, *_) in enumerate(cluster) if f"n{number}" not in removed)
    return stay + sum(PRICES[name] for name in replacement_types(solution))


def restarts(cluster: Sequence[_Node], solution: DisruptionSolution) -> int:
    """How many pods are on the nodes that go."""
    removed = set(gone(solution))
    return sum(len(pods) for number, (_, _, pods) in enumerate(cluster) if f"n{number}" in removed)


def launched_again(solution: DisruptionSolution) -> list[str]:
    """Nodes that a command removes although it launches one of their type in their zone."""
    again: list[str] = []
    for command in solution.commands:
        launched = {(new.instance_types[0], new.cheapest_offering.zone) for new in command.replacements}
        for candidate in command.candidates:
            own = candidate.state_node.own_labels
            if (own[labels.INSTANCE_TYPE], own[labels.ZONE]) in launched:
                again.append(candidate.state_node.name)
    return again


@pytest.mark.parametrize("least_types", [1, 2])
@settings(max_examples=examples(96), deadline=None, suppress_health_check=list(HealthCheck))
@example([("l", "z1", (1.0, 3.0, 1.5)), ("m", "z1", (1.5, 1.5)), ("l", "z1", (1.5, 0.5, 3.0)), ("l", "z1", (0.5,))])
@example([("m", "z1", (1.0, 1.5)), ("l", "z1", (0.5, 0.5, 3.0)), ("l", "z1", (0.5, 1.0, 1.5, 3.0))])
@example([("m", "z1", (0.5, 1.0)), ("l", "z1", (1.5, 1.5)), ("m", "z1", (0.5, 1.0, 1.5))])
@given(clusters())
def test_a_node_is_removed_for_one_like_it_only_where_keeping_it_costs_more(
    least_types: int, cluster: list[_Node]
) -> None:
    """DIS-210, DIS-212 Beyond: for each such node, the decision that keeps it leaves a more expensive cluster.

    Or it restarts more pods for the same price, where another node goes for one like it instead.
    """
    solution = decided(cluster, least_types)
    for name in launched_again(solution):
        keeping = decided(cluster, least_types, name)
        price, price_keeping = price_after(cluster, solution), price_after(cluster, keeping)
        assert price_keeping > price or (
            price_keeping == price
            and launched_again(keeping)
            and restarts(cluster, keeping) > restarts(cluster, solution)
        )


@pytest.mark.parametrize("least_types", [1, 2])
@pytest.mark.parametrize("large", ["m", "l"])
def test_two_large_nodes_go_and_the_small_one_stays(large: str, least_types: int) -> None:
    """DIS-212: another small node for all three would restart the pods of the small one, too."""
    cluster = [(large, "z1", (0.5,)), (large, "z1", (0.5,)), ("s", "z1", (0.5,))]
    solution = decided(cluster, least_types)
    assert (gone(solution), replacement_types(solution)) == (["n0", "n1"], [])


@pytest.mark.parametrize("least_types", [1, 2])
def test_a_node_like_a_removed_one_may_save_another(least_types: int) -> None:
    """DIS-212 Beyond: no pod leaves a small node that stays, so keeping both takes a third one for the pod of the large node."""
    cluster = [("s", "z1", (1.0, 0.5)), ("l", "z1", (1.0,)), ("s", "z2", (1.0, 0.5))]
    solution = decided(cluster, least_types)
    assert (len(gone(solution)), gone(solution)[-1], replacement_types(solution)) == (2, "n1", ["s"])
