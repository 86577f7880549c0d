"""What commands that compute plans share: reading objects from files or the cluster, and the decision."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import typer

from karpenter.cli import cluster_objects
from karpenter.cli.terminal import WRONG_INPUT, WrongInput, print_error
from karpenter.model.feature_gates import FeatureGate
from karpenter.model.texts import count_text

if TYPE_CHECKING:
    from datetime import datetime

    from karpenter.api.karpenter import NodePool
    from karpenter.api.kinds import Kind
    from karpenter.api.meta import Wire
    from karpenter.cli.cluster_objects import ClusterObjects
    from karpenter.cli.instance_type_sources import FileTypes, PriceSource
    from karpenter.cli.plan_instance_types import PlanInstanceTypes
    from karpenter.cli.planning_options import InputOptions
    from karpenter.disruption.decide.disruption_preview import DisruptionPreview
    from karpenter.disruption.decide.disruption_problem import DisruptionOptions
    from karpenter.model.freezes import Freeze
    from karpenter.scheduling.problem import Problem
    from karpenter.scheduling.scheduling_options import SchedulingOptions
    from karpenter.scheduling.solution import Solution
    from karpenter.scheduling.whatif.limit_increases import LimitIncrease
    from karpenter.settings import Settings
    from karpenter.state import ClusterState
    from karpenter.state.snapshot import ClusterSnapshot
    from karpenter.state.virtual_pods import VirtualPods

W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class PlanInput:
    """What a decision is made on. ``virtual_pods``: those of capacity buffers."""

    instance_types: PlanInstanceTypes
    objects: ClusterObjects
    virtual_pods: VirtualPods
    #: For when the plan is made; None for now, with all NodePools awake.
    at: datetime | None = None

    @property
    def moment(self) -> datetime:
        """For when the plan is made."""
        from datetime import UTC, datetime

        return self.at or datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class ComputedPlan:
    """A solved problem. ``seconds``: from decoded objects to the solution."""

    problem: Problem
    solution: Solution
    seconds: float


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Without garbage collection: the process is short, and what it decodes lives until its end."""
    import gc

    gc.disable()
    try:
        yield
    finally:
        # Otherwise the first collection walks through all of it, and frees nothing.
        gc.freeze()
        gc.enable()


def load_objects(
    options: InputOptions, well_known: frozenset[str], settings: Settings, extra_kinds: tuple[Kind[Wire], ...] = ()
) -> ClusterObjects:
    """The objects of files or of a text, or without either of the cluster: those a plan needs, and those of ``extra_kinds``."""
    objects = _read_objects(options, well_known, settings, extra_kinds)
    objects.plans_gangs |= FeatureGate.GANG_SCHEDULING in settings.gates
    objects.includes_untried_pods = settings.plans_for_untried_pods
    return objects


def _read_objects(
    options: InputOptions, well_known: frozenset[str], settings: Settings, extra_kinds: tuple[Kind[Wire], ...]
) -> ClusterObjects:
    if settings.scheduler_config.default_constraints:
        extra_kinds += cluster_objects.WORKLOAD_KINDS  # only default constraints need these
    if options.filename or options.text is not None:
        from karpenter.cli import manifest_reader

        return manifest_reader.read_manifests(options, well_known, extra_kinds)
    extra_kinds += cluster_objects.gated_kinds(settings.gates)
    if not settings.ignore_dra_requests:
        extra_kinds += cluster_objects.DEVICE_KINDS
    return _read_cluster(options, settings, extra_kinds)


def _read_cluster(options: InputOptions, settings: Settings, extra_kinds: tuple[Kind[Wire], ...]) -> ClusterObjects:
    from karpenter.cli import assumed_admission, assumed_status, cluster_reader
    from karpenter.cli.workload_expansion import expand_workloads

    if options.replicas == "current":
        return cluster_reader.read_cluster(settings, extra_kinds)
    objects = cluster_reader.read_cluster(settings, extra_kinds + cluster_objects.EXPANDED_KINDS)
    assumed_admission.apply_limit_ranges(objects)
    expand_workloads(objects, options.replicas)
    assumed_status.assign_priorities(objects)
    return objects


