"""Status conditions as series and events: what every condition is now, and when one turns (OPS §5.7, OPS-530, OPS-531).

The series are named after the kind and carry no ``karpenter_`` prefix. Those of all kinds but Node exist a second time under
names without the kind, which documented alerts still use; the kind is a label there (OPS-486).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial

from prometheus_client import Counter, Histogram

from karpenter.act.events import NORMAL, About, AnyKind, Happening
from karpenter.act.world import World
from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import NODE, NODE_CLAIM, NODE_POOL
from karpenter.api.meta import Condition
from karpenter.control.observability.parts import Conditioned, Part, Picture
from karpenter.model import conditions, labels
from karpenter.telemetry.exposition import Family, Writing, pairs
from karpenter.telemetry.metrics import STANDARD_BUCKETS_SECONDS, Metrics, growing

#: How long a condition kept its status before it turned, in seconds (OPS-483).
_TURNING_BUCKETS_SECONDS = growing(0.5, 2.0, 15)
#: Conditions of which every object of a kind has one.
_EXPECTED = {NODE_CLAIM.name: conditions.NODE_CLAIM.all, NODE_POOL.name: conditions.NODE_POOL.all}
_COUNT = "One per condition; the value is 1."
_CURRENT = "How long a condition has had its status."
_TURNS = "Conditions that turned, by what they turned to."
_TURNING = "How long a condition had the status it lost."
_ENDING = "How long an object that is being deleted has been so."
_ENDED = "From an object's deletion to its being gone."


def sanitised(key: str) -> str:
    """A label key as a label name in series (OPS-485)."""
    return key.replace("/", "_").replace(".", "_").replace("-", "_")


class _Counted:
    """The counted series of one kind, or of all those without the kind in their names. ``own`` are further labels."""

    def __init__(self, metrics: Metrics, prefix: str, own: tuple[str, ...], buckets: tuple[float, ...]) -> None:
        registry = metrics.registry
        condition = f"{prefix}_status_condition"
        self.turns = Counter(
            f"{condition}_transitions_total", _TURNS, (*own, "type", "status", "reason"), registry=registry
        )
        self.turning = Histogram(
            f"{condition}_transition_seconds", _TURNING, (*own, "type", "status"), buckets=buckets, registry=registry
        )
        self.ended = Histogram(
            f"{prefix}_termination_duration_seconds", _ENDED, own, buckets=buckets, registry=registry
        )


@dataclass(frozen=True)
class _Gauges:
    """The families that are worked out, under one prefix."""

    count: Family
    current: Family
    ending: Family


def _gauges(prefix: str) -> _Gauges:
    condition = f"{prefix}_status_condition"
    return _Gauges(
        Family(f"{condition}_count", _COUNT),
        Family(f"{condition}_current_status_seconds", _CURRENT),
        Family(f"{prefix}_termination_current_time_seconds", _ENDING),
    )


class _OneKind:
    """One kind: its objects, its series, and the labels of its objects that the series carry."""

    def __init__(self, metrics: Metrics, kind: AnyKind, carried: Iterable[str]) -> None:
        self.kind = kind
        self._expected = _EXPECTED.get(kind.name, ())
        self._carried = {key: sanitised(key) for key in carried}
        prefix = f"operator_{kind.name.lower()}"
        self.counted = _Counted(metrics, prefix, tuple(self._carried.values()), _TURNING_BUCKETS_SECONDS)
        self.gauges = _gauges(prefix)
        #: By namespace and name.
        self.objects: dict[tuple[str, str], Conditioned] = {}
        self.twin = {"group": kind.group, "kind": kind.name}

    def further(self, obj: Conditioned) -> dict[str, str]:
        """The labels of an object's series that come from its own."""
        found = obj.metadata.labels
        return {name: found.get(key, "") for key, name in self._carried.items()}

    def conditions(self, obj: Conditioned) -> dict[str, Condition]:
        """An object's conditions by type; those every object of the kind has are Unknown from its creation on (OPS-100)."""
        born = obj.metadata.creation_timestamp
        missing = (
            Condition(type=item, status=conditions.UNKNOWN, last_transition_time=born) for item in self._expected
        )
        return {condition.type: condition for condition in (*missing, *obj.status.conditions)}

    @property
    def has_twin(self) -> bool:
        """Whether its series exist a second time, without the kind in their names."""
        return self.kind.name != NODE.name


