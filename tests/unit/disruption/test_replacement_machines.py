"""A replacement that may be the very instance that is removed is no replacement, unless another node is saved by it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from karpenter.disruption.decide.disruption_problem import DisruptionSolution
from karpenter.model import labels
from support.builders import wanted
from support.disruption_cases import bought, decide, gone, pool, running

#: Type, zone, and the CPU of each pod.
_Node = tuple[str, str, tuple[float, ...]]


def decided(cluster: Sequence[_Node], least_types: int) -> DisruptionSolution:
    several = [wanted(labels.INSTANCE_TYPE, "Exists", least=least_types)] if least_types > 1 else []
    own = pool(requirements=[wanted(labels.CAPACITY_TYPE, "In", "on-demand"), *several])
    return decide(
        own, [running(f"n{number}", kind, *pods, zone=zone) for number, (kind, zone, pods) in enumerate(cluster)]
    )


@pytest.mark.parametrize("least_types", [1, 2])
@pytest.mark.parametrize("large", ["m", "l"])
def test_two_large_nodes_go_and_the_small_one_stays(large: str, least_types: int) -> None:
    """DIS-212: another small node for all three would restart the pods of the small one, too."""
    cluster = [(large, "z1", (0.5,)), (large, "z1", (0.5,)), ("s", "z1", (0.5,))]
    solution = decided(cluster, least_types)
    assert (gone(solution), bought(solution)) == (["n0", "n1"], [])


@pytest.mark.parametrize("least_types", [1, 2])
def test_a_node_like_a_removed_one_may_save_another(least_types: int) -> None:
    """DIS-212 Beyond: no pod leaves a small node that stays, so keeping both takes a third one for the pod of the large node."""
    cluster = [("s", "z1", (1.0, 0.5)), ("l", "z1", (1.0,)), ("s", "z2", (1.0, 0.5))]
    solution = decided(cluster, least_types)
    assert (len(gone(solution)), gone(solution)[-1], bought(solution)) == (2, "n1", ["s"])
