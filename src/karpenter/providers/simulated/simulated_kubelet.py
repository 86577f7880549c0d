"""What a simulated instance writes: its Node and the status of its pods. Pure: from what is to what should be written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import cast

import msgspec

from karpenter.api.core import Node, NodeSpec, NodeStatus, Pod
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.api.resource_claims import ResourceSlice
from karpenter.kube.protocol import Json, JsonObject
from karpenter.model import conditions as states
from karpenter.model import labels
from karpenter.model.durations import parse_duration
from karpenter.providers.simulated.simulated_instances import INSTANCE_LABEL, SimulatedInstance

#: A pod with this annotation succeeds so many seconds after its start.
RUN_SECONDS_ANNOTATION = "karpenter.kwok.sh/run-seconds"
#: The status of a Node with this label and the value ``unhealthy`` is not changed (K15-522); such a pod is never ready (OPS-261).
KWOK_STAGE_LABEL = "kwok.x-k8s.io/stage"
UNHEALTHY = "unhealthy"
#: A pod with this annotation stops this long after its deletion was requested, whatever its grace period (OPS-261).
STOP_DELAY_ANNOTATION = "pod-delete.stage.kwok.x-k8s.io/delay"
#: A pod with this annotation is ready this long after it was bound, instead of after the usual time.
START_DELAY_ANNOTATION = "pod-ready.stage.kwok.x-k8s.io/delay"
FAKE_NODE = ("kwok.x-k8s.io/node", "fake")

_READY = "Ready"
_ENDED_PHASES = ("Succeeded", "Failed")


def new_node(instance: SimulatedInstance, now: datetime) -> Node:
    """The Node an instance registers with (OPS-258, OPS-259, OPS-265)."""
    return Node(
        metadata=ObjectMeta(
            name=instance.node_name,
            labels=dict(instance.node_labels),
            annotations=dict((FAKE_NODE, (INSTANCE_LABEL, "true"))),
        ),
        spec=NodeSpec(provider_id=instance.provider_id, taints=(labels.UNREGISTERED_TAINT, *instance.taints)),
        status=NodeStatus(
            capacity=instance.capacity,
            allocatable=instance.allocatable,
            conditions=(_ready_condition(ready=not _is_left_alone(instance.node_labels), now=now),),
        ),
    )


def device_slices(instance: SimulatedInstance) -> list[ResourceSlice]:
    """What the DRA drivers of an instance publish: the slices of its type, in pools of its own."""
    return [
        ResourceSlice(
            metadata=ObjectMeta(name=f"{instance.node_name}-{number}", labels={INSTANCE_LABEL: "true"}),
            spec=msgspec.structs.replace(
                spec,
                node_name=instance.node_name,
                pool=msgspec.structs.replace(spec.pool, name=f"{instance.node_name}/{spec.pool.name}", generation=1),
            ),
        )
        for number, spec in enumerate(instance.devices)
    ]


def _ready_condition(*, ready: bool, now: datetime) -> Condition:
    return Condition(
        type=_READY,
        status=states.TRUE if ready else states.FALSE,
        reason="KubeletReady" if ready else "KubeletNotReady",
        message="simulated instance is running" if ready else "simulated instance is not running properly",
        last_transition_time=now,
    )


def is_simulated_node(node: Node) -> bool:
    """Whether the Node was registered by an instance of ours, and not by another tool that fakes nodes."""
    return node.metadata.annotations.get(INSTANCE_LABEL) == "true"


def is_kept_ready(node: Node) -> bool:
    """Whether a running instance keeps the Node ready; else its status is for tests to write."""
    return not _is_left_alone(node.metadata.labels)


def _is_left_alone(node_labels: Mapping[str, str]) -> bool:
    return node_labels.get(KWOK_STAGE_LABEL) == UNHEALTHY


def node_status_patch(instance: SimulatedInstance, node: Node, *, ready: bool, now: datetime) -> JsonObject | None:
    """Patch of the Node's status; None if there is nothing to change. Conditions of others stay."""
    if _ready_status(node) == (states.TRUE if ready else states.FALSE) and node.status.capacity:
        return None
    others = [condition for condition in node.status.conditions if condition.type != _READY]
    return {
        "status": {
            "capacity": dict(instance.capacity),
            "allocatable": dict(instance.allocatable),
            "conditions": _wire((*others, _ready_condition(ready=ready, now=now))),
        }
    }


