"""Splits a move of several nodes into parts that do not depend on each other.

A command is carried out as a whole or not at all: if one replacement fails, all are given back. So nodes share a command only if
their pods share a replacement, directly or through other nodes. A part keeps the plan of the whole, with the instance types that
are cheaper than the nodes of the part. Where a part is not worth it by itself, the move is planned anew without its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from karpenter.api.core import Pod
from karpenter.disruption.decide.command import Candidate, Command
from karpenter.disruption.decide.move_evaluation import MoveEvaluator, whole_move
from karpenter.model.connected_groups import connected_groups


def split_into_parts(command: Command, evaluator: MoveEvaluator) -> tuple[Command, ...]:
    """The parts of a move, each worth it by itself; the whole move if it has one part, or if no part is."""
    move: Command | None = command
    while move is not None:
        pods_by_key = {candidate.key: evaluator.simulation.pods_to_place((candidate,)) for candidate in move.candidates}
        groups = connected_candidates(move, pods_by_key)
        if len(groups) == 1:
            return (move,)
        results = [whole_move(result) for result in evaluator.replace_in_parts(move.candidates, groups)]
        parts = tuple(part for part in results if part is not None)
        if len(parts) == len(groups):
            return parts
        remaining = [candidate for part in parts for candidate in part.candidates]
        move = whole_move(evaluator.replace(remaining)) if remaining else None
    return (command,)


def connected_candidates(
    command: Command, pods_by_key: Mapping[str, Iterable[Pod]] | None = None
) -> list[tuple[Candidate, ...]]:
    """The candidates of a move, those together whose pods share replacements; in the order of the command.

    ``pods_by_key``: the pods that leave each candidate, by default its reschedulable pods.
    """
    leaving = pods_by_key or {candidate.key: candidate.reschedulable_pods for candidate in command.candidates}
    key_by_uid = {pod.metadata.uid: key for key, pods in leaving.items() for pod in pods}
    sharing = (
        (key_by_uid[pod.metadata.uid], number)
        for number, replacement in enumerate(command.replacements)
        for pod in replacement.pods
        if pod.metadata.uid in key_by_uid
    )
    by_key = {candidate.key: candidate for candidate in command.candidates}
    return [tuple(by_key[key] for key in group) for group in connected_groups([*by_key], sharing)]
