"""The result of ``karpenter simulate`` as a page of tables, as Markdown and as JSON."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TextIO

from karpenter.cli.render_common import Json, WidePage, names_text, ratio_text
from karpenter.cli.render_sections import Section, estimate_document, sections_markdown, with_confidence, write_sections
from karpenter.cli.simulate_runner import SimulationResult
from karpenter.model.texts import count_text, days_text
from karpenter.simulation.run_report import WaitStatistics
from karpenter.simulator.cost_gap import GAP_PARTS, GapPart
from karpenter.simulator.policy_comparison import Estimate, PolicyDifference, differences, recommendation
from karpenter.simulator.simulation_report import DecisionLine, SimulationReport, StudyStart, report_document

_MINUTE, _HOUR = 60, 3600
#: After so many hours a page shows what the cluster costs that a study began with.
_MILESTONE_HOURS = (1, 6, 24, 168)
#: The name of a figure, and its text in a report.
Figure = tuple[str, Callable[[SimulationReport], str]]


@dataclass(frozen=True, slots=True)
class PageRoom:
    """How many instance types and decisions a page shows."""

    types: int
    decisions: int


_PAGE, _EVERYTHING = PageRoom(types=8, decisions=10), PageRoom(sys.maxsize, sys.maxsize)


def write(result: SimulationResult, out: TextIO) -> None:
    """The page for people; wide pages have all instance types and decisions."""
    shown = sections(result, _EVERYTHING) if isinstance(out, WidePage) else sections(result)
    write_sections(shown, closing_lines(result), out)


def markdown(result: SimulationResult) -> str:
    """The same tables as Markdown."""
    return sections_markdown(sections(result), closing_lines(result))


def policy_names(result: SimulationResult) -> list[str]:
    """The policies that were simulated."""
    return [f"policy/{own[0].policy}" for own in result.reports]


def document(result: SimulationResult) -> Json:
    """All reports with their timelines, and the comparison."""
    policy_differences = _differences(result)
    reports: Json = {"reports": [report_document(report) for own in result.reports for report in own]}
    if not policy_differences:
        return reports
    return reports | {
        "comparison": {
            "with": result.reports[0][0].policy,
            "policies": [_difference_document(difference) for difference in policy_differences],
            "recommendation": recommendation(result.reports[0][0].policy, policy_differences),
        }
    }


def closing_lines(result: SimulationResult) -> list[str]:
    """What a page says in sentences: pods that no NodePool can hold, and the recommendation."""
    return [text for text in (_impossible(result.reports[0][0]), _recommended(result)) if text]


def _impossible(report: SimulationReport) -> str:
    names = report.unschedulable
    return f"No NodePool can hold {len(names)} of the pods: {names_text(names)}." if names else ""


def _recommended(result: SimulationResult) -> str:
    policy_differences = _differences(result)
    return recommendation(result.reports[0][0].policy, policy_differences) if policy_differences else ""


def _differences(result: SimulationResult) -> list[PolicyDifference]:
    shortest = min(len(own) for own in result.reports)
    return differences([own[:shortest] for own in result.reports])


def sections(result: SimulationResult, room: PageRoom = _PAGE) -> Iterable[Section]:
    """The tables of a page: the figures of each policy, its capacity, and the comparison."""
    first = [own[0] for own in result.reports]
    yield _figures(first, len(result.reports[0]))
    yield from _from_the_start(first)
    yield _waiting(first)
    for report in first:
        yield _capacity(report, room.types)
        if report.decisions:
            yield _decisions(report, room.decisions)
    policy_differences = _differences(result)
    if policy_differences:
        yield _comparison(first[0], policy_differences)


def _figures(reports: Sequence[SimulationReport], seeds: int) -> Section:
    """``seeds``: how many there are; the figures are those of the first."""
    head = reports[0]
    others = f" (seeds {head.seed} to {head.seed + seeds - 1} are compared below)" if seeds > 1 else ""
    title = f"{head.workload}: {days_text(head.days)}, seed {head.seed}{others}"
    rows = [(name, *(value(report) for report in reports)) for name, value in _FIGURES]
    return Section(title, ("", *(report.policy for report in reports)), rows)


def _from_the_start(reports: Sequence[SimulationReport]) -> Iterable[Section]:
    """What the nodes of the start cost, and how fast that changed."""
    start = reports[0].start
    if start is None:
        return
    first = (_start_text(start), _per_hour(start.bound_usd_per_hour), *(_per_hour(start.usd_per_hour) for _ in reports))
    later = [
        _cost_after(reports, hours) for hours in _MILESTONE_HOURS if hours < min(each.days for each in reports) * 24
    ]
    heading = ("cost per hour", "lower bound", *(report.policy for report in reports))
    yield Section("from the start", heading, [first, *later])


def _start_text(start: StudyStart) -> str:
    unmanaged = f", {start.unmanaged_count} unmanaged, not in the bill" if start.unmanaged else ""
    return f"start: {count_text(start.nodes, 'node')}, {count_text(start.pods, 'pod')} on nodes{unmanaged}"


def _cost_after(reports: Sequence[SimulationReport], hours: int) -> tuple[str, ...]:
    """The cost per hour after so many hours."""
    positions = [_sample_at(report, hours) for report in reports]
    bound = reports[0].bound_usd_per_hour[positions[0]]
    shown = [report.timeline[at] for report, at in zip(reports, positions, strict=True)]
    return (f"after {hours} h", _per_hour(bound), *(_per_hour(sample.usd_per_hour) for sample in shown))


def _sample_at(report: SimulationReport, hours: int) -> int:
    return max(0, bisect_right([sample.seconds for sample in report.timeline], hours * _HOUR) - 1)


def _per_hour(usd: float) -> str:
    return f"${usd:,.3f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 2 * _MINUTE else f"{seconds / _MINUTE:.0f}m"


def _waits(waits: WaitStatistics) -> str:
    shown = (waits.p50_seconds, waits.p95_seconds, waits.p99_seconds, waits.max_seconds)
    return " / ".join(map(_seconds, shown))


def _causes(report: SimulationReport) -> str:
    return ", ".join(f"{cause} {count}" for cause, count in report.restarts) or "none"


def _usd(amount: Fraction) -> str:
    return f"${float(amount):,.2f}"


def _gap_figure(part: GapPart) -> Figure:
    return f"above it: {part.text}", lambda report: _usd(part.of(report.gap))


_FIGURES: tuple[Figure, ...] = (
    ("cost", lambda r: f"${r.cost_usd:,.2f}"),
    ("cost per month", lambda r: f"${r.cost_per_month:,.0f}"),
    ("lower bound", lambda r: f"${r.bound_usd:,.2f}"),
    ("cost / lower bound", lambda r: ratio_text(r.bound_ratio)),
    *map(_gap_figure, GAP_PARTS),
    ("node-hours", lambda r: f"{r.node_hours:,.1f}"),
    ("nodes launched, most at once", lambda r: f"{r.launched_nodes}, {r.peak_nodes}"),
    ("CPU, memory requested", lambda r: f"{r.cpu_share:.0%}, {r.memory_share:.0%}"),
    ("new pods that were bound", lambda r: f"{r.arrivals.count}"),
    ("wait p50 / p95 / p99 / max", lambda r: _waits(r.arrivals)),
    ("pods that still wait", lambda r: f"{r.still_waiting}"),
    ("restarts", lambda r: f"{r.restart_count}"),
    ("restarts per day", lambda r: f"{r.restarts_per_day:.1f}"),
    ("restarts by cause", _causes),
    ("moves per day", lambda r: f"{r.moves_per_day:.1f}, by decisions that succeeded"),
    ("wait after a restart", lambda r: _waits(r.restarted)),
)


def _waiting(reports: Sequence[SimulationReport]) -> Section:
    """Pod-hours of waiting by cause; causes nobody met are left out."""
    causes = [each.cause for each in reports[0].waiting_causes]
    by_policy = [{each.cause: each.pod_seconds for each in report.waiting_causes} for report in reports]
    rows = [
        (cause, *(f"{own[cause] / _HOUR:,.2f}" for own in by_policy))
        for cause in causes
        if any(own[cause] for own in by_policy)
    ]
    return Section("pod-hours of waiting for", ("", *(report.policy for report in reports)), rows)


def _decisions(report: SimulationReport, most: int) -> Section:
    """The last decisions; JSON has all."""
    shown = report.decisions[-most:]
    title = f"{report.policy}: decisions" if len(shown) == len(report.decisions) else f"{report.policy}: last decisions"
    heading = ("hour", "reason", "nodes", "new", "pods", "saving", "outcome")
    return Section(f"{title} ({len(report.decisions)} in all)", heading, [_decision_row(line) for line in shown])


def _decision_row(line: DecisionLine) -> tuple[str, ...]:
    saving = "" if line.saving_per_hour is None else f"${line.saving_per_hour:.3f}/h"
    counts = (str(len(line.nodes)), str(line.replacements), str(line.pods))
    return (f"{line.seconds / _HOUR:.2f}", line.reason, *counts, saving, line.outcome)


def _capacity(report: SimulationReport, most: int) -> Section:
    rows: list[tuple[str, ...]] = [
        (share.instance_type, share.capacity_type, f"{share.node_hours:,.1f}", f"${share.cost_usd:,.2f}")
        for share in report.capacity[:most]
    ]
    rest = report.capacity[most:]
    if rest:
        hours, cost = sum(share.node_hours for share in rest), sum(share.cost_usd for share in rest)
        rows.append((f"{len(rest)} others", "", f"{hours:,.1f}", f"${cost:,.2f}"))
    return Section(f"{report.policy}: capacity", ("instance type", "capacity type", "node-hours", "cost"), rows)


def _comparison(first: SimulationReport, policy_differences: Sequence[PolicyDifference]) -> Section:
    rows = [
        (difference.policy, _estimate(difference.usd_per_month, "$"), _estimate(difference.restarts_per_day, ""))
        for difference in policy_differences
    ]
    return Section(f"compared with {first.policy}", ("policy", "per month", "restarts per day"), rows)


def _estimate(estimate: Estimate, unit: str) -> str:
    sign = "-" if estimate.mean < 0 else "+"
    return with_confidence(f"{sign}{unit}{abs(estimate.mean):,.1f}", estimate)


def _difference_document(difference: PolicyDifference) -> Json:
    return {
        "policy": difference.policy,
        "usdPerMonth": estimate_document(difference.usd_per_month),
        "restartsPerDay": estimate_document(difference.restarts_per_day),
    }
