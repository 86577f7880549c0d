"""In-flight NodeClaims: pods planned for them get no further nodes (S-060 with S-150 to S-186)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from karpenter.api.core import Pod
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from support.applied_plans import PlannedCluster
from support.builders import ANY_CAPACITY, left, node_pool, plan, sizes, wanted
from support.instance_types import STD, inc
from support.topology_builders import affinity_term, app_pods, pod_affinity_to, pod_anti_affinity_to, spread_over

ZONE, HOST, KIND = labels.ZONE, labels.HOSTNAME, labels.CAPACITY_TYPE
RACK = "example.com/rack"
_CPU, _LITTLE = {"cpu": "1"}, {"cpu": "200m"}

#: Pods that one pass serves, by what they say about each other.
BATCHES: dict[str, Callable[[], list[Pod]]] = {
    "even-zones": lambda: app_pods(7, _CPU, spread=[spread_over()]),
    "even-hosts": lambda: app_pods(7, _CPU, spread=[spread_over(HOST)]),
    "even-pairs-on-hosts": lambda: app_pods(7, _CPU, spread=[spread_over(HOST, 2)]),
    "even-capacity-types": lambda: app_pods(7, _CPU, spread=[spread_over(KIND)]),
    "even-zones-and-hosts": lambda: app_pods(7, _CPU, spread=[spread_over(), spread_over(HOST, 2)]),
    "even-custom-key": lambda: app_pods(6, _CPU, spread=[spread_over(RACK)]),
    "soft-hosts": lambda: app_pods(5, _CPU, spread=[spread_over(HOST, soft=True)]),
    "soft-zones": lambda: app_pods(5, _CPU, spread=[spread_over(soft=True)]),
    "one-host": lambda: app_pods(3, _CPU, affinity=pod_affinity_to(affinity_term())),
    "one-zone": lambda: app_pods(14, _CPU, affinity=pod_affinity_to(affinity_term(key=ZONE))),
    "a-host-each": lambda: app_pods(5, _CPU, affinity=pod_anti_affinity_to(affinity_term())),
    "a-zone-each": lambda: app_pods(3, _CPU, affinity=pod_anti_affinity_to(affinity_term(key=ZONE))),
    "followers-by-host": lambda: [
        *app_pods(2, _CPU),
        *app_pods(4, _LITTLE, app="db", affinity=pod_affinity_to(affinity_term())),
    ],
    "followers-by-zone": lambda: [
        *app_pods(2, _CPU),
        *app_pods(4, _LITTLE, app="db", affinity=pod_affinity_to(affinity_term(key=ZONE))),
    ],
    "a-guard": lambda: [
        *app_pods(1, _CPU, app="guard", affinity=pod_anti_affinity_to(affinity_term(key=ZONE))),
        *app_pods(6, _LITTLE),
    ],
    "preferred-zone": lambda: app_pods(5, _CPU, affinity=pod_affinity_to(preferred=[affinity_term(key=ZONE)])),
    "preferred-distance": lambda: app_pods(5, _CPU, affinity=pod_anti_affinity_to(preferred=[affinity_term(key=ZONE)])),
}
_POOL = node_pool(requirements=[ANY_CAPACITY, wanted(RACK, "In", "a", "b")])


@pytest.mark.parametrize("types", [STD, inc(8)], ids=["STD", "INC(8)"])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_pods_that_wait_for_planned_nodes_ask_for_no_more(
    batch: Callable[[], list[Pod]], types: Sequence[InstanceType]
) -> None:
    """Unlaunched claims are enough to see that every pod has a place, by what they are sure to become."""
    waiting = batch()
    first = plan(_POOL, waiting, types=types)
    assert (left(first), sizes(first) != []) == ([], True)
    again = plan(_POOL, waiting, [new_nodeclaim.claim for new_nodeclaim in first.new_claims], types=types)
    assert (left(again), sizes(again)) == ([], [])


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_pods_that_run_where_they_were_planned_ask_for_nothing(batch: Callable[[], list[Pod]]) -> None:
    """A second pass over bound pods changes nothing."""
    cluster = PlannedCluster(_POOL, types=inc(8))
    cluster.batch(batch())
    again = cluster.batch()
    assert (sizes(again), again.placed_on_existing, left(again)) == ([], (), [])
