"""Telling users what is about to happen to machines, and why others stay (DIS §19)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from karpenter.act import protection
from karpenter.act.events import NORMAL, About, Happening, about_claim, about_node, about_pool
from karpenter.act.undertaking import part_text, simple_text
from karpenter.act.world import World
from karpenter.cluster.nodes import NodeView
from karpenter.decide.disrupt import Blocked
from karpenter.decide.disrupt.command import Command, Decision, DisruptionReason, Score
from karpenter.decide.disrupt.confirming import Refusal
from karpenter.model import labels

#: How long a passing and a lasting obstacle is not said again (DIS-390, DIS-398), and a closed budget (DIS-391).
_PASSING, _LASTING, _CLOSED = timedelta(minutes=2), timedelta(minutes=15), timedelta(minutes=1)


def say_blocked(world: World, blocked: Iterable[Blocked]) -> None:
    """Machines that would go but may not. Those that are still starting have nothing to tell."""
    for item in blocked:
        if item.view.initialized:
            reason, silence = ("Unconsolidatable", _LASTING) if item.lasting else ("DisruptionBlocked", _PASSING)
            for about in subjects(item.view):
                world.events.publish(Happening(about, NORMAL, reason, item.why, (item.why,), silence))


def say_protections(world: World, views: Iterable[NodeView]) -> None:
    """What their owners' annotations do for pods on machines of ours (DIS-092 to DIS-094)."""
    for view in views:
        for pod in view.pods if view.managed else ():
            if labels.DO_NOT_DISRUPT in pod.metadata.annotations:
                protection.tell(world, pod)


def say_closed(world: World, reason: DisruptionReason, pools: Mapping[str, str]) -> None:
    """Pools whose budgets allow nothing at all for a reason, each with the field that says so (DIS-149)."""
    for name, source in pools.items():
        pool = world.state.pool(name)
        if pool is not None:
            text = f"No allowed disruptions for disruption reason {reason} due to blocking budget ({source})"
            about = about_pool(pool.metadata)
            world.events.publish(Happening(about, NORMAL, "DisruptionBlocked", text, (reason.value,), _CLOSED))


def say_considered(world: World, command: Command) -> None:
    """A consolidation waits for its second look (DIS-395, its Beyond: once per command, not for every set that was tried)."""
    if command.decision is Decision.REPLACE:
        text, values = simple_text(command), (simple_text(command),)
        _say_to_all(
            world, command, "ConsolidationCandidate", f"{text}, savings: ${command.saving_per_hour or 0:.2f}", values
        )


def say_approved(world: World, command: Command) -> None:
    """What Balanced pools think of it (DIS-260, DIS-264): of one machine on that machine, of several on the pools."""
    for score in command.scores:
        pool = world.state.pool(score.pool)
        if not score.strict or not score.approved or pool is None:
            continue
        is_single = len(command.candidates) == 1
        about = subjects(command.candidates[0].view) if is_single else [about_pool(pool.metadata)]
        world.events.publish(*(Happening(item, NORMAL, "ConsolidationApproved", _weighed(score)) for item in about))


def _weighed(score: Score) -> str:
    """DIS-261"""
    return (
        f"Consolidation approved: score {score.score:.2f}, threshold {score.threshold:.2f}, k: {1 / score.threshold:g}, "
        f"savings {100 * score.saving_fraction:.1f}%, disruption {100 * score.disruption_fraction:.1f}%"
    )


def say_refused(world: World, command: Command, refusal: Refusal) -> None:
    """It did not stand the second look (DIS-396)."""
    for candidate in command.candidates:
        text = part_text(command, candidate)
        message = f"{text}, rejected: {refusal}, savings: ${command.saving_per_hour or 0:.2f}"
        for about in subjects(candidate.view):
            world.events.publish(Happening(about, NORMAL, "ConsolidationRejected", message, (text, refusal.value)))


def _say_to_all(world: World, command: Command, reason: str, message: str, values: tuple[str, ...]) -> None:
    for candidate in command.candidates:
        for about in subjects(candidate.view):
            world.events.publish(Happening(about, NORMAL, reason, message, values))


def subjects(view: NodeView) -> list[About]:
    """The objects behind a machine: its NodeClaim, its Node, whichever there are."""
    found = [about_claim(view.claim.metadata)] if view.claim is not None else []
    if view.node is not None:
        found.append(about_node(view.node.metadata))
    return found
