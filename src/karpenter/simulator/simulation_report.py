"""The report of a study as figures: cost against the lower bound, waiting times, restarts, utilization, capacity, a timeline."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from karpenter.disruption.decision_journal import DecisionOutcome, JournalEntry
from karpenter.simulation.run_history import InstanceLaunched, InstanceNotice
from karpenter.simulation.run_report import WaitStatistics, wait_statistics
from karpenter.simulator.cost_bound import CostBound
from karpenter.simulator.cost_gap import CostGap, cost_gap, gap_document
from karpenter.simulator.run_recorder import Sample, WaitingTime
from karpenter.simulator.simulation_run import StudyRecord

#: Of the JSON of a report.
FORMAT_VERSION = "1.2"
#: Hours of a month, as clouds count them.
MONTH_HOURS = 730
_HOUR, _DAY = 3600, 86_400
_CENTS, _MILLIS = 2, 3
_PRESENT, _LAUNCHED = "present", "launched"


@dataclass(frozen=True, slots=True)
class CapacityShare:
    """What one instance type and capacity type contributed."""

    instance_type: str
    capacity_type: str
    node_hours: float
    cost_usd: float


@dataclass(frozen=True, slots=True)
class WaitingCause:
    """What pods waited for, and how many pod-seconds in all."""

    cause: str
    pod_seconds: float


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """An instance was there from the start, came or went: ``present``, ``launched`` or ``ended``.

    ``reason``: of the disruption that removed it, empty where none did.
    """

    seconds: float
    event: str
    node: str
    instance_type: str
    capacity_type: str
    pods: int
    reason: str


@dataclass(frozen=True, slots=True)
class DecisionLine:
    """A decision about disruption. ``saving_per_hour`` in USD, None where it is unknown."""

    seconds: float
    reason: str
    nodes: tuple[str, ...]
    replacements: int
    pods: int
    saving_per_hour: float | None
    outcome: str
    cause: str


@dataclass(frozen=True, slots=True)
class StudyStart:
    """The nodes that a study began with. ``nodes``: instances, at ``usd_per_hour`` together; ``pods``: those with a node.

    ``unmanaged``: nodes that take pods, stay and are not in the bill, by why; ``absent``: nodes and NodeClaims that the study
    began without, by why. ``bound_usd_per_hour``: the first step of the lower bound.
    """

    nodes: int
    usd_per_hour: float
    bound_usd_per_hour: float
    pods: int
    unmanaged: tuple[tuple[str, int], ...]
    absent: tuple[tuple[str, int], ...]

    @property
    def unmanaged_count(self) -> int:
        """All unmanaged nodes."""
        return sum(count for _, count in self.unmanaged)


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The outcome of one study. ``days`` is what was simulated; ``is_partial``: it was interrupted.

    ``bound_usd_per_hour`` is the lower bound at each sample of the timeline. ``start`` None: it began without nodes.
    """

    workload: str
    policy: str
    seed: int
    days: float
    is_partial: bool
    cost_usd: float
    bound_usd: float
    gap: CostGap
    node_hours: float
    launched_nodes: int
    peak_nodes: int
    arrivals: WaitStatistics
    restarted: WaitStatistics
    still_waiting: int
    unschedulable: tuple[str, ...]
    restarts: tuple[tuple[str, int], ...]
    cpu_share: float
    memory_share: float
    capacity: tuple[CapacityShare, ...]
    waiting_causes: tuple[WaitingCause, ...]
    events: tuple[NodeEvent, ...]
    decisions: tuple[DecisionLine, ...]
    timeline: tuple[Sample, ...]
    bound_usd_per_hour: tuple[float, ...]
    start: StudyStart | None = None

    @property
    def bound_ratio(self) -> float | None:
        """Cost over the lower bound; None where the bound is 0, as with room for all pods on unmanaged nodes."""
        return self.cost_usd / self.bound_usd if self.bound_usd else None

    @property
    def cost_per_month(self) -> float:
        """USD for a month at this rate."""
        return self.cost_usd / (self.days * 24) * MONTH_HOURS if self.days else 0.0

    @property
    def restart_count(self) -> int:
        """All restarts."""
        return sum(count for _, count in self.restarts)

    @property
    def moved_pods(self) -> int:
        """Pods that decisions moved to save money or to replace nodes: those of commands that succeeded."""
        return sum(line.pods for line in self.decisions if line.outcome == DecisionOutcome.SUCCEEDED)

    @property
    def moves_per_day(self) -> float:
        """Such moves per day."""
        return self.moved_pods / self.days if self.days else 0.0

    @property
    def restarts_per_day(self) -> float:
        """Restarts per day."""
        return self.restart_count / self.days if self.days else 0.0


@dataclass(frozen=True, slots=True)
class StudyLabels:
    """What a report is about."""

    workload: str
    policy: str
    seed: int