class Conditions(Part):
    """Remembers nothing but which objects there are: a condition that turned shows in the old and the new object."""

    def __init__(self, world: World, further: Iterable[AnyKind] = ()) -> None:
        self._events = world.events
        self._clock = world.clock
        classes = [f"{kind.group}/{kind.name.lower()}" for kind in world.provider.node_class_kinds]
        carried: dict[str, tuple[str, ...]] = {
            NODE_CLAIM.name: (*classes, labels.NODE_POOL),
            NODE.name: (*classes, labels.NODE_POOL, labels.INITIALIZED),
        }
        kinds: tuple[AnyKind, ...] = (NODE_CLAIM, NODE_POOL, NODE, *world.provider.node_class_kinds, *further)
        self._kinds = {kind.name: _OneKind(world.metrics, kind, carried.get(kind.name, ())) for kind in kinds}
        self._twin = _Counted(world.metrics, "operator", ("group", "kind"), STANDARD_BUCKETS_SECONDS)
        self._twin_gauges = _gauges("operator")

    def node(self, old: Node | None, new: Node | None) -> None:
        """A Node changed."""
        self._changed(NODE.name, old, new)

    def claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """A NodeClaim changed."""
        self._changed(NODE_CLAIM.name, old, new)

    def pool(self, old: NodePool | None, new: NodePool | None) -> None:
        """A NodePool changed."""
        self._changed(NODE_POOL.name, old, new)

    def other(self, kind: str, old: Conditioned | None, new: Conditioned | None) -> None:
        """A node class, or an object of one of the further kinds, changed."""
        self._changed(kind, old, new)

    def _changed(self, name: str, old: Conditioned | None, new: Conditioned | None) -> None:
        kind = self._kinds[name]
        if new is not None:
            kind.objects[(new.metadata.namespace, new.metadata.name)] = new
            if old is None or old.status.conditions != new.status.conditions:
                self._compare(kind, old, new)
        elif old is not None:
            kind.objects.pop((old.metadata.namespace, old.metadata.name), None)
            self._end(kind, old)
        if old is not None and old.metadata.finalizers:
            self._tell_finalised(kind, old, new)

    def _compare(self, kind: _OneKind, old: Conditioned | None, new: Conditioned) -> None:
        """Count and tell what turned. What is seen for the first time is counted unless Unknown, and not told (OPS-487)."""
        before = kind.conditions(old) if old is not None else {}
        for condition in new.status.conditions:
            last = before.get(condition.type)
            if condition.status == (last.status if last is not None else conditions.UNKNOWN):
                continue
            self._count(kind, new, condition)
            if last is not None:
                self._time(kind, new, last, condition)
                self._events.mention(_turned(kind.kind, new, last, condition))

    def _count(self, kind: _OneKind, obj: Conditioned, condition: Condition) -> None:
        turned = {"type": condition.type, "status": condition.status, "reason": condition.reason}
        kind.counted.turns.labels(**kind.further(obj), **turned).inc()
        if kind.has_twin:
            self._twin.turns.labels(**kind.twin, **turned).inc()

    def _time(self, kind: _OneKind, obj: Conditioned, last: Condition, condition: Condition) -> None:
        began, ended = last.last_transition_time, condition.last_transition_time
        if began is None or ended is None:
            return
        seconds = max(0.0, (ended - began).total_seconds())
        lost = {"type": last.type, "status": last.status}
        kind.counted.turning.labels(**kind.further(obj), **lost).observe(seconds)
        if kind.has_twin:
            self._twin.turning.labels(**kind.twin, **lost).observe(seconds)

    def _end(self, kind: _OneKind, obj: Conditioned) -> None:
        deleted = obj.metadata.deletion_timestamp
        if deleted is None:
            return
        seconds = max(0.0, (self._clock.now() - deleted).total_seconds())
        further = kind.further(obj)
        (kind.counted.ended.labels(**further) if further else kind.counted.ended).observe(seconds)
        if kind.has_twin:
            self._twin.ended.labels(**kind.twin).observe(seconds)

    def _tell_finalised(self, kind: _OneKind, old: Conditioned, new: Conditioned | None) -> None:
        """OPS-531. What an object that is gone still had is what was taken last."""
        left = new.metadata.finalizers if new is not None else ()
        about = About(kind.kind, old.metadata)
        for name in old.metadata.finalizers:
            if name not in left:
                self._events.mention(Happening(about, NORMAL, "Finalized", f"Finalized {name}", (name,)))

    def picture(self, picture: Picture) -> Writing:
        """Which objects there are belongs to it."""
        return partial(self._write, {name: tuple(kind.objects.values()) for name, kind in self._kinds.items()}, picture)

    def _write(self, objects: Mapping[str, tuple[Conditioned, ...]], picture: Picture) -> Iterator[str]:
        for name, kind in self._kinds.items():
            own = [(obj, _described(obj, kind.further(obj))) for obj in objects[name]]
            yield from _texts(kind.gauges, own, picture.now)
        twins = [
            (obj, _described(obj, kind.twin))
            for name, kind in self._kinds.items()
            if kind.has_twin
            for obj in objects[name]
        ]
        yield from _texts(self._twin_gauges, twins, picture.now)


def _turned(kind: AnyKind, obj: Conditioned, last: Condition, condition: Condition) -> Happening:
    """The event of a condition that turned; its reason is the condition's type (OPS-530)."""
    text = f"Status condition transitioned, Type: {condition.type}, Status: {last.status} -> {condition.status}"
    text += f", Reason: {condition.reason}" if condition.reason else ""
    text += f", Message: {condition.message}" if condition.message else ""
    values = (last.status, condition.status, condition.reason, condition.message)
    return Happening(About(kind, obj.metadata), NORMAL, condition.type, text, values)


def _described(obj: Conditioned, further: Mapping[str, str]) -> str:
    own = f'namespace="{obj.metadata.namespace}",name="{obj.metadata.name}"'
    return ",".join([own, *[f'{name}="{value}"' for name, value in further.items()]])


@lru_cache(maxsize=4096)
def _condition(type_: str, status: str, reason: str) -> str:
    return pairs(type=type_, status=status, reason=reason)


def _texts(gauges: _Gauges, described: Iterable[tuple[Conditioned, str]], now: datetime) -> Iterator[str]:
    """The families of objects with the labels of their series."""
    each = [
        (f"{own},{_condition(item.type, item.status, item.reason)}", item.last_transition_time)
        for obj, own in described
        for item in obj.status.conditions
    ]
    yield from gauges.count.text((own, 1) for own, _ in each)
    yield from gauges.current.text((own, (now - since).total_seconds()) for own, since in each if since is not None)
    ending = ((own, obj.metadata.deletion_timestamp) for obj, own in described)
    yield from gauges.ending.text((own, (now - since).total_seconds()) for own, since in ending if since is not None)
