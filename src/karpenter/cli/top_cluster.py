"""The cluster of a kubeconfig as a source of ``karpenter top``: its instance types once, its objects by watches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from karpenter.api import kinds
from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.cluster_reader import query_cluster
from karpenter.cli.instance_type_sources import FileTypes, TypeSource, choose_source
from karpenter.cli.plan_instance_types import build_plan_types
from karpenter.cli.planning_options import InputOptions
from karpenter.cli.top_source import FollowedFeatures, WatchedSource
from karpenter.console.console_input import ConsoleInput
from karpenter.console.viewer_source import ViewerSource
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.kube import config
from karpenter.kube.errors import Forbidden
from karpenter.kube.optional_kinds import OptionalKindsReader
from karpenter.kube.protocol import Reader
from karpenter.settings import Settings


class KubeconfigSource:
    """Connects when it runs, and keeps a ``WatchedSource`` current."""

    def __init__(self, connection: config.Connection, types: _NodePoolTypes, followed: FollowedFeatures) -> None:
        self.title = f"context {connection.context} of {connection.source}"
        self._connection = connection
        self._types = types
        self._followed = followed
        self._watched: WatchedSource | None = None

    def current(self) -> ConsoleInput | None:
        """The cluster now; None before its first lists came."""
        return self._watched.current() if self._watched is not None else None

    def fault(self) -> str:
        """What cannot be read now."""
        return self._watched.fault() if self._watched is not None else ""

    async def run(self) -> None:
        """Watch until cancelled."""
        async with config.connect(self._connection) as client:
            self._watched = WatchedSource(self.title, client, self._types.indexes, self._followed)
            await self._watched.run()


class _NodePoolTypes:
    """Instance types by NodePool, worked out again when NodePools come and go."""

    def __init__(self, source: TypeSource, objects: ClusterObjects) -> None:
        self._source = source
        self._objects = objects

    def indexes(self, pools: Sequence[NodePool]) -> Mapping[str, TypeIndex]:
        """The types of these NodePools."""
        return build_plan_types(replace(self._objects, pools=list(pools)), self._source).indexes


def connect(options: InputOptions, settings: Settings) -> ViewerSource:
    """The cluster of the kubeconfig, once it has answered. Raises ``ClusterUnreachable``, and ``CommandError`` about types."""
    objects = query_cluster(settings, _list_type_objects)
    file = settings.instance_types_file_path
    source = FileTypes(file) if file else choose_source(objects, options, settings, os.environ)
    types = _NodePoolTypes(source, objects)
    types.indexes(objects.pools)  # what is wrong with node classes is said before the screen is taken
    connection = config.load(settings.kubeconfig, settings.context)
    followed = FollowedFeatures(settings.plans_for_untried_pods, settings.gates)
    return KubeconfigSource(connection, types, followed)


async def _list_type_objects(reader: Reader) -> ClusterObjects:
    """What the region and the instance types are found by. Only Nodes are needed. Raises ``errors.KubeError``."""
    objects = ClusterObjects(from_cluster=True)
    listing = await reader.list(kinds.NODE)
    objects.nodes = list(listing.items)
    optional = OptionalKindsReader(reader)
    listed: tuple[Kind[Wire], ...] = (kinds.NODE_POOL, kinds.EC2_NODE_CLASS, kinds.NODE_OVERLAY)  # type: ignore[assignment]
    await asyncio.gather(*(_add_all(optional, kind, objects) for kind in listed))
    return objects


async def _add_all(reader: Reader, kind: Kind[Wire], objects: ClusterObjects) -> None:
    """Add the objects of a kind; none where they may not be read."""
    try:
        listing = await reader.list(kind)
    except Forbidden:
        return
    for obj in listing.items:
        objects.add(obj)  # type: ignore[arg-type]
