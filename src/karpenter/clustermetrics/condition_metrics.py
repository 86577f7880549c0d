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

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import NODE, NODE_CLAIM, NODE_POOL
from karpenter.api.meta import Condition
from karpenter.clustermetrics.cluster_collector import ClusterCollector, ClusterMetricsSnapshot, StatusObject
from karpenter.controller_context import ControllerContext
from karpenter.metrics.exposition import GaugeFamily, SeriesWriter, label_pairs
from karpenter.metrics.registry import STANDARD_BUCKETS_SECONDS, Metrics, exponential_buckets
from karpenter.model import conditions, labels
from karpenter.runtime.events import NORMAL, InvolvedObject, ObjectEvent, ObjectKind

#: How long a condition kept its status before it turned, in seconds (OPS-483).
_TRANSITION_BUCKETS_SECONDS = exponential_buckets(0.5, 2.0, 15)
#: Conditions of which every object of a kind has one.
_EXPECTED_CONDITIONS = {
    NODE_CLAIM.name: conditions.NODE_CLAIM.all_types,
    NODE_POOL.name: conditions.NODE_POOL.all_types,
}
_COUNT = "One per condition; the value is 1."
_CURRENT = "How long a condition has had its status."
_TRANSITIONS = "Conditions that turned, by what they turned to."
_TRANSITION_DURATION = "How long a condition had the status it lost."
_TERMINATING = "How long an object that is being deleted has been so."
_TERMINATION_DURATION = "From an object's deletion to its being gone."


def label_name_of_key(key: str) -> str:
    """A label key as a label name in series (OPS-485)."""
    return key.replace("/", "_").replace(".", "_").replace("-", "_")


class _ConditionCounters:
    """Counters of the conditions of one kind, or of all kinds whose series have no kind in their names.

    ``further_labels`` precede the usual labels.
    """

    def __init__(
        self, metrics: Metrics, prefix: str, further_labels: tuple[str, ...], buckets: tuple[float, ...]
    ) -> None:
        registry = metrics.registry
        condition = f"{prefix}_status_condition"
        self.transitions_total = Counter(
            f"{condition}_transitions_total",
            _TRANSITIONS,
            (*further_labels, "type", "status", "reason"),
            registry=registry,
        )
        self.transition_seconds = Histogram(
            f"{condition}_transition_seconds",
            _TRANSITION_DURATION,
            (*further_labels, "type", "status"),
            buckets=buckets,
            registry=registry,
        )
        self.termination_duration_seconds = Histogram(
            f"{prefix}_termination_duration_seconds",
            _TERMINATION_DURATION,
            further_labels,
            buckets=buckets,
            registry=registry,
        )


@dataclass(frozen=True)
class _ConditionGauges:
    """The families that are worked out, under one prefix."""

    count: GaugeFamily
    current_status: GaugeFamily
    terminating: GaugeFamily


def _condition_gauges(prefix: str) -> _ConditionGauges:
    condition = f"{prefix}_status_condition"
    return _ConditionGauges(
        GaugeFamily(f"{condition}_count", _COUNT),
        GaugeFamily(f"{condition}_current_status_seconds", _CURRENT),
        GaugeFamily(f"{prefix}_termination_current_time_seconds", _TERMINATING),
    )


class _KindConditions:
    """One kind: its objects, its series, and the labels of its objects that the series carry."""

    def __init__(self, metrics: Metrics, kind: ObjectKind, label_keys: Iterable[str]) -> None:
        self.kind = kind
        self._expected_conditions = _EXPECTED_CONDITIONS.get(kind.name, ())
        self._label_names = {key: label_name_of_key(key) for key in label_keys}
        prefix = f"operator_{kind.name.lower()}"
        self.counters = _ConditionCounters(
            metrics, prefix, tuple(self._label_names.values()), _TRANSITION_BUCKETS_SECONDS
        )
        self.gauges = _condition_gauges(prefix)
        #: By namespace and name.
        self.objects: dict[tuple[str, str], StatusObject] = {}
        self.generic_labels = {"group": kind.group, "kind": kind.name}

    def object_labels(self, obj: StatusObject) -> dict[str, str]:
        """The labels of an object's series that come from its own."""
        object_labels = obj.metadata.labels
        return {name: object_labels.get(key, "") for key, name in self._label_names.items()}

    def conditions_by_type(self, obj: StatusObject) -> dict[str, Condition]:
        """An object's conditions by type; those every object of the kind has are Unknown from its creation on (OPS-100)."""
        born = obj.metadata.creation_timestamp
        missing = (
            Condition(type=expected_condition, status=conditions.UNKNOWN, last_transition_time=born)
            for expected_condition in self._expected_conditions
        )
        return {condition.type: condition for condition in (*missing, *obj.status.conditions)}

    @property
    def has_generic_series(self) -> bool:
        """Whether its series exist a second time, without the kind in their names."""
        return self.kind.name != NODE.name


