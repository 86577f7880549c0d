"""What the API server of a study has when it begins: the nodes of its starting cluster, their instances, and the pods on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

import msgspec

from karpenter.api.core import ConfigMap, Pod, PodStatus
from karpenter.api.meta import Condition, Wire
from karpenter.model import conditions, labels
from karpenter.providers.simulated import NamedNodes
from karpenter.providers.simulated.fault_rules import ScheduledFaults, SimulatedLaunch
from karpenter.providers.simulated.simulated_instances import stored_instance
from karpenter.simulator.starting_cluster import StartingCluster, StartingNode
from karpenter.simulator.starting_objects import starting_uid
from karpenter.simulator.workload import PodLife, RunningPod, Workload
from karpenter.simulator.world import WorldFaults

_TRUE_OF_RUNNING_PODS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


def named_nodes(starting: StartingCluster) -> NamedNodes:
    """The names of the nodes, for who plays them."""
    return NamedNodes(instances=starting.instance_names, unmanaged=starting.unmanaged_names)


def starting_objects(starting: StartingCluster, workload: Workload, faults: WorldFaults) -> tuple[Wire, ...]:
    """All objects. ``faults`` says what is going to befall the instances."""
    return (
        *(
            wire
            for node in starting.nodes
            for wire in (node.node, node.claim, _instance(node, faults, workload.begins))
        ),
        *(node.node for node in starting.unmanaged),
        *_running_pods(workload.pods, workload.begins),
    )


def _instance(node: StartingNode, faults: WorldFaults, begins: datetime) -> ConfigMap:
    """The instance; what befalls it is drawn from now on, as its rate is the same at any age."""
    instance = node.instance
    pool = node.claim.metadata.labels.get(labels.NODE_POOL, "")
    launch = SimulatedLaunch(pool, instance.instance_type, instance.zone, instance.capacity_type)
    drawn = faults.schedule_faults(launch, None)
    age = (begins - instance.created_at).total_seconds()
    fate = ScheduledFaults(
        lost_seconds=_seconds_from_launch(drawn.lost_seconds, age),
        interrupted_seconds=_seconds_from_launch(drawn.interrupted_seconds, age),
        notice_seconds=drawn.notice_seconds,
    )
    return stored_instance(msgspec.structs.replace(instance, fate=fate))


def _seconds_from_launch(seconds_from_start: float | None, age: float) -> float | None:
    """When something befalls an instance that is so old at the start of the study; None for what never does."""
    return None if seconds_from_start is None else seconds_from_start + age


def _running_pods(lives: Iterable[PodLife], begins: datetime) -> Iterator[Pod]:
    for life in lives:
        if life.running is not None:
            yield _running_pod(life, life.running, begins - timedelta(seconds=life.running.seconds))


def _running_pod(life: PodLife, running: RunningPod, since: datetime) -> Pod:
    pod = life.template.pod(life.name)
    metadata = msgspec.structs.replace(pod.metadata, uid=starting_uid("Pod", life.name), creation_timestamp=since)
    stated = tuple(
        Condition(type=kind, status=conditions.TRUE, last_transition_time=since) for kind in _TRUE_OF_RUNNING_PODS
    )
    return msgspec.structs.replace(
        pod,
        metadata=metadata,
        spec=msgspec.structs.replace(pod.spec, node_name=running.node),
        status=PodStatus(phase="Running", start_time=since, conditions=stated),
    )
