"""Console views of small clusters of known types (``disruption_cases``)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from karpenter.api.core import Event, EventSource, Node, Pod
from karpenter.api.meta import ObjectMeta, ObjectReference
from karpenter.console.console_input import ConsoleInput
from karpenter.console.console_view import ConsoleView
from karpenter.console.node_rows import NodeRow
from support.builders import NOW, flatten, indexes, snapshot
from support.disruption_cases import KINDS


@dataclass
class StagedSource:
    """The cluster of a console as a test sets it."""

    given: ConsoleInput | None
    title: str = "a cluster"
    said_fault: str = ""
    #: How often it was taken.
    takings: int = 0

    def current(self) -> ConsoleInput | None:
        self.takings += 1
        return self.given

    def fault(self) -> str:
        return self.said_fault

    async def run(self) -> None:
        await asyncio.Event().wait()


def console_input(*objects: object, events: Sequence[Event] = (), now: datetime = NOW) -> ConsoleInput:
    """The cluster of these objects (lists and tuples are flattened)."""
    wires = flatten(objects)
    all_pods = [wire for wire in wires if isinstance(wire, Pod)]
    nodes = [wire for wire in wires if isinstance(wire, Node)]
    return ConsoleInput(snapshot(wires), now, all_pods, nodes, events, indexes(wires, KINDS))


def view_of(*objects: object, events: Sequence[Event] = (), now: datetime = NOW) -> ConsoleView:
    """Its view."""
    return ConsoleView(console_input(*objects, events=events, now=now))


def row_of(name: str, view: ConsoleView) -> NodeRow:
    """The row of a node or NodeClaim."""
    return next(row for row in view.nodes if name in (row.name, row.key))


def event(reason: str, kind: str, name: str, message: str = "", at: datetime = NOW, **fields: str) -> Event:
    """An event of the controller about an object."""
    return Event(
        metadata=ObjectMeta(name=f"{name}.{reason}".lower(), namespace="default"),
        involved_object=ObjectReference(kind=kind, name=name, namespace=fields.get("namespace", "")),
        reason=reason,
        message=message,
        type="Normal",
        source=EventSource(component="karpenter"),
        last_timestamp=at,
        count=1,
    )
