"""Instance types of NodePools whose hosts a MachineNodeClass lists: their types and prices are those of the hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import MACHINE_NODE_CLASS
from karpenter.api.machine_node_class import MachineNodeClass
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.render_common import count_text
from karpenter.cli.terminal import WrongInput
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.solution import Solution


def buys_hosts(pool: NodePool) -> bool:
    """Whether the NodePool has a MachineNodeClass."""
    return MACHINE_NODE_CLASS.is_kind_of(pool.spec.template.spec.node_class_ref)


def host_types(objects: ClusterObjects) -> Mapping[str, tuple[InstanceType, ...]]:
    """The types by MachineNodeClass; hosts in use are not available. Raises ``WrongInput`` for hosts that cannot be used."""
    if not objects.machine_node_classes:
        return {}
    from karpenter.providers.machines.machine_hosts import instance_types

    types: dict[str, tuple[InstanceType, ...]] = {}
    for node_class in objects.machine_node_classes:
        name = node_class.metadata.name
        try:
            types[name] = instance_types(node_class.spec.hosts, _busy_hosts(node_class))
        except ValueError as error:
            raise WrongInput(f"MachineNodeClass {name}: {error}") from None
    return types


def missing_hosts(objects: ClusterObjects, plan: Solution) -> Iterator[str]:
    """A line for each type of which the plan launches more nodes than hosts are free: a type does not say how many there are."""
    if not objects.machine_node_classes:
        return
    free = _free_hosts(objects)
    class_names = {
        pool.metadata.name: pool.spec.template.spec.node_class_ref.name for pool in filter(buys_hosts, objects.pools)
    }
    wanted = Counter(
        (class_names[claim.node_pool], claim.instance_types[0])
        for claim in plan.new_claims
        if claim.node_pool in class_names
    )
    for (node_class, name), count in sorted(wanted.items()):
        if count > free[node_class, name]:
            yield (
                f"MachineNodeClass {node_class}: the plan launches {count_text(count, 'node')} of type {name}, with "
                f"{count_text(free[node_class, name], 'such host')} free: the other pods wait, or go to dearer hosts"
            )


def _free_hosts(objects: ClusterObjects) -> Counter[tuple[str, str]]:
    """Hosts that are not in use, by MachineNodeClass and instance type."""
    from karpenter.providers.machines.machine_hosts import host_labels

    free: Counter[tuple[str, str]] = Counter()
    for node_class in objects.machine_node_classes:
        busy = _busy_hosts(node_class)
        for host in node_class.spec.hosts:
            if host.name not in busy:
                free[node_class.metadata.name, host_labels(host)[labels.INSTANCE_TYPE]] += 1
    return free


def _busy_hosts(node_class: MachineNodeClass) -> frozenset[str]:
    return frozenset(entry.host for entry in node_class.status.in_use)
