"""Instance types of NodePools whose hosts a MachineNodeClass lists: their types and prices are those of the hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import MACHINE_NODE_CLASS
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.render_common import count_text
from karpenter.cli.terminal import WrongInput
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.solution import Solution


def buys_hosts(pool: NodePool) -> bool:
    """Whether the NodePool has a MachineNodeClass."""
    reference = pool.spec.template.spec.node_class_ref
    return (reference.group, reference.kind) == (MACHINE_NODE_CLASS.group, MACHINE_NODE_CLASS.name)


def host_types(objects: ClusterObjects) -> Mapping[str, tuple[InstanceType, ...]]:
    """The types by MachineNodeClass; hosts in use are not available. Raises ``WrongInput`` for hosts that cannot be used."""
    if not objects.machine_node_classes:
        return {}
    from karpenter.providers.machines.machine_hosts import instance_types

    types: dict[str, tuple[InstanceType, ...]] = {}
    for node_class in objects.machine_node_classes:
        name = node_class.metadata.name
        busy = {entry.host for entry in node_class.status.in_use}
        try:
            types[name] = instance_types(node_class.spec.hosts, busy)
        except ValueError as error:
            raise WrongInput(f"MachineNodeClass {name}: {error}") from None
    return types


def missing_hosts(objects: ClusterObjects, plan: Solution) -> Iterator[str]:
    """A line for each type of which the plan launches more nodes than hosts are free: a type does not say how many there are."""
    if not objects.machine_node_classes:
        return
    free = _free_hosts(objects)
    wanted = Counter(
        (pool.spec.template.spec.node_class_ref.name, claim.instance_types[0])
        for pool in objects.pools
        if buys_hosts(pool)
        for claim in plan.new_claims
        if claim.node_pool == pool.metadata.name
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
        busy = {entry.host for entry in node_class.status.in_use}
        for host in node_class.spec.hosts:
            if host.name not in busy:
                free[node_class.metadata.name, host_labels(host)[labels.INSTANCE_TYPE]] += 1
    return free
