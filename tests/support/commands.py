"""Disruption commands as tests write them: nodes by name, replacements by name, without a decision behind them."""

from __future__ import annotations

from collections.abc import Sequence

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodeClaim, NodeClaimResourceRequests, NodeClaimSpec
from karpenter.api.meta import ObjectMeta
from karpenter.disruption.decide.command import Candidate, Command, ConsolidationType, DisruptionReason
from karpenter.model import labels, pods
from karpenter.model import resources as res
from karpenter.scheduling.solution import NewNodeClaim
from support.builders import ANY_CAPACITY, NODE_CLASS
from support.fake_cloud import TYPES
from support.virtual_cluster import VirtualCluster


def replacement(name: str, pool: str = "np", meant: Sequence[Pod] = ()) -> NewNodeClaim:
    """A claim to be launched under this name, for these pods."""
    claim = NodeClaim(
        metadata=ObjectMeta(name=name, labels={labels.NODE_POOL: pool}, finalizers=(labels.TERMINATION_FINALIZER,)),
        spec=NodeClaimSpec(
            requirements=(ANY_CAPACITY,),
            node_class_ref=NODE_CLASS,
            resources=NodeClaimResourceRequests(
                requests=res.resources_to_wire(res.add(*(pods.pod_requests(pod) for pod in meant)))
            ),
        ),
    )
    kept = TYPES[0]
    return NewNodeClaim(claim, pool, (kept.name,), kept.offerings[0], tuple(meant))


def candidate(cluster: VirtualCluster, name: str) -> Candidate:
    """The node of a claim, as the running controller sees it now."""
    assert cluster.manager is not None
    view = next(view for view in cluster.manager.state.state_nodes() if view.key == name)
    moving = tuple(pod for pod in view.pods if pods.is_reschedulable(pod))
    return Candidate(view, view.pool, moving, None, 1.0 + len(moving))


def command(
    cluster: VirtualCluster,
    *names: str,
    reason: DisruptionReason = DisruptionReason.DRIFTED,
    launched: Sequence[str] = (),
    kind: ConsolidationType = ConsolidationType.NONE,
) -> Command:
    """These nodes go; their pods are meant for the first of what is launched."""
    candidates = tuple(candidate(cluster, name) for name in names)
    moving = [pod for candidate in candidates for pod in candidate.reschedulable_pods]
    replacements = tuple(replacement(name, meant=moving if not number else ()) for number, name in enumerate(launched))
    return Command(reason, candidates, replacements, consolidation_type=kind)


async def carry_out(cluster: VirtualCluster, *commands: Command) -> bool:
    """Have the running controller begin commands; whether any could be begun."""
    assert cluster.manager is not None
    return await cluster.manager.disruption.start_commands(commands)
