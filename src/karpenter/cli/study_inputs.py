"""What ``karpenter simulate`` and ``karpenter tune`` read before the first run: NodePools, types, pods, the world."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec

from karpenter.api.apps import DaemonSet
from karpenter.api.core import Namespace, PodDisruptionBudget
from karpenter.api.karpenter import NodeClassReference, NodePool
from karpenter.api.kinds import KWOK_NODE_CLASS
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.api.meta import ObjectMeta
from karpenter.cli import planning
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.instance_type_sources import EC2_WELL_KNOWN_LABELS, FileTypes, choose_source
from karpenter.cli.planning_options import InputOptions
from karpenter.cli.simulate_options import CLUSTER_DAYS, StudySource
from karpenter.cli.study_start_notes import age_note, start_notes, volume_notes
from karpenter.cli.terminal import WrongInput, print_error
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.model import labels
from karpenter.settings import Settings
from karpenter.simulator.cluster_workload import (
    BEGIN_WITH_NODES,
    ClusterPods,
    LoadPattern,
    cluster_workload,
    simulated_class_name,
)
from karpenter.simulator.cost_bound import BoundSupply, CostBound, cost_bound
from karpenter.simulator.policy import Policy
from karpenter.simulator.price_drift import price_changes, priced_types
from karpenter.simulator.scenario_file import (
    Scenario,
    check_topology_keys,
    read_scenario,
    read_world,
    scenario_workload,
)
from karpenter.simulator.simulation_run import Study
from karpenter.simulator.starting_cluster import (
    FoundCluster,
    StartingCluster,
    StudyCloud,
    latest_time,
    starting_cluster,
    times_in,
)
from karpenter.simulator.starting_objects import LABELS_OF_LAUNCHED_NODES
from karpenter.simulator.trace_file import TraceWindow, read_trace
from karpenter.simulator.workload import Workload, WorkloadError
from karpenter.simulator.world import World
from karpenter.state.pod_volumes import ClusterVolumes

_NODE_CLASS = KWOKNodeClass(metadata=ObjectMeta(name="simulated"))
_CLASS_REFERENCE = NodeClassReference(
    group=KWOK_NODE_CLASS.group, kind=KWOK_NODE_CLASS.name, name=_NODE_CLASS.metadata.name
)
T = TypeVar("T", DaemonSet, Namespace)


@dataclass(frozen=True)
class StudyCluster:
    """What was read of the cluster: NodePools and their instance types, DaemonSets, pods, namespaces, budgets, and nodes."""

    pools: tuple[NodePool, ...]
    daemon_sets: tuple[DaemonSet, ...]
    types: Sequence[InstanceType]
    index: TypeIndex
    pods: ClusterPods
    namespaces: tuple[Namespace, ...]
    budgets: tuple[PodDisruptionBudget, ...]
    starting: StartingCluster = field(default_factory=StartingCluster)


@dataclass(frozen=True)
class StudyInputs:
    """What all runs share: one workload and one lower bound of each seed."""

    cluster: StudyCluster
    workloads: Mapping[int, Workload]
    bounds: Mapping[int, CostBound]
    world: World

    def study(self, policy: Policy, seed: int) -> Study:
        """The study of a policy with one of the seeds."""
        cluster = self.cluster
        return Study(
            self.workloads[seed],
            cluster.pools,
            (_NODE_CLASS,),
            cluster.daemon_sets,
            cluster.types,
            policy,
            self.world,
            seed,
            cluster.namespaces,
            cluster.budgets,
            cluster.starting,
        )


def read_inputs(source: StudySource, seeds: Sequence[int], settings: Settings) -> StudyInputs:
    """Read everything. Raises ``WorkloadError`` and ``WrongInput``."""
    scenario = read_scenario(source.scenario) if source.scenario else None
    world = _world(source, scenario)
    cluster = _read_cluster(source, settings)
    if scenario is not None:
        check_topology_keys(scenario, _node_labels(cluster))
    workloads = _workloads(source, scenario, cluster, seeds)
    return StudyInputs(cluster, workloads, _bounds(workloads, cluster, world), world)


def _node_labels(cluster: StudyCluster) -> frozenset[str]:
    """The labels that nodes of the study may have: of all launched nodes, of instance types and offerings, and of NodePools."""
    described = [each.requirements for each in cluster.types]
    described += [offering.requirements for each in cluster.types for offering in each.offerings]
    of_types = {key for each in described for key, entry in each.items() if entry.complement or entry.values}
    templates = [pool.spec.template for pool in cluster.pools]
    of_pools = {key for each in templates for key in each.metadata.labels}
    of_pools |= {
        entry.key for each in templates for entry in each.spec.requirements if entry.operator != "DoesNotExist"
    }
    return LABELS_OF_LAUNCHED_NODES | {labels.HOSTNAME} | {labels.normalise(key) for key in of_types | of_pools}


def with_node_pools(inputs: StudyInputs, source: StudySource, settings: Settings) -> StudyInputs:
    """The same workloads and world with the NodePools of another source. Raises ``WorkloadError`` and ``WrongInput``."""
    own = inputs.cluster
    read = _read_cluster(source, settings)
    cluster = replace(
        read,
        daemon_sets=_merged(own.daemon_sets, read.daemon_sets),
        namespaces=_merged(own.namespaces, read.namespaces),
        budgets=own.budgets,
    )
    return StudyInputs(cluster, inputs.workloads, _bounds(inputs.workloads, cluster, inputs.world), inputs.world)


def _merged(own: tuple[T, ...], further: tuple[T, ...]) -> tuple[T, ...]:
    """All of these objects, of those with one name the own one."""
    by_name: dict[tuple[str, str], T] = {}
    for objects in (further, own):
        by_name |= {(each.metadata.namespace, each.metadata.name): each for each in objects}
    return tuple(by_name[key] for key in sorted(by_name))


def _workloads(
    source: StudySource, scenario: Scenario | None, cluster: StudyCluster, seeds: Sequence[int]
) -> dict[int, Workload]:
    """By seed; a trace has no random numbers, so all seeds share it."""
    if scenario is not None:
        name = Path(source.scenario).stem
        return {seed: scenario_workload(scenario, name, seed, source.days) for seed in seeds}
    if source.trace is not None:
        return dict.fromkeys(seeds, read_trace(source.trace, TraceWindow(source.from_day, source.days)))
    days = CLUSTER_DAYS if source.days is None else source.days
    return {
        seed: cluster_workload(cluster.pods, LoadPattern(source.pattern or LoadPattern.DAILY), seed, days)
        for seed in seeds
    }


def _bounds(workloads: Mapping[int, Workload], cluster: StudyCluster, world: World) -> dict[int, CostBound]:
    """By seed; a workload that seeds share is bounded once, unless each seed has prices of its own."""
    if world.price_drift:
        return {seed: _drifting_bound(workload, cluster, world, seed) for seed, workload in workloads.items()}
    different = {id(workload): workload for workload in workloads.values()}
    supply = BoundSupply(cluster.pools, [cluster.index], unmanaged=cluster.starting.unmanaged)
    bounds = {key: _bound(workload, supply) for key, workload in different.items()}
    return {seed: bounds[id(workload)] for seed, workload in workloads.items()}


def _world(source: StudySource, scenario: Scenario | None) -> World:
    if source.world is not None:
        return read_world(source.world)
    return scenario.world if scenario is not None else World()


def _read_cluster(source: StudySource, settings: Settings) -> StudyCluster:
    file_types = FileTypes(settings.instance_types_file_path) if settings.instance_types_file_path else None
    well_known = EC2_WELL_KNOWN_LABELS if file_types is None else file_types.well_known_labels
    text = None
    if not source.filename and not source.from_cluster:
        text = (resources.files("karpenter.simulator") / "default_pool.yaml").read_text(encoding="utf-8")
    input_options = InputOptions(list(source.filename) or None, region=source.region, text=text)
    objects = planning.load_objects(input_options, well_known, settings)
    planning.report_input_problems(objects, skip_invalid=False)
    if not objects.pools:
        raise WrongInput(f"{', '.join(source.filename) or 'the cluster'}: there is no NodePool in it")
    types = (file_types or choose_source(objects, input_options, settings, os.environ)).types()
    index = TypeIndex(types, well_known_labels_of(types) | labels.WELL_KNOWN)
    pools = tuple(map(_simulated, objects.pools))
    starting = _starting_cluster(source, objects, StudyCloud(types, _pools_by_name(objects.pools, pools)))
    cluster_pods = ClusterPods(tuple(objects.pods), _volumes(objects), starting.running if starting.has_nodes else None)
    takes_pods = source.trace is None and not source.scenario
    for line in (*start_notes(starting), *(volume_notes(objects.pods, cluster_pods.volumes) if takes_pods else ())):
        print_error(line)
    return StudyCluster(
        pools,
        tuple(map(_simulated_daemon_set, objects.daemon_sets)),
        types,
        index,
        cluster_pods,
        _namespaces(objects),
        tuple(PodDisruptionBudget(metadata=_identity(each.metadata), spec=each.spec) for each in objects.budgets),
        starting,
    )


def _pools_by_name(read: Sequence[NodePool], simulated: Sequence[NodePool]) -> Mapping[str, tuple[NodePool, NodePool]]:
    return {own.metadata.name: (own, other) for own, other in zip(read, simulated, strict=True)}


def _starting_cluster(source: StudySource, objects: ClusterObjects, cloud: StudyCloud) -> StartingCluster:
    """The nodes that were read; none for traces and scenarios, whose pods do not run on them."""
    if source.trace is not None or source.scenario:
        return StartingCluster()
    now = datetime.now(UTC)
    taken_at = now if source.from_cluster else _file_time(objects, now)
    found = FoundCluster(
        objects.nodes,
        objects.claims,
        objects.pods,
        frozenset((each.metadata.namespace, each.metadata.name) for each in objects.daemon_sets),
        taken_at,
    )
    return starting_cluster(found, cloud, BEGIN_WITH_NODES)


def _file_time(objects: ClusterObjects, now: datetime) -> datetime:
    """When a file was made, as far as it tells. Prints what it tells where nodes have an age."""
    times = chain(times_in(objects.nodes, objects.claims, objects.pods), objects.heartbeats)
    latest = latest_time(times, now)
    if latest is not None and objects.nodes:
        print_error(age_note(latest))
    return latest or now


def _namespaces(objects: ClusterObjects) -> tuple[Namespace, ...]:
    """Those that were read, and those that other objects are in."""
    read = [_identity(each.metadata) for each in objects.namespaces]
    used = {pod.metadata.namespace for pod in objects.pods}
    used |= {budget.metadata.namespace for budget in objects.budgets}
    used |= {daemon_set.metadata.namespace for daemon_set in objects.daemon_sets}
    missing = sorted(used - {metadata.name for metadata in read})
    return tuple(Namespace(metadata=metadata) for metadata in (*read, *(ObjectMeta(name=name) for name in missing)))


def _volumes(objects: ClusterObjects) -> ClusterVolumes:
    return ClusterVolumes(
        {(claim.metadata.namespace, claim.metadata.name): claim for claim in objects.volume_claims},
        {volume.metadata.name: volume for volume in objects.volumes},
        {storage_class.metadata.name: storage_class for storage_class in objects.storage_classes},
    )


def _identity(metadata: ObjectMeta) -> ObjectMeta:
    """What the same object has before it is created: nothing that its API server gave it."""
    return ObjectMeta(
        name=metadata.name,
        namespace=metadata.namespace,
        labels=metadata.labels,
        annotations=metadata.annotations,
    )


def _simulated_daemon_set(daemon_set: DaemonSet) -> DaemonSet:
    """The DaemonSet without a status, and without the name of a PriorityClass that the simulated cluster does not have."""
    template = daemon_set.spec.template
    pod_spec = msgspec.structs.replace(template.spec, priority_class_name=simulated_class_name(template.spec))
    spec = msgspec.structs.replace(daemon_set.spec, template=msgspec.structs.replace(template, spec=pod_spec))
    return DaemonSet(metadata=_identity(daemon_set.metadata), spec=spec)


def _simulated(pool: NodePool) -> NodePool:
    """The NodePool with the node class of the simulated cloud, and without a status.

    Startup taints are left out: in a study nothing is there that takes them off, and no pod would ever run.
    """
    template = pool.spec.template
    spec = msgspec.structs.replace(template.spec, node_class_ref=_CLASS_REFERENCE, startup_taints=())
    own = msgspec.structs.replace(pool.spec, template=msgspec.structs.replace(template, spec=spec))
    return NodePool(metadata=_identity(pool.metadata), spec=own)


def _drifting_bound(workload: Workload, cluster: StudyCluster, world: World, seed: int) -> CostBound:
    well_known, duration = well_known_labels_of(cluster.types) | labels.WELL_KNOWN, workload.duration_seconds
    priced = priced_types(world.price_drift, seed, cluster.types, duration)
    indexes = (TypeIndex(each.types, well_known) for each in priced)
    changes = price_changes(world.price_drift, duration)
    return _bound(workload, BoundSupply(cluster.pools, indexes, changes, cluster.starting.unmanaged))


def _bound(workload: Workload, supply: BoundSupply) -> CostBound:
    """Raises ``WorkloadError`` where none of the pods has a place."""
    bound = cost_bound(workload, supply)
    if len(bound.unschedulable) == len(workload.pods):
        raise WorkloadError(
            "no NodePool can hold any of the pods: compare their requests with the NodePools' requirements; "
            "what node classes say, such as larger disks, is not simulated"
        )
    return bound
