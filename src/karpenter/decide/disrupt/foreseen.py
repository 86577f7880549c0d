"""The snapshot as it will be once commands that are settled but not begun yet are carried out.

Between choosing and acting lies a wait, and other decisions are made meanwhile. They are made on this picture: the chosen
machines are on their way out, so that budgets count them and nobody plans on them; what is to be bought in their place is on
its way, so that nobody buys it twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from karpenter.cluster.nodes import NO_USAGE, view
from karpenter.cluster.snapshot import Snapshot
from karpenter.decide.disrupt.command import Command


def foreseen(snapshot: Snapshot, commands: Iterable[Command]) -> Snapshot:
    """The snapshot with these commands begun; the same where there are none."""
    settled = tuple(commands)
    if not settled:
        return snapshot
    going = {candidate.key for command in settled for candidate in command.candidates}
    bought = [planned for command in settled for planned in command.replacements]
    known = {item.key for item in snapshot.nodes}
    nodes = [replace(item, leaving=True) if item.key in going else item for item in snapshot.nodes]
    nodes += [view(None, item.claim, NO_USAGE, marked=False) for item in bought if item.name not in known]
    planned = dict(snapshot.planned)
    planned.update((pod.metadata.uid, item.name) for item in bought for pod in item.pods)
    planned.update(
        (pod.metadata.uid, placed.key) for command in settled for placed in command.placed for pod in placed.pods
    )
    nodes.sort(key=lambda item: (item.name, item.provider_id))
    return replace(snapshot, nodes=tuple(nodes), planned=planned)