class StatusConditionMetrics(ClusterCollector):
    """Remembers nothing but which objects there are: a condition that turned shows in the old and the new object."""

    def __init__(self, context: ControllerContext, further_kinds: Iterable[ObjectKind] = ()) -> None:
        self._events = context.events
        self._clock = context.clock
        classes = [f"{kind.group}/{kind.name.lower()}" for kind in context.provider.node_class_kinds]
        carried: dict[str, tuple[str, ...]] = {
            NODE_CLAIM.name: (*classes, labels.NODE_POOL),
            NODE.name: (*classes, labels.NODE_POOL, labels.INITIALIZED),
        }
        kinds: tuple[ObjectKind, ...] = (
            NODE_CLAIM,
            NODE_POOL,
            NODE,
            *context.provider.node_class_kinds,
            *further_kinds,
        )
        self._kinds = {kind.name: _KindConditions(context.metrics, kind, carried.get(kind.name, ())) for kind in kinds}
        self._generic_counters = _ConditionCounters(
            context.metrics, "operator", ("group", "kind"), STANDARD_BUCKETS_SECONDS
        )
        self._generic_gauges = _condition_gauges("operator")

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """A Node changed."""
        self._changed(NODE.name, old, new)

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """A NodeClaim changed."""
        self._changed(NODE_CLAIM.name, old, new)

    def on_pool(self, old: NodePool | None, new: NodePool | None) -> None:
        """A NodePool changed."""
        self._changed(NODE_POOL.name, old, new)

    def on_status_object(self, kind: str, old: StatusObject | None, new: StatusObject | None) -> None:
        """A node class, or an object of one of the further kinds, changed."""
        self._changed(kind, old, new)

    def _changed(self, name: str, old: StatusObject | None, new: StatusObject | None) -> None:
        kind = self._kinds[name]
        if new is not None:
            kind.objects[(new.metadata.namespace, new.metadata.name)] = new
            if old is None or old.status.conditions != new.status.conditions:
                self._observe_transitions(kind, old, new)
        elif old is not None:
            kind.objects.pop((old.metadata.namespace, old.metadata.name), None)
            self._observe_termination(kind, old)
        if old is not None and old.metadata.finalizers:
            self._publish_finalized(kind, old, new)

    def _observe_transitions(self, kind: _KindConditions, old: StatusObject | None, new: StatusObject) -> None:
        """Count and report transitions. A first observation is counted unless Unknown, and not reported (OPS-487)."""
        before = kind.conditions_by_type(old) if old is not None else {}
        for condition in new.status.conditions:
            last = before.get(condition.type)
            if condition.status == (last.status if last is not None else conditions.UNKNOWN):
                continue
            self._count_transition(kind, new, condition)
            if last is not None:
                self._time_transition(kind, new, last, condition)
                self._events.publish_optional(_transition_event(kind.kind, new, last, condition))

    def _count_transition(self, kind: _KindConditions, obj: StatusObject, condition: Condition) -> None:
        turned = {"type": condition.type, "status": condition.status, "reason": condition.reason}
        kind.counters.transitions_total.labels(**kind.object_labels(obj), **turned).inc()
        if kind.has_generic_series:
            self._generic_counters.transitions_total.labels(**kind.generic_labels, **turned).inc()

    def _time_transition(self, kind: _KindConditions, obj: StatusObject, last: Condition, condition: Condition) -> None:
        began, ended = last.last_transition_time, condition.last_transition_time
        if began is None or ended is None:
            return
        seconds = max(0.0, (ended - began).total_seconds())
        lost = {"type": last.type, "status": last.status}
        kind.counters.transition_seconds.labels(**kind.object_labels(obj), **lost).observe(seconds)
        if kind.has_generic_series:
            self._generic_counters.transition_seconds.labels(**kind.generic_labels, **lost).observe(seconds)

    def _observe_termination(self, kind: _KindConditions, obj: StatusObject) -> None:
        deleted = obj.metadata.deletion_timestamp
        if deleted is None:
            return
        seconds = max(0.0, (self._clock.now() - deleted).total_seconds())
        further = kind.object_labels(obj)
        (
            kind.counters.termination_duration_seconds.labels(**further)
            if further
            else kind.counters.termination_duration_seconds
        ).observe(seconds)
        if kind.has_generic_series:
            self._generic_counters.termination_duration_seconds.labels(**kind.generic_labels).observe(seconds)

    def _publish_finalized(self, kind: _KindConditions, old: StatusObject, new: StatusObject | None) -> None:
        """OPS-531. What an object that is gone still had is what was taken last."""
        left = new.metadata.finalizers if new is not None else ()
        about = InvolvedObject(kind.kind, old.metadata)
        for name in old.metadata.finalizers:
            if name not in left:
                self._events.publish_optional(ObjectEvent(about, NORMAL, "Finalized", f"Finalized {name}", (name,)))

    def prepare(self, snapshot: ClusterMetricsSnapshot) -> SeriesWriter:
        """Which objects there are belongs to it."""
        return partial(
            self._write, {name: tuple(kind.objects.values()) for name, kind in self._kinds.items()}, snapshot
        )

    def _write(
        self, objects: Mapping[str, tuple[StatusObject, ...]], snapshot: ClusterMetricsSnapshot
    ) -> Iterator[str]:
        for name, kind in self._kinds.items():
            own = [(obj, _object_label_pairs(obj, kind.object_labels(obj))) for obj in objects[name]]
            yield from _gauge_lines(kind.gauges, own, snapshot.now)
        twins = [
            (obj, _object_label_pairs(obj, kind.generic_labels))
            for name, kind in self._kinds.items()
            if kind.has_generic_series
            for obj in objects[name]
        ]
        yield from _gauge_lines(self._generic_gauges, twins, snapshot.now)


