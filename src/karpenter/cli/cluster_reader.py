"""The objects of a running cluster, as its API server lists them, and writes to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from karpenter.api import kinds
from karpenter.api.apps import DaemonSet
from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.cli.cluster_objects import DEVICE_KINDS, ClusterObjects, PlanObject
from karpenter.cli.terminal import WRONG_INPUT, CommandError, print_error
from karpenter.kube import config, errors
from karpenter.kube.client_settings import KubeClientSettings
from karpenter.kube.error_messages import explain_error
from karpenter.kube.optional_kinds import OptionalKindsReader
from karpenter.kube.protocol import Kube, Reader
from karpenter.kube.version_fallback import VersionFallbackReader
from karpenter.model import freezes, runtime_validation

if TYPE_CHECKING:
    from karpenter.kube.client import KubeClient

A = TypeVar("A")
#: Whether the API server stores what is written; the values are kubectl's.
DryRun = Literal["none", "server"]
T = TypeVar("T", bound=Wire)


class ClusterUnreachable(CommandError):
    """The cluster could not be read; the text is one line with what to do about it."""


class WrongConnection(ClusterUnreachable):
    """The kubeconfig or the context that an option names cannot be used."""

    exit_code = WRONG_INPUT


def read_cluster(settings: KubeClientSettings, extra_kinds: Iterable[Kind[Wire]] = ()) -> ClusterObjects:
    """What a plan needs of the cluster, and objects of ``extra_kinds``. Raises ``ClusterUnreachable``.

    Objects that do not decode are left out and have their line in ``problems``: one bad object stops no plan.
    """
    return query_cluster(settings, lambda client: list_plan_objects(client, extra_kinds))


def read_pools_and_nodes(settings: KubeClientSettings) -> ClusterObjects:
    """The cluster's NodePools, NodeClaims and Nodes, and the freeze over it. Raises ``ClusterUnreachable``."""
    return query_cluster(settings, list_pools_and_nodes)


def query_cluster(settings: KubeClientSettings, query: Callable[[Kube], Awaitable[A]]) -> A:
    """The result of a query to the cluster. Raises ``ClusterUnreachable`` where it is refused or gets no answer."""
    return _ask(_connection(settings), config.connect, query)


def change_cluster(settings: KubeClientSettings, dry_run: DryRun, change: Callable[[Kube], Awaitable[A]]) -> A:
    """The result of a change to the cluster, which standard error names before. Raises ``ClusterUnreachable`` as a query."""
    connection = _connection(settings)
    print_error(f"cluster: context {connection.context} of {connection.source}, server {connection.server}")
    connect = config.connect_for_dry_run if dry_run == "server" else config.connect
    return _ask(connection, connect, change)


def _connection(settings: KubeClientSettings) -> config.Connection:
    try:
        return config.load(settings.kubeconfig, settings.context)
    except config.ConfigError as error:
        # A file that the environment names is the environment's fault.
        is_named = settings.context or settings.kubeconfig != os.environ.get("KUBECONFIG", "")
        raise (WrongConnection if is_named else ClusterUnreachable)(" ".join(str(error).split())) from error


def _ask(
    connection: config.Connection,
    connect: Callable[[config.Connection], KubeClient],
    query: Callable[[Kube], Awaitable[A]],
) -> A:
    async def ask() -> A:
        async with connect(connection) as client:
            try:
                return await query(client)
            except errors.KubeError:
                await _end_other_calls()
                raise

    try:
        return asyncio.run(ask())
    except config.ConfigError as error:
        raise ClusterUnreachable(" ".join(str(error).split())) from error
    except errors.KubeError as error:
        raise ClusterUnreachable(" ".join(explain_error(error, connection.server).split())) from error


async def _end_other_calls() -> None:
    """Calls made beside the one that failed end, whatever they answer: one line about the first is enough."""
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def list_plan_objects(reader: Reader, extra_kinds: Iterable[Kind[Wire]] = ()) -> ClusterObjects:
    """All objects a plan reads, and those of ``extra_kinds``; of ConfigMaps only the freeze. Raises ``errors.KubeError``."""
    objects = ClusterObjects(from_cluster=True)
    optional = OptionalKindsReader(reader)
    devices = OptionalKindsReader(VersionFallbackReader(reader, kinds.OLDER_DEVICE_VERSIONS))
    extra_lists = [
        _list_freeze(reader, objects)
        if kind.name == kinds.CONFIG_MAP.name
        else _list_kind(devices if kind in DEVICE_KINDS else optional, kind, objects)
        for kind in {(kind.api_version, kind.name, kind.type): kind for kind in extra_kinds}.values()
    ]
    await asyncio.gather(
        _list_nodes_and_pods(reader, objects),
        _list_storage(reader, objects),
        _list_node_classes(reader, objects),
        *extra_lists,
    )
    _drop_unreadable(objects)
    return objects


