"""Splits a move of several nodes into parts that do not depend on each other.

A command is carried out as a whole or not at all: if one replacement fails, all are given back. So nodes share a command only if
their pods share a replacement, directly or through other nodes. Each part is evaluated again by itself: a replacement of the
whole may be dearer than the nodes of its part, as long as another part saves enough. A part that is not worth it is left out.
"""

from __future__ import annotations

from karpenter.disruption.decide.command import Candidate, Command
from karpenter.disruption.decide.move_evaluation import MoveEvaluator


def split_into_parts(command: Command, evaluator: MoveEvaluator) -> tuple[Command, ...]:
    """The parts of a move that are worth it by themselves; the whole move if it has one part, or if none is."""
    groups = connected_candidates(command)
    # Pods of one part must not be placed on a node that another part removes.
    evaluator = evaluator.with_closed_nodes(candidate.key for candidate in command.candidates)
    parts: list[Command] = []
    for group in groups if len(groups) > 1 else ():
        part = evaluator.replace(group)
        if isinstance(part, Command):
            parts.append(part)
            evaluator = evaluator.after(part)
    return tuple(parts) or (command,)


def connected_candidates(command: Command) -> list[tuple[Candidate, ...]]:
    """The candidates of a move, those together whose pods share replacements; in the order of the command."""
    key_by_uid = {
        pod.metadata.uid: candidate.key for candidate in command.candidates for pod in candidate.reschedulable_pods
    }
    groups: list[set[str]] = [{candidate.key} for candidate in command.candidates]
    for replacement in command.replacements:
        sharing = {key_by_uid[pod.metadata.uid] for pod in replacement.pods if pod.metadata.uid in key_by_uid}
        merged = set[str]().union(*(group for group in groups if group & sharing))
        groups = [group for group in groups if not group & sharing] + ([merged] if merged else [])
    members = (tuple(candidate for candidate in command.candidates if candidate.key in group) for group in groups)
    position = {candidate.key: number for number, candidate in enumerate(command.candidates)}
    return sorted(members, key=lambda group: position[group[0].key])