def load_plan_input(options: InputOptions, settings: Settings, extra_kinds: tuple[Kind[Wire], ...] = ()) -> PlanInput:
    """The input of a decision, from files or the cluster. Reports what is wrong with it; may end the command."""
    from datetime import UTC, datetime

    from karpenter.api.kinds import CAPACITY_SCHEDULE
    from karpenter.cli.capacity_buffer_pods import virtual_pods_of
    from karpenter.cli.instance_type_sources import EC2_WELL_KNOWN_LABELS, choose_source
    from karpenter.cli.plan_instance_types import build_plan_types
    from karpenter.model import labels

    at = _moment_of(options, settings)
    if at is not None and options.filename is None and options.text is None:
        extra_kinds = (*extra_kinds, CAPACITY_SCHEDULE)  # type: ignore[arg-type]
    file_types = _load_file_types(settings.instance_types_file_path, options)
    well_known = EC2_WELL_KNOWN_LABELS if file_types is None else file_types.well_known_labels
    objects = load_objects(options, well_known, settings, extra_kinds)
    report_input_problems(objects, skip_invalid=options.skip_invalid)
    for line in cluster_objects.objects_behind_gates(objects, settings.gates):
        print_error(line)
    if at is None and any(labels.ASLEEP_UNTIL in pool.metadata.annotations for pool in objects.pools):
        from karpenter.cli.plan_moment import passed_over_sleep

        for line in passed_over_sleep(objects, datetime.now(UTC)):
            print_error(line)
    virtual_pods = virtual_pods_of(objects, datetime.now(UTC))
    source = file_types or choose_source(objects, options, settings, os.environ)
    _report_idle_pools(objects, source.prices)
    return PlanInput(build_plan_types(objects, source), objects, virtual_pods, at)


def _moment_of(options: InputOptions, settings: Settings) -> datetime | None:
    """The moment whose sleeping NodePools count; None where none does, as without the gate."""
    from datetime import UTC, datetime

    if options.at:
        from karpenter.cli.plan_moment import parse_moment

        return parse_moment(options.at)
    return datetime.now(UTC) if FeatureGate.CAPACITY_SCHEDULE in settings.gates else None


def _load_file_types(file: str, options: InputOptions) -> FileTypes | None:
    """The types of the file, if one is given. Raises ``WrongInput``."""
    from karpenter.cli.instance_type_sources import FileTypes

    if not file:
        return None
    if options.live_prices:
        raise WrongInput("--live-prices and --instance-types exclude each other: give one of them")
    return FileTypes(file)


def _report_idle_pools(objects: ClusterObjects, prices: PriceSource) -> None:
    """Report NodePools that would launch nothing: their node class is missing, or all their zones are of other regions."""
    from karpenter.cli.host_types import uses_hosts
    from karpenter.cli.instance_type_sources import FilePrices, HostPrices
    from karpenter.cli.plan_instance_types import missing_node_classes

    for line in missing_node_classes(objects):
        print_error(line)
    if isinstance(prices, HostPrices):
        return
    for pool in filter(uses_hosts, objects.pools):
        print_error(f"NodePool {pool.metadata.name}: its prices are the costPerHour of its hosts")
    if not isinstance(prices, FilePrices):
        from karpenter.cli.region_inference import pools_of_other_regions

        others = (pool for pool in objects.pools if not uses_hosts(pool))
        for line in pools_of_other_regions(others, prices.region_name):
            print_error(line)


def report_input_problems(objects: ClusterObjects, *, skip_invalid: bool) -> None:
    """Report what is wrong with the input; end the command where invalid objects may not be ignored."""
    report_invalid_objects(objects, skip_invalid=skip_invalid)
    for line in objects.notices:
        print_error(line)
    if objects.skipped:
        total = sum(objects.skipped.values())
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(objects.skipped.items()))
        print_error(f"ignored {count_text(total, 'object')} of kinds that planning does not use: {kinds}")
    if not objects.pools:
        where = "cluster" if objects.from_cluster else "input"
        print_error(f"no NodePool in the {where}: nothing can be launched without one; add a NodePool")


def report_invalid_objects(objects: ClusterObjects, *, skip_invalid: bool) -> None:
    """Report objects that cannot be used; end the command where they may not be ignored."""
    for line in objects.problems:
        print_error(line)
    if objects.problems and not skip_invalid and not objects.from_cluster:
        raise typer.Exit(WRONG_INPUT)


def compute_plan(plan_input: PlanInput, options: SchedulingOptions) -> ComputedPlan:
    """The plan for the objects."""

    from karpenter.scheduling.problem import build_problem
    from karpenter.scheduling.search.linear_program import load_solver
    from karpenter.scheduling.solver import solve

    load_solver()
    begun = time.perf_counter()
    indexes = plan_input.instance_types.indexes
    problem = build_problem(_plan_snapshot(plan_input), indexes, plan_input.moment, options)
    solution = solve(problem, indexes)
    return ComputedPlan(problem, solution, time.perf_counter() - begun)


def needed_limit_increases(plan_input: PlanInput, computed: ComputedPlan) -> tuple[LimitIncrease, ...]:
    """How much higher limits would have to be for all pods that they leave out."""
    if not computed.solution.unschedulable:
        return ()
    from karpenter.scheduling.solver import solve
    from karpenter.scheduling.whatif.limit_increases import limit_increases

    indexes = plan_input.instance_types.indexes
    return limit_increases(computed.problem, computed.solution, indexes, partial(solve, indexes=indexes))


