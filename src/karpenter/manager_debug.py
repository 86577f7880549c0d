"""The cluster state and the current plan as JSON, served at ``/debug/state`` (OPS-372)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.disruption.decide.command import Command
from karpenter.disruption.decision_journal import JournalEntry
from karpenter.disruption.queued_command import command_summary
from karpenter.model import conditions
from karpenter.model import resources as res
from karpenter.model.clock import rfc3339
from karpenter.scheduling.explain.reason_messages import unschedulable_message
from karpenter.scheduling.solution import Solution
from karpenter.state import ClusterState
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode

Json = dict[str, object]


@dataclass(frozen=True)
class DebugSources:
    """What is shown. ``unsynced`` says which watches bring no events, empty when all do.

    ``disruptions`` are the latest decisions about disruption, ``awaiting_validation`` the commands that wait for validation.
    """

    state: ClusterState
    last_plan: Solution
    is_leader: bool
    unsynced: str
    disruptions: tuple[JournalEntry, ...] = ()
    awaiting_validation: tuple[Command, ...] = ()


def debug_state(sources: DebugSources, now: datetime) -> Json:
    """Everything as JSON values. Pods are named, never shown: their specs may be secret."""
    snapshot = sources.state.snapshot()
    return {
        "time": rfc3339(now),
        "leader": sources.is_leader,
        "unsynced": sources.unsynced,
        "nodePools": [_pool_fields(pool) for pool in snapshot.pools],
        "nodes": [_node_fields(view, sources.state, now) for view in snapshot.nodes],
        "pendingPods": _pending_pods(snapshot, sources.last_plan),
        "awaitingValidation": [_command_fields(command) for command in sources.awaiting_validation],
        "disruptions": [_disruption_fields(entry) for entry in reversed(sources.disruptions)],
    }


def _command_fields(command: Command) -> Json:
    return {
        "command": command_summary(command),
        "reason": command.reason.value,
        "savingPerHour": command.saving_per_hour,
        "pods": command.pod_restarts,
    }


def _disruption_fields(entry: JournalEntry) -> Json:
    """A decision, and what came of it."""
    return {
        "id": entry.command_id,
        "time": rfc3339(entry.decided_at),
        "reason": entry.reason,
        "decision": entry.decision,
        "consolidationType": entry.consolidation_type,
        "nodePools": list(entry.pools),
        "nodes": [{"node": node, "nodeClaim": claim} for node, claim in entry.nodes],
        "replacements": list(entry.replacements),
        "pods": entry.pods,
        "savingPerHour": entry.saving_per_hour,
        "outcome": entry.outcome.value,
        "cause": entry.cause,
        "ended": rfc3339(entry.ended_at) if entry.ended_at is not None else "",
    }


def _pool_fields(pool: NodePool) -> Json:
    ready = conditions.find_condition(pool.status.conditions, "Ready")
    why = ready.message if ready is not None else ""
    return {
        "name": pool.metadata.name,
        "ready": conditions.condition_status(pool.status.conditions, "Ready"),
        "why": why,
    }


def _node_fields(view: StateNode, state: ClusterState, now: datetime) -> Json:
    return {
        "name": view.name,
        "node": view.node.metadata.name if view.node is not None else "",
        "nodeClaim": view.claim.metadata.name if view.claim is not None else "",
        "nodePool": view.pool,
        "providerID": view.provider_id,
        "stage": _stage(view),
        "ready": view.ready,
        "leaving": view.marked_for_deletion,
        "nominated": state.is_nominated(view.key, now),
        "pods": len(view.pods),
        "requested": res.resources_to_wire(view.pod_requests),
        "allocatable": res.resources_to_wire(view.allocatable),
    }


def _stage(view: StateNode) -> str:
    if view.initialized:
        return "initialized"
    if view.registered:
        return "registered"
    return "launched" if view.launched else "created"


def _pending_pods(snapshot: ClusterSnapshot, plan: Solution) -> list[Json]:
    why = {unplaced.pod.metadata.uid: unschedulable_message(unplaced.reasons) for unplaced in plan.unschedulable}
    waiting = [pod for group in snapshot.pod_groups for pod in group.pods]
    return [_pending_pod_fields(pod, snapshot.planned_nodes, why) for pod in waiting]


def _pending_pod_fields(pod: Pod, planned: Mapping[str, str], messages: Mapping[str, str]) -> Json:
    meta = pod.metadata
    return {
        "name": f"{meta.namespace}/{meta.name}",
        "plannedOn": planned.get(meta.uid, ""),
        "nominatedNode": pod.status.nominated_node_name,
        "why": messages.get(meta.uid, ""),
    }
