"""Where ``karpenter top`` gets the cluster from: a kubeconfig, followed by watches; or objects that stay as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from karpenter.api import kinds
from karpenter.api.capacity_schedule import CapacitySchedule
from karpenter.api.core import ConfigMap
from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.capacityschedule.sleep_overrides import AnnotatedObjects
from karpenter.cli.sleeping_pools import current_sleep
from karpenter.cli.terminal import CommandError, collected_errors
from karpenter.console.console_input import ConsoleInput
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.kube.decoding import metadata_of
from karpenter.kube.errors import Forbidden
from karpenter.kube.informer import ALL_OBJECTS, Informer, WatchScope
from karpenter.kube.optional_kinds import OptionalKindsReader
from karpenter.kube.protocol import Reader
from karpenter.model import freezes
from karpenter.model.feature_gates import FeatureGate, FeatureGates
from karpenter.state import ClusterState

T = TypeVar("T", bound=Wire)
#: The types of each NodePool, by its name.
IndexesOf = Callable[[Sequence[NodePool]], Mapping[str, TypeIndex]]


@dataclass(frozen=True)
class RecordedSource:
    """Objects that stay as they are."""

    title: str
    given: ConsoleInput
    #: What is wrong with the objects, in one line.
    faults: str = ""

    def current(self) -> ConsoleInput | None:
        """The objects."""
        return self.given

    def fault(self) -> str:
        """What is wrong with the objects."""
        return self.faults

    async def run(self) -> None:
        """Nothing changes."""
        await asyncio.Event().wait()


@dataclass(frozen=True)
class FollowedFeatures:
    """What the cluster's controller looks at beyond Karpenter: pods that the scheduler has not tried, and features with gates."""

    untried_pods: bool = False
    gates: FeatureGates = frozenset()


class WatchedSource:
    """A cluster followed by watches. Only Nodes and Pods are needed; what may not be read or is not served is left out."""

    def __init__(
        self, title: str, reader: Reader, indexes_of: IndexesOf, followed: FollowedFeatures = FollowedFeatures()
    ) -> None:
        self.title = title
        self._reader = OptionalKindsReader(reader)
        self._indexes_of = indexes_of
        self._indexes: Mapping[str, TypeIndex] = {}
        self._indexed_pools: frozenset[str] = frozenset()
        self._types_fault = ""
        self._state = ClusterState()
        if followed.untried_pods:
            self._state.untried_pods.enable()
        self._informers: list[Informer[Wire]] = []
        self._pods = self._informer(kinds.POD)
        self._nodes = self._informer(kinds.NODE)
        self._claims = self._informer(kinds.NODE_CLAIM)
        self._pools = self._informer(kinds.NODE_POOL)
        self._events = self._informer(kinds.EVENT)
        self._namespaces = self._informer(kinds.NAMESPACE)
        self._gates = followed.gates
        follows_sleep = FeatureGate.CAPACITY_SCHEDULE in followed.gates
        self._schedules = self._informer(kinds.CAPACITY_SCHEDULE) if follows_sleep else None
        self._schedule_faults: tuple[str, ...] = ()
        self._follow()

    def _informer(self, kind: Kind[T], scope: WatchScope = ALL_OBJECTS) -> Informer[T]:
        informer = Informer(self._reader, kind, scope)
        self._informers.append(informer)  # type: ignore[arg-type]
        return informer

    def _follow(self) -> None:
        state = self._state
        self._keep(self._pods, state.set_pod, lambda namespace, name: state.remove_pod((namespace, name)))
        self._keep(self._nodes, state.set_node, lambda _, name: state.remove_node(name))
        self._keep(self._claims, state.set_claim, lambda _, name: state.remove_claim(name))
        self._keep(self._pools, state.set_pool, lambda _, name: state.remove_pool(name))
        self._keep(self._informer(kinds.DAEMON_SET), state.set_daemon_set, lambda *key: state.remove_daemon_set(key))
        self._keep(self._informer(kinds.POD_DISRUPTION_BUDGET), state.set_pdb, lambda *key: state.remove_pdb(key))
        self._keep(self._namespaces, state.set_namespace, lambda _, name: state.remove_namespace(name))
        freeze = WatchScope(freezes.FREEZE_NAMESPACE, field_selector=f"metadata.name={freezes.FREEZE_CONFIG_MAP}")
        self._keep(self._informer(kinds.CONFIG_MAP, freeze), self._set_freeze, lambda *_: self._set_freeze(None))

    def _keep(self, informer: Informer[T], store: Callable[[T], object], remove: Callable[[str, str], object]) -> None:
        def handle(old: T | None, new: T | None) -> None:
            if new is not None:
                store(new)
            elif old is not None:
                meta = metadata_of(old)
                remove(meta.namespace, meta.name)

        informer.subscribe(handle)

    def _set_freeze(self, config_map: ConfigMap | None) -> None:
        self._state.freeze = None if config_map is None else freezes.cluster_freeze(config_map)

    def current(self) -> ConsoleInput | None:
        """The cluster now; None until Nodes and Pods are listed."""
        if not (self._pods.synced and self._nodes.synced):
            return None
        pools, now = tuple(self._pools), datetime.now(UTC)
        self._update_indexes(pools)
        if self._schedules is not None:
            self._update_sleep(tuple(self._schedules), pools, now)
        snapshot = self._state.snapshot()
        return ConsoleInput(snapshot, now, tuple(self._pods), tuple(self._nodes), tuple(self._events), self._indexes)

    def _update_sleep(self, schedules: Sequence[CapacitySchedule], pools: Sequence[NodePool], now: datetime) -> None:
        """Set which NodePools sleep now. A schedule that cannot be used counts for nothing, as in the controller."""
        annotated = AnnotatedObjects(pools, self._pods, self._nodes, self._namespaces)
        sleep = current_sleep(schedules, self._gates, annotated, now)
        self._schedule_faults = tuple(map(str, sleep.unusable))
        self._state.set_sleeping_pools(sleep.pools)

    def _update_indexes(self, pools: Sequence[NodePool]) -> None:
        """Find the types of NodePools again when some came or went; what is wrong with them costs prices, not the view."""
        names = frozenset(pool.metadata.name for pool in pools)
        if names == self._indexed_pools:
            return
        self._indexed_pools = names
        try:
            with collected_errors() as lines:
                self._indexes = self._indexes_of(pools)
            self._types_fault = "; ".join(lines)
        except CommandError as error:
            self._types_fault = str(error)

    def fault(self) -> str:
        """What cannot be read now. Kinds for which there is no right are listed: their messages would not fit on a line."""
        faults = [*([self._types_fault] if self._types_fault else []), *self._schedule_faults]
        forbidden = [informer.kind.plural for informer in self._informers if isinstance(informer.fault, Forbidden)]
        if forbidden:
            faults.append(f"no right to list and watch {', '.join(forbidden)}")
        faults += [
            f"{informer.kind.plural}: {informer.fault}"
            for informer in self._informers
            if informer.fault is not None and not isinstance(informer.fault, Forbidden)
        ]
        return "; ".join(" ".join(fault.split()) for fault in faults)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())
