"""What the process knows and plans now, for whoever asks why nothing happens (OPS-372)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from karpenter.act.journal import Entry
from karpenter.act.undertaking import simple_text
from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.cluster import ClusterState
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Snapshot
from karpenter.decide.disrupt.command import Command
from karpenter.decide.explain.messages import pod_message
from karpenter.decide.plan import Plan
from karpenter.model import conditions
from karpenter.model import resources as res
from karpenter.model.clock import rfc3339

Json = dict[str, object]


@dataclass(frozen=True)
class Scene:
    """What a picture is taken of. ``unsynced`` says which watches bring no news, empty when all do.

    ``decisions`` are the latest about disruption, ``chosen`` what waits for its second look.
    """

    state: ClusterState
    last_plan: Plan
    is_leader: bool
    unsynced: str
    decisions: tuple[Entry, ...] = ()
    chosen: tuple[Command, ...] = ()


def picture(scene: Scene, now: datetime) -> Json:
    """Everything as JSON values. Pods are named, never shown: what they are made of may be secret."""
    snapshot = scene.state.snapshot()
    return {
        "time": rfc3339(now),
        "leader": scene.is_leader,
        "unsynced": scene.unsynced,
        "nodePools": [_pool(pool) for pool in snapshot.pools],
        "machines": [_machine(view, scene.state, now) for view in snapshot.nodes],
        "pendingPods": _pending(snapshot, scene.last_plan),
        "chosenToGo": [_chosen(command) for command in scene.chosen],
        "disruptions": [_decision(entry) for entry in reversed(scene.decisions)],
    }


def _chosen(command: Command) -> Json:
    return {
        "command": simple_text(command),
        "reason": command.reason.value,
        "savingPerHour": command.saving_per_hour,
        "pods": command.restarts,
    }


def _decision(entry: Entry) -> Json:
    """A decision, and what came of it."""
    return {
        "id": entry.identity,
        "time": rfc3339(entry.at),
        "reason": entry.reason,
        "decision": entry.decision,
        "consolidationType": entry.consolidation_type,
        "nodePools": list(entry.pools),
        "machines": [{"node": node, "nodeClaim": claim} for node, claim in entry.machines],
        "replacements": list(entry.replacements),
        "pods": entry.pods,
        "savingPerHour": entry.saving_per_hour,
        "outcome": entry.outcome.value,
        "cause": entry.cause,
        "ended": rfc3339(entry.ended_at) if entry.ended_at is not None else "",
    }


def _pool(pool: NodePool) -> Json:
    known = pool.status.conditions
    ready = conditions.find(known, "Ready")
    why = ready.message if ready is not None else ""
    return {"name": pool.metadata.name, "ready": conditions.status(known, "Ready"), "why": why}


def _machine(view: NodeView, state: ClusterState, now: datetime) -> Json:
    return {
        "name": view.name,
        "node": view.node.metadata.name if view.node is not None else "",
        "nodeClaim": view.claim.metadata.name if view.claim is not None else "",
        "nodePool": view.pool,
        "providerID": view.provider_id,
        "stage": _stage(view),
        "ready": view.ready,
        "leaving": view.leaving,
        "nominated": state.is_nominated(view.key, now),
        "pods": len(view.pods),
        "requested": res.to_wire(view.requested),
        "allocatable": res.to_wire(view.allocatable),
    }


def _stage(view: NodeView) -> str:
    if view.initialized:
        return "initialized"
    if view.registered:
        return "registered"
    return "launched" if view.launched else "wanted"


def _pending(snapshot: Snapshot, plan: Plan) -> list[Json]:
    why = {unplaced.pod.metadata.uid: pod_message(unplaced.reasons) for unplaced in plan.unplaced}
    waiting = [pod for group in snapshot.groups for pod in group.pods]
    return [_waiting(pod, snapshot.planned, why) for pod in waiting]


def _waiting(pod: Pod, planned: Mapping[str, str], why: Mapping[str, str]) -> Json:
    meta = pod.metadata
    return {
        "name": f"{meta.namespace}/{meta.name}",
        "plannedOn": planned.get(meta.uid, ""),
        "nominatedNode": pod.status.nominated_node_name,
        "why": why.get(meta.uid, ""),
    }
