"""What the simulated scheduler remembers of nodes is what it would find if it asked all of them anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from karpenter.api.core import Node, Pod
from karpenter.api.scheduling_constraints import Taint
from karpenter.kube.informer import key_of
from karpenter.simulation.scheduler_cache import PodPlaced, SchedulerCache
from karpenter.simulation.scheduler_node_info import to_pod_info
from support.stand_in_cluster import node, pod

_NAMES = ("a", "b")
_SIZES = ("500m", "1", "2")
_PODS = tuple(f"p{number}" for number in range(6))
_TAINTED = (Taint(key="team", value="a", effect="NoSchedule"),)
_STEPS = st.tuples(
    st.sampled_from(("place", "remove", "nominate", "forget nomination", "node", "taint", "no node")),
    st.sampled_from(_PODS),
    st.sampled_from(_NAMES),
)


def _node(name: str, *, tainted: bool = False) -> Node:
    own = node(name, "2")
    return replace(own, spec=replace(own.spec, taints=_TAINTED)) if tainted else own


def _pod(name: str, nominated: str = "") -> Pod:
    own = pod(name, _SIZES[int(name[1:]) % len(_SIZES)])
    return replace(own, status=replace(own.status, nominated_node_name=nominated))


class _Cluster:
    """What the scheduler was told, so that another one can be told the same."""

    def __init__(self) -> None:
        self.cache = SchedulerCache()
        self._nodes: dict[str, Node] = {}
        self._placed: dict[str, str] = {}
        self.nominated: dict[str, str] = {}

    def change(self, what: str, pod_name: str, node_name: str) -> None:
        own = _pod(pod_name)
        if what == "place" and pod_name not in self._placed:  # a pod never moves
            self.nominated.pop(pod_name, None)
            self._placed[pod_name] = node_name
            self.cache.add_pod(to_pod_info(own), node_name)
        elif what == "remove":
            self._placed.pop(pod_name, None)
            self.cache.remove_pod(key_of(own.metadata))
        elif what == "nominate" and pod_name not in self._placed:
            self.nominated[pod_name] = node_name
            self.cache.nominate(to_pod_info(_pod(pod_name, node_name)))
        elif what == "forget nomination":
            self.nominated.pop(pod_name, None)
            self.cache.remove_nomination(key_of(own.metadata))
        elif what == "no node":
            self._nodes.pop(node_name, None)
            self.cache.set_node(node_name, None)
        elif what in ("node", "taint"):
            self._nodes[node_name] = _node(node_name, tainted=what == "taint")
            self.cache.set_node(node_name, self._nodes[node_name])

    def anew(self) -> SchedulerCache:
        fresh = SchedulerCache()
        for name, own in self._nodes.items():
            fresh.set_node(name, own)
        for name, at in self._placed.items():
            fresh.add_pod(to_pod_info(_pod(name)), at)
        for name, at in self.nominated.items():
            fresh.nominate(to_pod_info(_pod(name, at)))
        return fresh


@given(st.lists(_STEPS, min_size=1, max_size=40))
def test_every_attempt_finds_what_one_finds_that_remembers_nothing(steps: list[tuple[str, str, str]]) -> None:
    cluster = _Cluster()
    for step in steps:
        cluster.change(*step)
        for name in ("p3", "p4", "p5"):
            waiting = to_pod_info(_pod(name, cluster.nominated.get(name, "")))
            assert cluster.cache.schedule(waiting) == cluster.anew().schedule(waiting)


@pytest.mark.parametrize(
    ("taken_by", "freed_by"),
    [("place", "remove"), ("nominate", "forget nomination")],
    ids=["another pod has left", "room is no longer kept for another pod"],
)
def test_a_node_takes_a_pod_that_it_refused_before_once_there_is_room(taken_by: str, freed_by: str) -> None:
    cluster = _Cluster()
    cluster.change("node", "p0", "a")
    cluster.change(taken_by, "p2", "a")
    assert not isinstance(cluster.cache.schedule(to_pod_info(_pod("p1"))), PodPlaced)
    cluster.change(freed_by, "p2", "a")
    assert cluster.cache.schedule(to_pod_info(_pod("p1"))) == PodPlaced("a")


def test_nothing_is_remembered_of_nodes_that_are_gone() -> None:
    """Nodes come and go in a long run; cached facts about them go with them."""
    cluster = _Cluster()
    for name in ("p3", "p4"):
        cluster.change("node", "p0", "a")
        cluster.change("taint", "p0", "b")
        cluster.cache.schedule(to_pod_info(_pod(name)))
    cluster.change("place", "p2", "a")
    for name in _NAMES:
        cluster.change("no node", "p0", name)
    cluster.change("remove", "p2", "a")
    remembered = cluster.cache._open_nodes
    assert len(remembered._kinds) == 2
    assert not remembered._changed
    assert not any(known.open or known.refused or +known.refusals for known in remembered._kinds.values())
