"""The result of ``karpenter tune``: the Pareto front of cost and restarts, as a page, Markdown, JSON and policy files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

import msgspec
import yaml

from karpenter.cli.render_common import Json, WidePage, ratio_text
from karpenter.cli.render_sections import Section, estimate_document, sections_markdown, with_confidence, write_sections
from karpenter.cli.tune_runner import TuneResult
from karpenter.model.texts import count_text, days_text
from karpenter.simulator.parameter_space import POOLS, policy_file
from karpenter.simulator.policy_search import CandidateFigures, PolicyCandidate, pareto_front, recommended


def write(result: TuneResult, out: TextIO) -> None:
    """The page for people; wide pages have every candidate."""
    write_sections(_sections(result, is_wide=isinstance(out, WidePage)), closing_lines(result), out)


def markdown(result: TuneResult) -> str:
    """The same tables as Markdown."""
    return sections_markdown(_sections(result, is_wide=False), closing_lines(result))


def front_names(result: TuneResult) -> list[str]:
    """The candidates on the front."""
    return [f"policy/{figures.candidate.name}" for figures in pareto_front(result.figures)]


def document(result: TuneResult) -> Json:
    """All candidates with their policies; ``onFront`` marks the front."""
    front = {figures.candidate.number for figures in pareto_front(result.figures)}
    best = recommended(result.figures)
    return {
        "formatVersion": "1.0",
        "workload": result.workload,
        "days": round(result.days, 3),
        "seeds": result.seeds,
        "partial": result.is_partial,
        "recommended": None if best is None else best.candidate.name,
        "candidates": [_candidate_document(result, figures, front) for figures in result.figures],
    }


def policy_yaml(result: TuneResult, candidate: PolicyCandidate) -> str:
    """The policy file of a candidate, for ``karpenter simulate --policy``."""
    pools = candidate.values.get(POOLS)
    head = f"# NodePools: {pools}\n" if pools else ""
    return head + yaml.safe_dump(_policy_document(result, candidate), sort_keys=False)


def closing_lines(result: TuneResult) -> list[str]:
    """The recommendation, in a sentence."""
    if not result.figures:
        return ["No candidate was finished."]
    profile, best = result.figures[0], recommended(result.figures)
    name = f"profile {result.space.profile}"
    if best is None:
        return [f"No candidate is cheaper than {name} without more restarts."]
    saving = profile.usd_per_month.mean - best.usd_per_month.mean
    text = (
        f"{best.candidate.name} costs ${saving:,.0f} per month less than {name}, with "
        f"{best.restarts_per_day.mean:.1f} instead of {profile.restarts_per_day.mean:.1f} restarts per day."
    )
    check = "Compare it with other seeds before you use it: karpenter simulate --compare with --seeds 10."
    return [f"{text} {check}"]


def _sections(result: TuneResult, *, is_wide: bool) -> Iterable[Section]:
    front = pareto_front(result.figures)
    yield _figures_section(_title(result, front), front)
    yield _values_section(front)
    if is_wide:
        yield _figures_section("all candidates", result.figures)
        yield _values_section(result.figures)


def _title(result: TuneResult, front: tuple[CandidateFigures, ...]) -> str:
    tried = count_text(max(0, len(result.figures) - 1), "candidate")
    seeds = count_text(result.seeds, "seed")
    return f"{result.workload}: {days_text(result.days)}, {seeds}, {tried} tried, {len(front)} on the front"


def _figures_section(title: str, figures: Iterable[CandidateFigures]) -> Section:
    heading = ("policy", "per month", "restarts per day", "wait p95", "cost / bound")
    return Section(title, heading, [_figures_row(each) for each in figures])


def _figures_row(figures: CandidateFigures) -> tuple[str, ...]:
    return (
        figures.candidate.name,
        with_confidence(f"${figures.usd_per_month.mean:,.1f}", figures.usd_per_month),
        with_confidence(f"{figures.restarts_per_day.mean:,.1f}", figures.restarts_per_day),
        f"{figures.wait_p95_seconds:.0f}s",
        ratio_text(figures.bound_ratio),
    )


def _values_section(figures: Iterable[CandidateFigures]) -> Section:
    rows = [(each.candidate.name, _values_text(each.candidate)) for each in figures]
    return Section("what they change", ("policy", "values"), rows)


def _values_text(candidate: PolicyCandidate) -> str:
    return ", ".join(f"{name} {value}" for name, value in candidate.values.items()) or "nothing"


def _candidate_document(result: TuneResult, figures: CandidateFigures, front: set[int]) -> Json:
    candidate = figures.candidate
    return {
        "name": candidate.name,
        "onFront": candidate.number in front,
        "usdPerMonth": estimate_document(figures.usd_per_month),
        "restartsPerDay": estimate_document(figures.restarts_per_day),
        "costOverBound": None if figures.bound_ratio is None else round(figures.bound_ratio, 3),
        "waitP95Seconds": round(figures.wait_p95_seconds, 3),
        "stillWaiting": figures.still_waiting,
        "nodePoolsFile": candidate.values.get(POOLS),
        "policy": _policy_document(result, candidate),
    }


def _policy_document(result: TuneResult, candidate: PolicyCandidate) -> Json:
    fields = msgspec.to_builtins(policy_file(result.space.profile, candidate.values))
    return {key: value for key, value in fields.items() if value not in (None, {})}
