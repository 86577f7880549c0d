"""The heartbeats in a Node of a file, by which the age of a snapshot is told.

The Node that the controllers read has none: kubelets change them all the time, and nothing is decided by them.
"""

from __future__ import annotations

from datetime import datetime

import msgspec


class _Condition(msgspec.Struct, frozen=True, rename="camel"):
    last_heartbeat_time: datetime | None = None


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[_Condition, ...] = ()


class _Node(msgspec.Struct, frozen=True):
    status: _Status = _Status()


_DECODER = msgspec.json.Decoder(_Node)


def node_heartbeats(data: bytes | msgspec.Raw) -> list[datetime]:
    """When the kubelet of a Node reported last, by condition, from its JSON; none where that cannot be read."""
    try:
        conditions = _DECODER.decode(data).status.conditions
    except msgspec.ValidationError:
        return []
    moments = (condition.last_heartbeat_time for condition in conditions)
    return [moment for moment in moments if moment is not None and moment.tzinfo is not None]
