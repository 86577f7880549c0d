"""Instance types of NodePools whose hosts a MachineNodeClass lists: their types and prices are those of the hosts."""

from __future__ import annotations

from collections.abc import Mapping

from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import MACHINE_NODE_CLASS
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.terminal import WrongInput
from karpenter.instancetypes.instance_type import InstanceType


def uses_hosts(pool: NodePool) -> bool:
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
            types[name] = instance_types(
                name, node_class.spec.hosts, {entry.host for entry in node_class.status.in_use}
            )
        except ValueError as error:
            raise WrongInput(f"MachineNodeClass {name}: {error}") from None
    return types
