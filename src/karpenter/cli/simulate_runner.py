"""Runs the studies of ``karpenter simulate``: reads the input, runs every policy with every seed, shows how far it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from karpenter.api.apps import DaemonSet
from karpenter.api.core import Pod
from karpenter.api.karpenter import NodeClassReference, NodePool
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.api.meta import ObjectMeta
from karpenter.cli import planning
from karpenter.cli.instance_type_sources import EC2_WELL_KNOWN_LABELS, FileTypes, choose_source
from karpenter.cli.planning_options import InputOptions
from karpenter.cli.simulate_options import SimulateOptions
from karpenter.cli.terminal import WrongInput
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.model import labels
from karpenter.runtime import logging
from karpenter.settings import Settings
from karpenter.simulator import simulation_run
from karpenter.simulator.cluster_workload import LoadPattern, cluster_workload
from karpenter.simulator.cost_bound import CostBound, cost_bound
from karpenter.simulator.policy import Policy, read_policy
from karpenter.simulator.scenario_file import Scenario, read_scenario, read_world, scenario_workload
from karpenter.simulator.simulation_report import SimulationReport, StudyLabels, summarize_study
from karpenter.simulator.simulation_run import Study, run_study
from karpenter.simulator.trace_file import TraceWindow, read_trace
from karpenter.simulator.workload import Workload, WorkloadError
from karpenter.simulator.world import World

_NODE_CLASS = KWOKNodeClass(metadata=ObjectMeta(name="simulated"))
_CLASS_REFERENCE = NodeClassReference(group="karpenter.kwok.sh", kind="KWOKNodeClass", name="simulated")
_DAY_SECONDS = 86_400
_CLUSTER_DAYS = 7.0


@dataclass(frozen=True)
class SimulationResult:
    """The reports of each policy, in the order of the policies and of the seeds."""

    reports: tuple[tuple[SimulationReport, ...], ...]

    @property
    def is_partial(self) -> bool:
        """Whether a run was interrupted."""
        return any(report.is_partial for own in self.reports for report in own)


@dataclass(frozen=True)
class _Market:
    """NodePools and what they can buy, and the pods that were read with them."""

    pools: tuple[NodePool, ...]
    daemon_sets: tuple[DaemonSet, ...]
    types: Sequence[InstanceType]
    index: TypeIndex
    pods: tuple[Pod, ...]


def run_simulation(options: SimulateOptions, settings: Settings) -> SimulationResult:
    """Run every policy with every seed; after Ctrl-C only what was run so far. Raises ``WorkloadError`` and ``WrongInput``."""
    policies = [read_policy(name) for name in options.policies]
    scenario = read_scenario(options.scenario) if options.scenario else None
    world = _world(options, scenario)
    market = _read_market(options, settings)
    workloads = {seed: _workload(options, scenario, market, seed) for seed in options.seeds}
    runs = [(policy, seed) for seed in options.seeds for policy in policies]
    reports: dict[str, list[SimulationReport]] = {policy.name: [] for policy in policies}
    bounds: dict[int, CostBound] = {}
    with _quiet_logs(), _shown_progress() as show:
        for policy, seed in runs:
            if seed not in bounds:
                bounds[seed] = _bound(workloads[seed], market)
            study = _study(workloads[seed], market, policy)
            report = _run(replace(study, world=world, seed=seed), bounds[seed], show)
            reports[policy.name].append(report)
            if report.is_partial:
                break
    return SimulationResult(tuple(tuple(own) for own in reports.values() if own))


def _workload(options: SimulateOptions, scenario: Scenario | None, market: _Market, seed: int) -> Workload:
    if scenario is not None:
        return scenario_workload(scenario, Path(options.scenario).stem, seed, options.days)
    if options.trace is not None:
        return read_trace(options.trace, TraceWindow(options.from_day, options.days))
    days = _CLUSTER_DAYS if options.days is None else options.days
    return cluster_workload(market.pods, LoadPattern(options.pattern), seed, days)


def _world(options: SimulateOptions, scenario: Scenario | None) -> World:
    if options.world is not None:
        return read_world(options.world)
    return scenario.world if scenario is not None else World()


def _read_market(options: SimulateOptions, settings: Settings) -> _Market:
    file_types = FileTypes(settings.instance_types_file_path) if settings.instance_types_file_path else None
    well_known = EC2_WELL_KNOWN_LABELS if file_types is None else file_types.well_known_labels
    text = None
    if not options.filename and not options.from_cluster:
        text = (resources.files("karpenter.simulator") / "default_pool.yaml").read_text(encoding="utf-8")
    input_options = InputOptions(list(options.filename) or None, region=options.region, text=text)
    objects = planning.load_objects(input_options, well_known, settings)
    planning.report_input_problems(objects, skip_invalid=False)
    if not objects.pools:
        raise WrongInput(f"{', '.join(options.filename) or 'the cluster'}: there is no NodePool in it")
    source = file_types or choose_source(objects, input_options, settings, os.environ)
    types = source.types()
    index = TypeIndex(types, well_known_labels_of(types) | labels.WELL_KNOWN)
    return _Market(tuple(map(_simulated, objects.pools)), tuple(objects.daemon_sets), types, index, tuple(objects.pods))


def _simulated(pool: NodePool) -> NodePool:
    """The NodePool with the node class of the simulated cloud, and without a status."""
    template = pool.spec.template
    spec = msgspec.structs.replace(template.spec, node_class_ref=_CLASS_REFERENCE)
    own = msgspec.structs.replace(pool.spec, template=msgspec.structs.replace(template, spec=spec))
    metadata = ObjectMeta(name=pool.metadata.name, labels=pool.metadata.labels, annotations=pool.metadata.annotations)
    return NodePool(metadata=metadata, spec=own)


def _bound(workload: Workload, market: _Market) -> CostBound:
    bound = cost_bound(workload, market.pools, market.index)
    if len(bound.unschedulable) == len(workload.pods):
        raise WorkloadError(
            "no NodePool can hold any of the pods: compare their requests with the NodePools' requirements"
        )
    return bound


def _study(workload: Workload, market: _Market, policy: Policy) -> Study:
    return Study(workload, market.pools, (_NODE_CLASS,), market.daemon_sets, market.types, policy)


def _run(study: Study, bound: CostBound, show: _ShowProgress) -> SimulationReport:
    labels_of_run = StudyLabels(study.workload.name, study.policy.name, study.seed)
    on_progress = show(f"{labels_of_run.policy}, seed {study.seed}", study.workload.duration_seconds)
    return summarize_study(labels_of_run, run_study(study, on_progress), bound)


# -- showing ----------------------------------------------------------------------------------------------------------------

_OnProgress = Callable[[simulation_run.Progress], None]
_ShowProgress = Callable[[str, int], _OnProgress]


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """The controllers' log goes nowhere."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        logging.configure("error", nowhere)
        yield


@contextmanager
def _shown_progress() -> Iterator[_ShowProgress]:
    """A bar on standard error for each run, where that is a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("day {task.fields[day]:.1f}, {task.fields[nodes]} nodes, ${task.fields[cost]:,.2f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:

        def show(title: str, duration_seconds: int) -> _OnProgress:
            task = progress.add_task(title, total=duration_seconds, day=0.0, nodes=0, cost=0.0)
            return lambda state: _advance(progress, task, state)

        yield show


def _advance(progress: Progress, task: TaskID, state: simulation_run.Progress) -> None:
    progress.update(
        task, completed=state.seconds, day=state.seconds / _DAY_SECONDS, nodes=state.nodes, cost=state.cost_usd
    )
