"""NodePools of field reports, written by ``karpenter convert``, with a simulated node class."""

from __future__ import annotations

from pathlib import Path

import msgspec

from karpenter.api import kinds
from karpenter.api.apps import Deployment
from karpenter.api.karpenter import NodePool
from karpenter.cli.convert_input import parse_input
from karpenter.cli.manifest_documents import SourceContent
from karpenter.conversion.drafts import InputObject
from karpenter.conversion.manifests import convert_manifests
from karpenter.instancetypes.ec2_packaged_types import packaged_instance_types
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import conditions
from support.builders import NODE_CLASS
from support.consolidation_cases import deployment
from support.older_manifests import WITH_ROLE
from support.virtual_cluster import VirtualCluster, until

MANIFESTS = Path(__file__).parents[1] / "unit" / "conversion" / "manifests"


def converted_pool(file: str) -> NodePool:
    """The NodePool of a report's manifest, with another node class."""
    parts = parse_input(SourceContent(file, (MANIFESTS / f"{file}.yaml").read_bytes()))
    inputs = [part for part in parts if isinstance(part, InputObject)]
    converted = convert_manifests(inputs, WITH_ROLE)
    (made,) = (one for one in converted.objects if one["kind"] == "NodePool")
    pool = kinds.NODE_POOL.decode(msgspec.json.encode(made))
    template = pool.spec.template
    spec = msgspec.structs.replace(template.spec, node_class_ref=NODE_CLASS)
    changed = msgspec.structs.replace(pool.spec, template=msgspec.structs.replace(template, spec=spec))
    return msgspec.structs.replace(pool, spec=changed)


def types_named(region: str, *names: str) -> tuple[InstanceType, ...]:
    """EC2 instance types by name."""
    return tuple(instance_type for instance_type in packaged_instance_types(region) if instance_type.name in names)


def pinned(name: str, replicas: int, pool: str) -> Deployment:
    """A Deployment whose pods run on nodes of one NodePool."""
    made = deployment(name, replicas)
    template = made.spec.template
    spec = msgspec.structs.replace(template.spec, node_selector={"karpenter.sh/nodepool": pool})
    changed = msgspec.structs.replace(made.spec, template=msgspec.structs.replace(template, spec=spec))
    return msgspec.structs.replace(made, spec=changed)


async def begin(cluster: VirtualCluster, *pools: NodePool) -> None:
    """Create these NodePools on simulated instances; wait until they are ready."""
    cluster.scheduled()
    await cluster.node_class(node_registration_delay="2s")
    for pool in pools:
        await cluster.kube.create(kinds.NODE_POOL, pool)
    await cluster.start()
    for pool in pools:
        await until(lambda name=pool.metadata.name: _is_ready(cluster, name))


async def _is_ready(cluster: VirtualCluster, name: str) -> bool:
    pool = await cluster.kube.get(kinds.NODE_POOL, name)
    return conditions.is_true(pool.status.conditions, conditions.READY)


async def nodes_of(cluster: VirtualCluster, pool: str) -> list[str]:
    """Names of the Nodes of a NodePool."""
    nodes = await cluster.all(kinds.NODE)
    return [node.metadata.name for node in nodes if node.metadata.labels.get("karpenter.sh/nodepool") == pool]


async def is_running(cluster: VirtualCluster, app: str, count: int) -> bool:
    """Whether exactly ``count`` pods of a Deployment exist, and all run."""
    pods = [pod for pod in await cluster.all(kinds.POD) if pod.metadata.labels.get("app") == app]
    return len(pods) == count and all(pod.status.phase == "Running" for pod in pods)