def nodepool_prices(plan_input: PlanInput, computed: ComputedPlan) -> dict[str, float]:
    """USD per hour by NodePool: of the nodes there are with a known price, and of those that the plan launches."""
    from karpenter.disruption.decide.costs import NodePrices

    node_prices = NodePrices(plan_input.instance_types.indexes)
    prices: defaultdict[str, float] = defaultdict(float)
    for node in computed.problem.snapshot.nodes:
        prices[node.pool] += node_prices.price_per_hour(node) or 0.0
    for claim in computed.solution.new_claims:
        prices[claim.node_pool] += claim.price_per_hour
    return dict(prices)


def compute_disruption_preview(plan_input: PlanInput, options: DisruptionOptions) -> DisruptionPreview:
    """Which nodes would be disrupted now, and which without budgets."""

    from karpenter.disruption.decide.disruption_preview import preview_disruption
    from karpenter.scheduling.search.linear_program import load_solver

    load_solver()
    return preview_disruption(_plan_snapshot(plan_input), plan_input.instance_types.indexes, plan_input.moment, options)


def _plan_snapshot(plan_input: PlanInput) -> ClusterSnapshot:
    snapshot = plan_input.virtual_pods.added_to(cluster_state(plan_input.objects).snapshot())
    if plan_input.at is None:
        return snapshot
    from karpenter.cli.plan_moment import asleep_at

    return asleep_at(snapshot, plan_input.objects, plan_input.at)


def cluster_state(objects: ClusterObjects) -> ClusterState:
    """The cluster state the objects make up."""
    from karpenter.state import ClusterState

    state = ClusterState(lambda kind, name, why: print_error(f"{kind} {name} is left out: {why}"))
    _set_all(objects.pools, state.set_pool)
    _set_all(objects.claims, state.set_claim)
    _set_all(objects.nodes, state.set_node)
    _set_all(objects.daemon_sets, state.set_daemon_set)
    _set_all(objects.budgets, state.set_pdb)
    _set_all(objects.namespaces, state.set_namespace)
    _set_all(objects.volume_claims, state.set_volume_claim)
    _set_all(objects.volumes, state.set_volume)
    _set_all(objects.storage_classes, state.set_storage_class)
    _set_all(objects.csi_nodes, state.set_csi_node)
    if objects.devices:
        state.devices.enable()
    _set_all(objects.devices, state.devices.set_object)
    if objects.plans_gangs:
        state.gangs.enable()
    _set_all(objects.gangs, state.gangs.set_object)
    _set_all(objects.services, state.workload_selectors.set_service)
    _set_all(objects.owners, state.workload_selectors.set_owner)
    state.freeze = cluster_freeze(objects)
    if objects.includes_untried_pods:
        state.untried_pods.enable()
    _set_all(objects.pods, state.set_pod)
    return state


def _set_all(objects: Iterable[W], set_object: Callable[[W], object]) -> None:
    for obj in objects:
        set_object(obj)


def cluster_freeze(objects: ClusterObjects) -> Freeze | None:
    """The freeze over the whole cluster, if there is one among the objects."""
    from karpenter.model import freezes

    for config_map in objects.config_maps:
        if (config_map.metadata.namespace, config_map.metadata.name) == (
            freezes.FREEZE_NAMESPACE,
            freezes.FREEZE_CONFIG_MAP,
        ):
            return freezes.cluster_freeze(config_map)
    return None


def report_skipped_pools(plan: Solution, objects: ClusterObjects) -> None:
    """Report which NodePools are skipped, and why, and what static NodePools launch beside the plan."""
    from karpenter.scheduling.explain.reason_messages import skipped_pool_message

    static = {pool.metadata.name: pool for pool in objects.pools if pool.spec.replicas is not None}
    for skipped in plan.skipped_pools:
        if skipped.node_pool not in static:
            print_error(f"NodePool {skipped.node_pool} is skipped: {skipped_pool_message(skipped)}")
    for name, pool in static.items():
        print_error(f"NodePool {name} is static: {_static_pool_text(pool, objects)}, not part of this plan")


def _static_pool_text(pool: NodePool, objects: ClusterObjects) -> str:
    from karpenter.model import labels
    from karpenter.static.replicas import StaticClaim, count_replicas, scale_up

    name = pool.metadata.name
    claims = [claim for claim in objects.claims if claim.metadata.labels.get(labels.NODE_POOL) == name]
    lacking = scale_up(pool, count_replicas(StaticClaim(claim) for claim in claims))
    text = f"{count_text(pool.spec.replicas or 0, 'node')} by spec.replicas, {lacking.allowed} of them to launch"
    return f"{text} (limits.nodes allows no more)" if lacking.allowed < lacking.wanted else text