async def list_pools_and_nodes(reader: Reader) -> ClusterObjects:
    """The objects that budgets depend on. Raises ``errors.KubeError``."""
    objects = ClusterObjects(from_cluster=True)
    objects.pools, objects.claims, objects.nodes, _ = await asyncio.gather(
        _list(reader, kinds.NODE_POOL, objects),
        _list(reader, kinds.NODE_CLAIM, objects),
        _list(reader, kinds.NODE, objects),
        _list_freeze(reader, objects),
    )
    return objects


async def _list_freeze(reader: Reader, objects: ClusterObjects) -> None:
    try:
        objects.config_maps.append(
            await reader.get(kinds.CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, freezes.FREEZE_NAMESPACE)
        )
    except errors.NotFound:
        return


async def _list_nodes_and_pods(reader: Reader, objects: ClusterObjects) -> None:
    (
        objects.pools,
        objects.claims,
        objects.nodes,
        objects.daemon_sets,
        objects.budgets,
        objects.pods,
    ) = await asyncio.gather(
        _list(reader, kinds.NODE_POOL, objects),
        _list(reader, kinds.NODE_CLAIM, objects),
        _list(reader, kinds.NODE, objects),
        _list(reader, kinds.DAEMON_SET, objects),
        _list(reader, kinds.POD_DISRUPTION_BUDGET, objects),
        _list(reader, kinds.POD, objects),
    )
    objects.namespaces = await _list(reader, kinds.NAMESPACE, objects)


async def _list_storage(reader: Reader, objects: ClusterObjects) -> None:
    storage = OptionalKindsReader(reader)
    objects.volume_claims, objects.volumes, objects.storage_classes, objects.csi_nodes = await asyncio.gather(
        _list(reader, kinds.PERSISTENT_VOLUME_CLAIM, objects),
        _list(reader, kinds.PERSISTENT_VOLUME, objects),
        _list(storage, kinds.STORAGE_CLASS, objects),
        _list(storage, kinds.CSI_NODE, objects),
    )


async def _list_node_classes(reader: Reader, objects: ClusterObjects) -> None:
    optional = OptionalKindsReader(reader)
    objects.node_classes, objects.kwok_node_classes, objects.machine_node_classes = await asyncio.gather(
        _list(optional, kinds.EC2_NODE_CLASS, objects),
        _list(optional, kinds.KWOK_NODE_CLASS, objects),
        _list(optional, kinds.MACHINE_NODE_CLASS, objects),
    )


async def _list_kind(reader: Reader, kind: Kind[Wire], objects: ClusterObjects) -> None:
    for wire in await _list(reader, kind, objects):
        objects.add(cast(PlanObject, wire))


async def _list(reader: Reader, kind: Kind[T], objects: ClusterObjects) -> list[T]:
    listing = await reader.list(kind)
    for bad in listing.undecodable:
        name = "/".join(part for part in (bad.namespace, bad.name) if part)
        objects.problems.append(f"{bad.kind} {name} is left out: {' '.join(bad.error.split())}")
    return list(listing.items)


def _drop_unreadable(objects: ClusterObjects) -> None:
    """Leave out pools and DaemonSets whose quantities cannot be read; pods and nodes are checked as they are added."""
    objects.pools = [pool for pool in objects.pools if _is_readable(pool, objects)]
    objects.daemon_sets = [daemon_set for daemon_set in objects.daemon_sets if _is_readable(daemon_set, objects)]


def _is_readable(obj: NodePool | DaemonSet, objects: ClusterObjects) -> bool:
    findings = runtime_validation.check_quantities(obj)
    for finding in findings:
        objects.problems.append(f"{type(obj).__name__} {obj.metadata.name} is left out: {finding}")
    return not findings
