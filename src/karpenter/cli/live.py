"""The objects of a running cluster, as its API server lists them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar, cast

from karpenter.api import kinds
from karpenter.api.core import DaemonSet
from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.cli.inputs import Objects, Planned
from karpenter.kube import config, errors
from karpenter.kube.explain import explain
from karpenter.kube.protocol import Kube, Reader
from karpenter.kube.where_served import WhereServed
from karpenter.model import freezes, validation

A = TypeVar("A")
T = TypeVar("T", bound=Wire)


class Unanswered(Exception):
    """The cluster could not be read; the text is one line with what to do about it."""


def read(further: Iterable[Kind[Wire]] = ()) -> Objects:
    """What a plan needs of the cluster the kubeconfig names; ``further`` kinds besides. Raises ``Unanswered``.

    Objects that do not decode are left out and have their line in ``problems``: one bad object stops no plan.
    """
    return ask(lambda client: collect(client, further))


def read_machines() -> Objects:
    """The NodePools, NodeClaims and Nodes of that cluster, and the freeze over it. Raises ``Unanswered``."""
    return ask(collect_machines)


def ask(question: Callable[[Kube], Awaitable[A]]) -> A:
    """What comes of talking to that cluster. Raises ``Unanswered`` where it does not let us, or cannot be reached."""
    try:
        connection = config.load()
        return asyncio.run(_from(connection, question))
    except config.ConfigError as error:
        raise Unanswered(" ".join(str(error).split())) from error
    except errors.KubeError as error:
        raise Unanswered(" ".join(explain(error, connection.server).split())) from error


async def _from(connection: config.Connection, question: Callable[[Kube], Awaitable[A]]) -> A:
    client = config.connect(connection)
    async with client:
        return await question(client)


async def collect(reader: Reader, further: Iterable[Kind[Wire]] = ()) -> Objects:
    """All objects a plan reads, and those of ``further`` kinds; of ConfigMaps only the freeze. Raises ``errors.KubeError``."""
    objects = Objects(live=True)
    besides = [
        _collect_freeze(reader, objects) if kind.name == kinds.CONFIG_MAP.name else _collect(reader, kind, objects)
        for kind in further
    ]
    await asyncio.gather(_collect_machines_and_pods(reader, objects), _collect_storage(reader, objects), *besides)
    _drop_unreadable(objects)
    return objects


async def collect_machines(reader: Reader) -> Objects:
    """What budgets are about. Raises ``errors.KubeError``."""
    objects = Objects(live=True)
    objects.pools, objects.claims, objects.nodes, _ = await asyncio.gather(
        _listed(reader, kinds.NODE_POOL, objects),
        _listed(reader, kinds.NODE_CLAIM, objects),
        _listed(reader, kinds.NODE, objects),
        _collect_freeze(reader, objects),
    )
    return objects


async def _collect_freeze(reader: Reader, objects: Objects) -> None:
    try:
        objects.config_maps.append(await reader.get(kinds.CONFIG_MAP, freezes.NAME, freezes.NAMESPACE))
    except errors.NotFound:
        return


async def _collect_machines_and_pods(reader: Reader, objects: Objects) -> None:
    (
        objects.pools,
        objects.claims,
        objects.nodes,
        objects.daemon_sets,
        objects.budgets,
        objects.pods,
    ) = await asyncio.gather(
        _listed(reader, kinds.NODE_POOL, objects),
        _listed(reader, kinds.NODE_CLAIM, objects),
        _listed(reader, kinds.NODE, objects),
        _listed(reader, kinds.DAEMON_SET, objects),
        _listed(reader, kinds.POD_DISRUPTION_BUDGET, objects),
        _listed(reader, kinds.POD, objects),
    )
    objects.namespaces = await _listed(reader, kinds.NAMESPACE, objects)


async def _collect_storage(reader: Reader, objects: Objects) -> None:
    storage = WhereServed(reader)
    objects.volume_claims, objects.volumes, objects.storage_classes, objects.csi_nodes = await asyncio.gather(
        _listed(reader, kinds.PERSISTENT_VOLUME_CLAIM, objects),
        _listed(reader, kinds.PERSISTENT_VOLUME, objects),
        _listed(storage, kinds.STORAGE_CLASS, objects),
        _listed(storage, kinds.CSI_NODE, objects),
    )


async def _collect(reader: Reader, kind: Kind[Wire], objects: Objects) -> None:
    for item in await _listed(reader, kind, objects):
        objects.add(cast(Planned, item))


async def _listed(reader: Reader, kind: Kind[T], objects: Objects) -> list[T]:
    listing = await reader.list(kind)
    for bad in listing.rejected:
        name = "/".join(part for part in (bad.namespace, bad.name) if part)
        objects.problems.append(f"{bad.kind} {name} is left out: {' '.join(bad.error.split())}")
    return list(listing.items)


def _drop_unreadable(objects: Objects) -> None:
    """Leave out pools and DaemonSets whose quantities cannot be read; pods and machines are checked as they are added."""
    objects.pools = [pool for pool in objects.pools if _is_readable(pool, objects)]
    objects.daemon_sets = [daemon_set for daemon_set in objects.daemon_sets if _is_readable(daemon_set, objects)]


def _is_readable(obj: NodePool | DaemonSet, objects: Objects) -> bool:
    findings = validation.check_quantities(obj)
    for finding in findings:
        objects.problems.append(f"{type(obj).__name__} {obj.metadata.name} is left out: {finding}")
    return not findings