def summarize_study(labels: StudyLabels, record: StudyRecord, bound: CostBound) -> SimulationReport:
    """The report of a run."""
    cost, least = record.cost_usd(), bound.cost_usd(record.seconds)
    capacity = _capacity(record)
    samples = record.samples
    present = record.starting.instance_names
    events = tuple(_node_event(notice, record.begins, present) for notice in record.notices)
    return SimulationReport(
        workload=labels.workload,
        policy=labels.policy,
        seed=labels.seed,
        days=record.seconds / _DAY,
        is_partial=record.was_interrupted,
        cost_usd=float(cost),
        bound_usd=least,
        gap=cost_gap(cost - Fraction(least), record.idle, record.withheld),
        node_hours=sum(share.node_hours for share in capacity),
        launched_nodes=sum(event.event == _LAUNCHED for event in events),
        peak_nodes=max((sample.nodes for sample in samples), default=0),
        arrivals=wait_statistics(wait.seconds for wait in record.waits if not wait.is_restart),
        restarted=wait_statistics(wait.seconds for wait in record.waits if wait.is_restart),
        still_waiting=len(record.waiting_time.unbound),
        unschedulable=bound.unschedulable,
        restarts=tuple(sorted(Counter(restart.cause for restart in record.restarts).items())),
        cpu_share=_mean(sample.cpu_share for sample in samples if sample.nodes),
        memory_share=_mean(sample.memory_share for sample in samples if sample.nodes),
        capacity=capacity,
        waiting_causes=_waiting_causes(record.waiting_time, frozenset(bound.unschedulable)),
        events=events,
        decisions=tuple(_decision_line(entry, record.begins) for entry in record.decisions),
        timeline=samples,
        bound_usd_per_hour=tuple(bound.rate_at(sample.seconds) for sample in samples),
        start=_start(record, bound),
    )


def _start(record: StudyRecord, bound: CostBound) -> StudyStart | None:
    starting = record.starting
    if not starting.has_nodes:
        return None
    return StudyStart(
        nodes=len(starting.nodes),
        usd_per_hour=starting.usd_per_hour,
        bound_usd_per_hour=bound.rate_at(0),
        pods=len(starting.running),
        unmanaged=_counted(node.reason for node in starting.unmanaged),
        absent=_counted(absent.reason for absent in starting.absent),
    )


