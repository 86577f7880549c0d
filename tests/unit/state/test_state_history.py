"""Any history of events gives the same snapshot as a fresh start with the final objects."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karpenter.api.apps import DaemonSet
from karpenter.api.core import Node, Pod, PodDisruptionBudget
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import LabelSelector, Wire
from karpenter.api.scheduling_constraints import Affinity, PodAffinity, PodAffinityTerm
from karpenter.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass
from karpenter.state import ClusterSnapshot, ClusterState
from support.builders import UNSCHEDULABLE, budget, claim, daemon_set, feed, node, node_pool, owner, pod, seconds
from support.examples import examples
from support.volume_builders import csi_node, pvc, storage_class, using, zonal

Event = tuple[str, Wire]

_APART = PodAffinityTerm(
    topology_key="kubernetes.io/hostname", label_selector=LabelSelector(match_labels={"app": "web"})
)
_NAMES = st.sampled_from(["a", "b", "c"])
_MODES = st.sampled_from(["ReadWriteOnce", "ReadWriteOncePod"])
_PROVIDERS = st.sampled_from(["", "p://1", "p://2"])


@st.composite
def a_pod(draw: st.DrawFn) -> Pod:
    by = (owner("DaemonSet", draw(_NAMES)),) if draw(st.booleans()) else ()
    spec: dict[str, object] = {"node_name": draw(st.sampled_from(["", "a", "b"]))}
    if draw(st.integers(0, 3)) == 0:
        spec["affinity"] = Affinity(pod_anti_affinity=PodAffinity(required=(_APART,)))
    spec["volumes"] = using(*draw(st.sets(_NAMES, max_size=2)))
    phase = draw(st.sampled_from(["Pending", "Running", "Succeeded"]))
    conditions = (UNSCHEDULABLE,) if draw(st.booleans()) else ()
    return pod(
        draw(_NAMES),
        {"cpu": draw(st.sampled_from(["1", "2", "lots"]))},
        meta={"owner_references": by, "creation_timestamp": seconds(draw(st.integers(0, 2)))},
        status={"phase": phase, "conditions": conditions},
        **spec,
    )


@st.composite
def a_node(draw: st.DrawFn) -> Node:
    own = dict.fromkeys(draw(st.sets(st.sampled_from(["karpenter.sh/registered", "karpenter.sh/initialized"]))), "true")
    own |= {"karpenter.sh/nodepool": "a"} if draw(st.booleans()) else {}
    own |= {"node.kubernetes.io/instance-type": "t"} if draw(st.booleans()) else {}
    return node(
        draw(_NAMES),
        {"cpu": draw(st.sampled_from(["0", "4"]))},
        labels=own,
        provider_id=draw(_PROVIDERS),
        deleted=draw(st.booleans()),
    )


@st.composite
def a_claim(draw: st.DrawFn) -> NodeClaim:
    return claim(
        draw(_NAMES), {"cpu": "4"}, pool=draw(_NAMES), provider_id=draw(_PROVIDERS), deleted=draw(st.booleans())
    )


objects = st.one_of(
    a_pod(),
    a_pod(),
    a_node(),
    a_claim(),
    _NAMES.map(node_pool),
    st.builds(lambda name, cpu: daemon_set(name, {"cpu": cpu}), _NAMES, st.sampled_from(["1", "lots"])),
    _NAMES.map(lambda name: budget(name, {"app": name})),
    st.builds(lambda name, volume, mode: pvc(name, volume, "a", modes=[mode]), _NAMES, st.just("") | _NAMES, _MODES),
    st.builds(zonal, _NAMES, st.sampled_from(["z1", "z2"])),
    _NAMES.map(storage_class),
    st.builds(lambda name, limit: csi_node(name, ebs=limit), _NAMES, st.sampled_from([None, 1, 2])),
)
histories = st.lists(st.tuples(st.sampled_from(["set", "set", "set", "remove", "look"]), objects), max_size=25)


def key(wire: Wire) -> tuple[str, str]:
    meta = wire.metadata  # type: ignore[attr-defined]
    return (meta.namespace, meta.name)


def remove(state: ClusterState, wire: Wire) -> None:
    namespace, name = key(wire)
    removers: dict[type, Callable[[], None]] = {
        Pod: lambda: state.remove_pod((namespace, name)),
        Node: lambda: state.remove_node(name),
        NodeClaim: lambda: state.remove_claim(name),
        NodePool: lambda: state.remove_pool(name),
        DaemonSet: lambda: state.remove_daemon_set((namespace, name)),
        PodDisruptionBudget: lambda: state.remove_pdb((namespace, name)),
        PersistentVolumeClaim: lambda: state.remove_volume_claim((namespace, name)),
        PersistentVolume: lambda: state.remove_volume(name),
        StorageClass: lambda: state.remove_storage_class(name),
        CSINode: lambda: state.remove_csi_node(name),
    }
    removers[type(wire)]()


def comparable(taken: ClusterSnapshot) -> object:
    """The snapshot as plain values: classes by their key, as two states have objects of their own."""
    groups = [(group.signature.key, dict(group.signature.requests), group.pods) for group in taken.pod_groups]
    return (
        groups,
        taken.nodes,
        taken.pools,
        taken.daemonset_pods,
        taken.pdbs,
        taken.anti_affinity_counts,
        taken.volumes,
    )


def replayed(history: list[Event]) -> tuple[ClusterState, list[Wire]]:
    """The state after a history, and the objects that exist in the end."""
    state, final = ClusterState(), {}
    for action, wire in history:
        if action == "set":
            feed(state, [wire])
            final[(type(wire), *key(wire))] = wire
        elif action == "remove":
            remove(state, wire)
            final.pop((type(wire), *key(wire)), None)
        else:
            state.snapshot()
    return state, list(final.values())


def check_history(history: list[Event], seed: int) -> None:
    state, final = replayed(history)
    Random(seed).shuffle(final)
    assert comparable(state.snapshot()) == comparable(feed(ClusterState(), final).snapshot())


_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=examples(400), deadline=None, suppress_health_check=_SLOW)
@given(histories, st.integers(0, 9))
def test_a_snapshot_depends_on_what_is_and_not_on_what_was(history: list[Event], seed: int) -> None:
    """OPS §2: lists after a restart, watches that reconnect and events in any order must lead to the same decisions."""
    check_history(history, seed)