def _ready_status(node: Node) -> str:
    condition = states.find_condition(node.status.conditions, _READY)
    return condition.status if condition else ""


def remove_not_ready_taint_patch(node: Node) -> JsonObject | None:
    """Patch that takes off the taints a new Node gets for not being ready; None if it has none."""
    kept = [taint for taint in node.spec.taints if taint.key != labels.NOT_READY_TAINT]
    if len(kept) == len(node.spec.taints):
        return None
    return {"spec": {"taints": cast(Json, msgspec.to_builtins(kept))}}


def has_ended(pod: Pod) -> bool:
    """Whether the pod's containers have stopped for good."""
    return pod.status.phase in _ENDED_PHASES


def start_due(pod: Pod, start: timedelta, now: datetime) -> datetime:
    """When a bound pod is up: ``start``, or its own delay, after it was bound."""
    bound = states.find_condition(pod.status.conditions, "PodScheduled")
    since = bound.last_transition_time if bound else None
    delay = _delay(pod, START_DELAY_ANNOTATION)
    return since + (start if delay is None else delay) if since else now


def stop_due(pod: Pod, stop: timedelta, now: datetime) -> datetime:
    """When a pod that is being deleted has stopped: after ``stop``, at most its grace period, or after its own delay."""
    deadline = pod.metadata.deletion_timestamp or now
    grace = timedelta(seconds=pod.metadata.deletion_grace_period_seconds or 0)
    if has_ended(pod):
        return deadline
    delay = _delay(pod, STOP_DELAY_ANNOTATION)
    return deadline - grace + (min(stop, grace) if delay is None else delay)


def _delay(pod: Pod, annotation: str) -> timedelta | None:
    """The delay an annotation asks for; None without one, or for text that is no duration."""
    try:
        return parse_duration(pod.metadata.annotations.get(annotation, ""))
    except ValueError:
        return None


def success_due(pod: Pod) -> datetime | None:
    """When the pod succeeds; None for one that runs until it is deleted."""
    text = pod.metadata.annotations.get(RUN_SECONDS_ANNOTATION, "")
    if pod.status.start_time is None or not (text.isascii() and text.isdigit()):
        return None
    return pod.status.start_time + timedelta(seconds=int(text))


def running_patch(pod: Pod, now: datetime) -> JsonObject:
    """Status of a pod that is up: ready, or in phase Unknown and not ready where its label says so (OPS-261)."""
    healthy = pod.metadata.labels.get(KWOK_STAGE_LABEL) != UNHEALTHY
    phase = "Running" if healthy else "Unknown"
    return _pod_patch(pod, now, phase=phase, ready=healthy, state={"running": {"startedAt": timestamp(now)}})


def succeeded_patch(pod: Pod, now: datetime) -> JsonObject:
    """Status of a pod whose containers ended well."""
    ended: JsonObject = {"exitCode": 0, "reason": "Completed", "finishedAt": timestamp(now)}
    return _pod_patch(pod, now, phase="Succeeded", ready=False, state={"terminated": ended})


def _pod_patch(pod: Pod, now: datetime, *, phase: str, ready: bool, state: JsonObject) -> JsonObject:
    started = pod.status.start_time or now
    kinds = {"Initialized": True, _READY: ready, "ContainersReady": ready}
    kept = [condition for condition in pod.status.conditions if condition.type not in kinds]
    fresh = [
        Condition(
            type=kind,
            status=states.TRUE if holds else states.FALSE,
            reason="" if holds else "PodCompleted" if "terminated" in state else "ContainersNotReady",
            last_transition_time=now,
        )
        for kind, holds in kinds.items()
    ]
    containers: list[Json] = [
        {
            "name": container.name,
            "image": "",
            "imageID": "",
            "ready": ready,
            "started": ready,
            "restartCount": 0,
            "state": state,
        }
        for container in pod.spec.containers
    ]
    return {
        "status": {
            "phase": phase,
            "startTime": timestamp(started),
            "conditions": _wire((*kept, *fresh)),
            "containerStatuses": containers,
        }
    }


def _wire(conditions: Iterable[Condition]) -> list[Json]:
    return [cast(Json, msgspec.to_builtins(condition)) for condition in conditions]


def timestamp(now: datetime) -> str:
    """A time as Kubernetes writes it: UTC, whole seconds."""
    return f"{now:%Y-%m-%dT%H:%M:%SZ}"
