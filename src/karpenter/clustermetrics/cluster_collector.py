"""What the collectors of cluster metrics have in common: their callbacks, and the snapshot from which they write series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Protocol

from karpenter.api.core import Container, Node, Pod
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.metrics.exposition import SeriesWriter
from karpenter.model import quantity
from karpenter.model import resources as res
from karpenter.model.freezes import Freeze
from karpenter.model.resources import Resources
from karpenter.scheduling.solution import Solution
from karpenter.state.state_node import StateNode


class ConditionedStatus(Protocol):
    """A status with conditions."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions."""


class StatusObject(Protocol):
    """An object whose status carries conditions, of whatever kind."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its metadata."""

    @property
    def status(self) -> ConditionedStatus:
        """Its status."""


@dataclass(frozen=True)
class ClusterMetricsSnapshot:
    """The cluster at one moment; nothing in it changes any more. ``nodes`` are all Nodes by name, ``views`` the nodes,
    ``freeze`` the freeze over the whole cluster."""

    now: datetime
    views: tuple[StateNode, ...]
    nodes: Mapping[str, Node]
    claims: tuple[NodeClaim, ...]
    pools: tuple[NodePool, ...]
    pods: tuple[Pod, ...]
    freeze: Freeze | None = None


def _no_series() -> Iterable[str]:
    return ()


class ClusterCollector:
    """A group of series and their upkeep. Its callbacks get every change (``None`` stands for absent) and every plan."""

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """A Node changed."""

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """A NodeClaim changed."""

    def on_pool(self, old: NodePool | None, new: NodePool | None) -> None:
        """A NodePool changed."""

    def on_status_object(self, kind: str, old: StatusObject | None, new: StatusObject | None) -> None:
        """A node class of a kind changed."""

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod changed."""

    def on_plan(self, plan: Solution) -> None:
        """A provisioning pass came to its decision."""

    async def refresh(self) -> None:
        """Every ten seconds: bring up to date what has to be asked for."""

    def prepare(self, snapshot: ClusterMetricsSnapshot) -> SeriesWriter:
        """Copy, quickly, what else the series need, and return the function that writes them."""
        return _no_series


@lru_cache(maxsize=1024)
def resource_type_label(name: str) -> str:
    """A resource's name as a label value: ``ephemeral-storage`` as ``ephemeral_storage``."""
    return name.lower().replace("-", "_")


@lru_cache(maxsize=4096)
def decimal_text(amount: int) -> str:
    """An amount in thousandths as a number of cores, bytes or pieces."""
    whole, rest = divmod(amount, quantity.MILLI)
    return str(whole) if not rest else str(amount / quantity.MILLI)


def pod_limits(pod: Pod) -> Resources:
    """What a pod may use at most, ``pods: 1`` included, by the rules for requests (SCH-195); empty where that cannot be read.

    Overhead is added to what is limited at all: without a limit there is nothing to add to.
    """
    try:
        total = _peak_limits(pod)
        if pod.spec.resources is not None:
            total.update(res.parse_resources(pod.spec.resources.limits))
        overhead = {name: amount for name, amount in res.parse_resources(pod.spec.overhead).items() if name in total}
    except quantity.QuantityError:
        return {}
    return {**res.add(total, overhead), res.PODS: res.ONE_UNIT}


def _peak_limits(pod: Pod) -> dict[str, int]:
    sidecars: dict[str, int] = {}
    peaks: list[dict[str, int]] = []
    for container in pod.spec.init_containers:
        together = res.add(sidecars, _container_limits(container))
        peaks.append(together)
        if container.restart_policy == "Always":
            sidecars = together
    return res.maximum(
        (res.add(sidecars, *[_container_limits(container) for container in pod.spec.containers]), *peaks)
    )


def _container_limits(container: Container) -> dict[str, int]:
    return res.parse_resources(container.resources.limits)