def _transition_event(kind: ObjectKind, obj: StatusObject, last: Condition, condition: Condition) -> ObjectEvent:
    """The event of a condition that turned; its reason is the condition's type (OPS-530)."""
    text = f"Status condition transitioned, Type: {condition.type}, Status: {last.status} -> {condition.status}"
    text += f", Reason: {condition.reason}" if condition.reason else ""
    text += f", Message: {condition.message}" if condition.message else ""
    values = (last.status, condition.status, condition.reason, condition.message)
    return ObjectEvent(InvolvedObject(kind, obj.metadata), NORMAL, condition.type, text, values)


def _object_label_pairs(obj: StatusObject, further: Mapping[str, str]) -> str:
    own = f'namespace="{obj.metadata.namespace}",name="{obj.metadata.name}"'
    return ",".join([own, *[f'{name}="{value}"' for name, value in further.items()]])


@lru_cache(maxsize=4096)
def _condition_label_pairs(type_: str, status: str, reason: str) -> str:
    return label_pairs(type=type_, status=status, reason=reason)


def _gauge_lines(
    gauges: _ConditionGauges, described: Iterable[tuple[StatusObject, str]], now: datetime
) -> Iterator[str]:
    """The families of objects with the labels of their series."""
    each = [
        (
            f"{own},{_condition_label_pairs(condition.type, condition.status, condition.reason)}",
            condition.last_transition_time,
        )
        for obj, own in described
        for condition in obj.status.conditions
    ]
    yield from gauges.count.lines((own, 1) for own, _ in each)
    yield from gauges.current_status.lines(
        (own, (now - since).total_seconds()) for own, since in each if since is not None
    )
    ending = ((own, obj.metadata.deletion_timestamp) for obj, own in described)
    yield from gauges.terminating.lines(
        (own, (now - since).total_seconds()) for own, since in ending if since is not None
    )
