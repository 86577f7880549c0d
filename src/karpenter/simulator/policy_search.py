"""The search of ``karpenter tune``: which values of the parameters give the best trade of cost against restarts.

The optimiser is Optuna's tree-structured Parzen estimator with two goals. It is asked for a batch of candidates, the batch is
evaluated by whatever executor, and the results are told in the order of asking: the same seed gives the same search, however
many processes evaluate it. A batch that had to wait for nothing would learn sooner but depend on which run ends first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from karpenter.simulator.parameter_space import Parameter, ParameterSpace, Values, number_text
from karpenter.simulator.policy_comparison import Estimate, estimate
from karpenter.simulator.simulation_report import SimulationReport
from karpenter.simulator.workload import WorkloadError

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

#: So many candidates are chosen before any of them is known. Fixed, so that the search does not depend on the machine.
BATCH_SIZE = 8


@dataclass(frozen=True, slots=True)
class PolicyCandidate:
    """A policy of the search. ``number`` counts from 1; 0 is the profile itself, whose ``values`` are empty."""

    number: int
    values: Values

    @property
    def name(self) -> str:
        """The name that its policy file gets."""
        return f"candidate-{self.number}" if self.number else "profile"


@dataclass(frozen=True, slots=True)
class CandidateFigures:
    """What a candidate costs over all seeds. ``wait_p95_seconds``: of arriving pods, the worst seed; ``still_waiting``: pods.

    ``bound_ratio``: cost over the lower bound; None where a bound is 0.
    """

    candidate: PolicyCandidate
    usd_per_month: Estimate
    restarts_per_day: Estimate
    bound_ratio: float | None
    wait_p95_seconds: float
    still_waiting: int


def candidate_figures(candidate: PolicyCandidate, reports: Sequence[SimulationReport]) -> CandidateFigures:
    """The figures of a candidate from its reports, one of each seed."""
    return CandidateFigures(
        candidate,
        estimate([report.cost_per_month for report in reports]),
        estimate([report.restarts_per_day for report in reports]),
        _mean_ratio(reports),
        max(report.arrivals.p95_seconds for report in reports),
        sum(report.still_waiting for report in reports),
    )


def _mean_ratio(reports: Sequence[SimulationReport]) -> float | None:
    known = [report.bound_ratio for report in reports if report.bound_ratio is not None]
    return sum(known) / len(known) if len(known) == len(reports) else None


Evaluate = Callable[[Sequence[PolicyCandidate]], Sequence[CandidateFigures]]


def search_policies(space: ParameterSpace, trials: int, seed: int, evaluate: Evaluate) -> Iterator[CandidateFigures]:
    """The profile and then so many candidates, batch by batch. Raises ``WorkloadError`` without Optuna."""
    study = _study(seed)
    yield from evaluate([PolicyCandidate(0, {})])
    evaluated: dict[tuple[tuple[str, str], ...], CandidateFigures] = {}
    for first in range(0, trials, BATCH_SIZE):
        asked = [study.ask() for _ in range(min(BATCH_SIZE, trials - first))]
        candidates = [PolicyCandidate(trial.number + 1, _suggested(trial, space.parameters)) for trial in asked]
        fresh: dict[tuple[tuple[str, str], ...], PolicyCandidate] = {}
        for candidate in candidates:
            if _key(candidate) not in evaluated:
                fresh.setdefault(_key(candidate), candidate)
        for figures in evaluate(list(fresh.values())):
            evaluated[_key(figures.candidate)] = figures
            yield figures
        for trial, candidate in zip(asked, candidates, strict=True):
            told = evaluated[_key(candidate)]
            study.tell(trial, [told.usd_per_month.mean, told.restarts_per_day.mean])


def _key(candidate: PolicyCandidate) -> tuple[tuple[str, str], ...]:
    return tuple(candidate.values.items())


def _study(seed: int) -> Study:
    try:
        import optuna
    except ImportError:
        raise WorkloadError("karpenter tune needs Optuna: pip install 'karpenter[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    return optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)


def _suggested(trial: Trial, parameters: Mapping[str, Parameter]) -> dict[str, str]:
    return {name: _suggestion(trial, name, parameter) for name, parameter in parameters.items()}


def _suggestion(trial: Trial, name: str, parameter: Parameter) -> str:
    if parameter.choices is not None:
        return str(trial.suggest_categorical(name, parameter.choices))
    low, high = parameter.low or 0.0, parameter.high or 0.0
    return number_text(trial.suggest_float(name, low, high, step=parameter.step, log=parameter.log))


def pareto_front(results: Sequence[CandidateFigures]) -> tuple[CandidateFigures, ...]:
    """Those than which none costs less or restarts fewer pods without being worse in the other, cheapest first.

    Of equal ones it is the first. A candidate that leaves more pods waiting than the profile, the first result, is none: it
    would be cheap for that.
    """
    front: list[CandidateFigures] = []
    for figures in sorted(results, key=_by_cost):
        restarts_fewer = not front or figures.restarts_per_day.mean < front[-1].restarts_per_day.mean
        if restarts_fewer and figures.still_waiting <= results[0].still_waiting:
            front.append(figures)
    return tuple(front)


def _by_cost(figures: CandidateFigures) -> tuple[float, float, int]:
    return figures.usd_per_month.mean, figures.restarts_per_day.mean, figures.candidate.number


def recommended(results: Sequence[CandidateFigures]) -> CandidateFigures | None:
    """The cheapest candidate with no more restarts than the profile, the first result, if it costs less; otherwise None."""
    if not results:
        return None
    profile = results[0]
    gentle = [
        figures
        for figures in pareto_front(results)
        if figures.restarts_per_day.mean <= profile.restarts_per_day.mean
        and figures.usd_per_month.mean < profile.usd_per_month.mean
    ]
    return gentle[0] if gentle else None
