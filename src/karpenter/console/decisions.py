"""What was decided: launches, disruptions and interruptions, from events and NodeClaims that any Karpenter writes.

The API server keeps events for an hour unless it is configured otherwise, so older decisions are not shown.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from karpenter.api.core import Event
from karpenter.api.karpenter import NodeClaim
from karpenter.console.console_input import ConsoleInput
from karpenter.console.decision_rows import DecisionKind, DecisionRow, RecordedDecisions
from karpenter.console.node_rows import NodeRow
from karpenter.model import labels
from karpenter.model.texts import count_text

#: Reasons of the events that announce or report the loss of an instance.
INTERRUPTION_REASONS = frozenset(
    {
        "SpotInterrupted",
        "SpotRebalanceRecommendation",
        "CapacityReservationInstanceInterrupted",
        "InstanceStopping",
        "InstanceTerminating",
        "InstanceUnhealthy",
        "InstanceEnded",
    }
)
_FAILURES = frozenset({"InsufficientCapacityError", "NodeClassNotReady", "QuotaExceeded"})
_AMOUNT = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_NODE_KINDS = frozenset({"Node", "NodeClaim"})
_KARPENTER_KINDS = _NODE_KINDS | {"NodePool", "EC2NodeClass", "KWOKNodeClass", "NodeOverlay", "CapacityBuffer"}


@dataclass(frozen=True)
class EventRow:
    """An event about nodes, NodePools or pods that wait."""

    at: datetime
    type: str
    reason: str
    kind: str
    name: str
    message: str
    count: int


def event_rows(events: Iterable[Event]) -> tuple[EventRow, ...]:
    """The events that concern node autoscaling, the latest first."""
    rows = (_event_row(event, at) for event in events if (at := _time(event)) is not None and _concerns_nodes(event))
    return tuple(sorted(rows, key=lambda row: (-row.at.timestamp(), row.kind, row.name, row.reason)))


def _concerns_nodes(event: Event) -> bool:
    return event.source.component == "karpenter" or event.involved_object.kind in _KARPENTER_KINDS


def _event_row(event: Event, at: datetime) -> EventRow:
    about = event.involved_object
    name = f"{about.namespace}/{about.name}" if about.namespace and about.kind == "Pod" else about.name
    return EventRow(at, event.type, event.reason, about.kind, name, event.message, event.count)


def _time(event: Event) -> datetime | None:
    return event.last_timestamp or event.first_timestamp or event.metadata.creation_timestamp


def decisions(given: ConsoleInput, nodes: Sequence[NodeRow]) -> tuple[DecisionRow, ...]:
    """All decisions known, the latest first."""
    claims = [view.claim for view in given.snapshot.nodes if view.claim is not None]
    seen = [*_launches(claims, nodes), *_disruptions(given.events, _replacements(claims)), *_incidents(given.events)]
    rows = seen if given.recorded is None else [*given.recorded.rows, *_unrecorded(seen, given.recorded)]
    return tuple(sorted(rows, key=lambda row: (-row.at.timestamp(), row.kind, row.nodes)))


def _unrecorded(rows: Iterable[DecisionRow], recorded: RecordedDecisions) -> Iterator[DecisionRow]:
    """Failed launches, which no history has, and what is about other nodes than the recorded decisions."""
    for row in rows:
        if row.kind is DecisionKind.FAILURE or not recorded.names.issuperset(row.nodes):
            yield row


def _launches(claims: Iterable[NodeClaim], nodes: Sequence[NodeRow]) -> Iterator[DecisionRow]:
    """NodeClaims of a NodePool that were created in the same second."""
    types = {row.key: row.instance_type for row in nodes}
    groups: defaultdict[tuple[datetime, str], list[NodeClaim]] = defaultdict(list)
    for claim in claims:
        if claim.metadata.creation_timestamp is not None:
            groups[(claim.metadata.creation_timestamp, claim.metadata.labels.get(labels.NODE_POOL, ""))].append(claim)
    for (at, pool), group in groups.items():
        names = tuple(sorted(claim.metadata.name for claim in group))
        counts = Counter(types.get(name) or "launching" for name in names)
        type_counts = ", ".join(
            f"{count} x {name}" if len(counts) > 1 else name for name, count in counts.most_common()
        )
        yield DecisionRow(
            at,
            DecisionKind.LAUNCH,
            pool,
            names,
            f"+{count_text(len(names), 'node')} ({type_counts})",
            tuple(_replaced(group)),
        )


def _replaced(group: Iterable[NodeClaim]) -> list[str]:
    said = (claim.metadata.annotations.get(labels.DISRUPTION_REPLACES, "") for claim in group)
    return sorted({name.strip() for text in said for name in text.split(",") if name.strip()})


def _replacements(claims: Iterable[NodeClaim]) -> Mapping[str, Sequence[str]]:
    """By name of a NodeClaim, those that were launched in its place."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for claim in claims:
        for name in _replaced((claim,)):
            found[name].append(claim.metadata.name)
    return found


def _disruptions(events: Sequence[Event], replacements: Mapping[str, Sequence[str]]) -> Iterator[DecisionRow]:
    """Nodes whose disruption reached their deletion in the same second, by reason (DIS-394)."""
    savings = dict(_announced_savings(events))
    groups: defaultdict[tuple[datetime, str], set[str]] = defaultdict(set)
    for event in events:
        at = _time(event)
        if event.reason == "DisruptionTerminating" and event.involved_object.kind == "NodeClaim" and at is not None:
            reason = event.message.rpartition(": ")[2].partition("/")[0].strip() or event.reason
            groups[(at, reason)].add(event.involved_object.name)
    for (at, reason), names in groups.items():
        text = f"-{count_text(len(names), 'node')} ({reason.lower()})"
        saved = {savings[name] for name in names if name in savings}
        # Every node of a command announces the saving of the whole command.
        saving = sum(saving for _, saving in saved) if saved else None
        successors = tuple(sorted({successor for name in names for successor in replacements.get(name, ())}))
        yield DecisionRow(
            at,
            DecisionKind.DISRUPTION,
            reason,
            tuple(sorted(names)),
            text,
            saving_per_hour=saving,
            replaced_by=successors,
        )


def _announced_savings(events: Iterable[Event]) -> Iterator[tuple[str, tuple[str, float]]]:
    """By name of a NodeClaim, the command that would replace it and its saving in USD per hour (DIS-395)."""
    for event in events:
        if event.reason == "ConsolidationCandidate" and event.involved_object.kind == "NodeClaim":
            command, _, amount = event.message.rpartition(", savings: $")
            if _AMOUNT.fullmatch(amount):
                yield event.involved_object.name, (command, float(amount))


def _incidents(events: Iterable[Event]) -> Iterator[DecisionRow]:
    """Interruptions and failed launches: what was decided outside."""
    for event in events:
        at = _time(event)
        if at is None or event.involved_object.kind != "NodeClaim":
            continue
        if event.reason in INTERRUPTION_REASONS:
            yield DecisionRow(at, DecisionKind.INTERRUPTION, event.reason, (event.involved_object.name,), event.message)
        elif event.reason in _FAILURES:
            yield DecisionRow(at, DecisionKind.FAILURE, event.reason, (event.involved_object.name,), event.message)
