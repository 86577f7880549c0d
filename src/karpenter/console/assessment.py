"""What takes a viewer longer than a view: reasons of pods that wait, and the price bound. A pure function, fit for a thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from karpenter.console.console_input import ConsoleInput
from karpenter.console.pending_pods import pod_placements
from karpenter.console.price_bound import price_bound_per_hour
from karpenter.disruption.decide.disruption_problem import DisruptionOptions
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.search.linear_program import load_solver
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from karpenter.state.snapshot import PodKey


@dataclass(frozen=True)
class Assessment:
    """``placements`` of pods that wait, by namespace and name; ``bound_per_hour`` in USD, None where it is not known."""

    placements: Mapping[PodKey, str] = field(default_factory=dict)
    bound_per_hour: float | None = None


def assess(given: ConsoleInput, options: DisruptionOptions) -> Assessment:
    """What the next scheduling pass would do, unless ``given`` says what the last one did; and what the pods cost at least."""
    if not given.indexes:
        return Assessment()
    placements = given.placements or pod_placements(next_plan(given, options))
    return Assessment(placements, price_bound_per_hour(given) or None)


def next_plan(given: ConsoleInput, options: DisruptionOptions) -> Solution:
    """The next scheduling pass."""
    load_solver()
    return solve(build_problem(given.snapshot, given.indexes, given.now, options.provisioning), given.indexes)