def _counted(reasons: Iterable[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((str(reason), count) for reason, count in Counter(reasons).items()))


def _waiting_causes(waited: WaitingTime, unschedulable: frozenset[str]) -> tuple[WaitingCause, ...]:
    """In the order in which a pod meets them."""
    impossible = sum(seconds for name, seconds in (*waited.unbound, *waited.left) if name in unschedulable)
    rest = sum(seconds for name, seconds in waited.unbound if name not in unschedulable)
    left = sum(seconds for name, seconds in waited.left if name not in unschedulable)
    return (
        WaitingCause("launch of a node", waited.launch),
        WaitingCause("start of a node", waited.start),
        WaitingCause("room on a node", waited.room),
        WaitingCause("no NodePool can hold the pod", impossible),
        WaitingCause("left before it was bound", left),
        WaitingCause("still waiting at the end", rest),
    )


def _node_event(notice: InstanceNotice, begins: datetime, present: frozenset[str]) -> NodeEvent:
    record, launched = notice.record, isinstance(notice, InstanceLaunched)
    came = _PRESENT if record.node_name in present else _LAUNCHED
    return NodeEvent(
        (notice.at - begins).total_seconds(),
        came if launched else "ended",
        record.node_name,
        record.instance_type,
        record.capacity_type,
        notice.pod_count if isinstance(notice, InstanceLaunched) else 0,
        "" if isinstance(notice, InstanceLaunched) else notice.reason,
    )


def _decision_line(entry: JournalEntry, begins: datetime) -> DecisionLine:
    return DecisionLine(
        (entry.decided_at - begins).total_seconds(),
        entry.reason,
        tuple(node or claim for node, claim in entry.nodes),
        len(entry.replacements),
        entry.pods,
        entry.saving_per_hour,
        entry.outcome.value,
        entry.cause,
    )


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def _capacity(record: StudyRecord) -> tuple[CapacityShare, ...]:
    """Most expensive first."""
    hours: defaultdict[tuple[str, str], float] = defaultdict(float)
    cost: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for bill in record.bills:
        key = bill.record.instance_type, bill.record.capacity_type
        hours[key] += bill.hours
        cost[key] += bill.cost_usd(bill.launched, bill.ended)
    ordered = sorted(hours, key=lambda key: (-cost[key], key))
    return tuple(CapacityShare(*key, hours[key], float(cost[key])) for key in ordered)


def report_document(report: SimulationReport) -> dict[str, object]:
    """The report as plain data, for JSON. Amounts are rounded to cents, shares to thousandths."""
    return {
        "formatVersion": FORMAT_VERSION,
        "workload": report.workload,
        "policy": report.policy,
        "seed": report.seed,
        "days": round(report.days, _MILLIS),
        "partial": report.is_partial,
        "cost": _cost_document(report),
        "nodes": {
            "hours": round(report.node_hours, _CENTS),
            "launched": report.launched_nodes,
            "peak": report.peak_nodes,
            "cpuRequested": round(report.cpu_share, _MILLIS),
            "memoryRequested": round(report.memory_share, _MILLIS),
        },
        "waiting": _waiting_document(report),
        "restarts": {
            "total": report.restart_count,
            "perDay": round(report.restarts_per_day, _CENTS),
            "byCause": dict(report.restarts),
        },
        "moves": {"total": report.moved_pods, "perDay": round(report.moves_per_day, _CENTS)},
        "capacity": [_capacity_document(share) for share in report.capacity],
        "events": [_event_document(event) for event in report.events],
        "decisions": [_decision_document(line) for line in report.decisions],
        "timeline": [
            _sample_document(sample, bound)
            for sample, bound in zip(report.timeline, report.bound_usd_per_hour, strict=True)
        ],
        **({} if report.start is None else {"start": _start_document(report.start)}),
    }


def _start_document(start: StudyStart) -> dict[str, object]:
    return {
        "nodes": start.nodes,
        "usdPerHour": round(start.usd_per_hour, _MILLIS),
        "lowerBoundUsdPerHour": round(start.bound_usd_per_hour, _MILLIS),
        "runningPods": start.pods,
        "unmanaged": {"total": start.unmanaged_count, "byReason": dict(start.unmanaged)},
        "absent": dict(start.absent),
    }


def _cost_document(report: SimulationReport) -> dict[str, object]:
    return {
        "usd": round(report.cost_usd, _CENTS),
        "usdPerMonth": round(report.cost_per_month, _CENTS),
        "lowerBoundUsd": round(report.bound_usd, _CENTS),
        "ratio": None if report.bound_ratio is None else round(report.bound_ratio, _MILLIS),
        "gapUsd": gap_document(report.gap, report.cost_usd, report.bound_usd),
    }


def _waiting_document(report: SimulationReport) -> dict[str, object]:
    return {
        "arrivals": _wait_document(report.arrivals),
        "restarts": _wait_document(report.restarted),
        "podHoursByCause": {each.cause: round(each.pod_seconds / _HOUR, _MILLIS) for each in report.waiting_causes},
        "stillWaiting": report.still_waiting,
        "unschedulable": list(report.unschedulable),
    }


def _capacity_document(share: CapacityShare) -> dict[str, object]:
    return {
        "instanceType": share.instance_type,
        "capacityType": share.capacity_type,
        "nodeHours": round(share.node_hours, _CENTS),
        "usd": round(share.cost_usd, _CENTS),
    }


def _event_document(event: NodeEvent) -> dict[str, object]:
    return {
        "hours": round(event.seconds / _HOUR, _MILLIS),
        "event": event.event,
        "node": event.node,
        "instanceType": event.instance_type,
        "capacityType": event.capacity_type,
        "pods": event.pods,
        "reason": event.reason,
    }


def _decision_document(line: DecisionLine) -> dict[str, object]:
    return {
        "hours": round(line.seconds / _HOUR, _MILLIS),
        "reason": line.reason,
        "nodes": list(line.nodes),
        "replacements": line.replacements,
        "pods": line.pods,
        "savingUsdPerHour": None if line.saving_per_hour is None else round(line.saving_per_hour, 4),
        "outcome": line.outcome,
        "cause": line.cause,
    }


def _wait_document(waits: WaitStatistics) -> dict[str, object]:
    return {
        "pods": waits.count,
        "p50Seconds": round(waits.p50_seconds, _MILLIS),
        "p95Seconds": round(waits.p95_seconds, _MILLIS),
        "p99Seconds": round(waits.p99_seconds, _MILLIS),
        "maxSeconds": round(waits.max_seconds, _MILLIS),
    }


def _sample_document(sample: Sample, bound_usd_per_hour: float) -> dict[str, object]:
    return {
        "hours": round(sample.seconds / _HOUR, _MILLIS),
        "usdPerHour": round(sample.usd_per_hour, _MILLIS),
        "lowerBoundUsdPerHour": round(bound_usd_per_hour, _MILLIS),
        "nodes": sample.nodes,
        "pods": sample.pods,
        "waitingPods": sample.waiting_pods,
        "cpuRequested": round(sample.cpu_share, _MILLIS),
        "memoryRequested": round(sample.memory_share, _MILLIS),
    }
