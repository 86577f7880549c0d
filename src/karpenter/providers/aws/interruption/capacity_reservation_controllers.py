"""Instances in capacity reservations: drained before their block ends, relabeled when they lose the reservation (AWS §13.1).

A capacity block ends with everything in it. An ordinary reservation that ends leaves its instances running, on demand (AWS-604).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM, Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube.delete_preconditions import delete_if_present
from karpenter.kube.errors import Conflict, NotFound
from karpenter.kube.protocol import JsonObject, Writer
from karpenter.model import labels
from karpenter.model.clock import Clock
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_apis import DiscoveryApi, ReservationQuery
from karpenter.providers.aws.aws_context import AwsClusterView
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.ec2_descriptions import CapacityReservationInfo
from karpenter.providers.aws.nodeclass.nodeclass_discovery import EXPIRING_BEFORE_END
from karpenter.providers.contract import Instance, ProviderError

_PERIOD_SECONDS = 60.0
_ON_DEMAND_PATCH: JsonObject = {
    "metadata": {
        "labels": {
            labels.CAPACITY_TYPE: labels.ON_DEMAND,
            labels.RESERVATION_ID: None,
            f"{labels.AWS_GROUP}/capacity-reservation-type": None,
            f"{labels.AWS_GROUP}/capacity-reservation-interruptible": None,
        }
    }
}
_log = structlog.get_logger()

T = TypeVar("T", bound=Wire)


class CapacityReservationExpiration:
    """Gives instances of capacity blocks back ``lead`` before the end (AWS-603)."""

    def __init__(
        self,
        ec2: DiscoveryApi,
        cluster_view: AwsClusterView,
        kube: Writer,
        clock: Clock,
        lead: timedelta = EXPIRING_BEFORE_END,
    ) -> None:
        self._ec2 = ec2
        self._cluster_view = cluster_view
        self._kube = kube
        self._clock = clock
        self._lead = lead

    async def reconcile(self) -> float:
        """Delete the claims whose time is over; seconds until the next round. Raises ``ProviderError``, ``KubeError``."""
        claims = [
            nodeclaim
            for nodeclaim in self._cluster_view.claims()
            if _reservation_id(nodeclaim) and not _is_terminating(nodeclaim.metadata)
        ]
        now = self._clock.now()
        reservations = await self._describe(sorted({_reservation_id(nodeclaim) for nodeclaim in claims}))
        ending = {
            reservation_info.capacity_reservation_id
            for reservation_info in reservations
            if is_expiring(reservation_info, now, self._lead)
        }
        for claim in claims:
            if _reservation_id(claim) in ending:
                await self._delete_claim(claim)
        return _PERIOD_SECONDS

    async def _describe(self, ids: Sequence[str]) -> Iterable[CapacityReservationInfo]:
        """What EC2 knows of them. One it does not know fails the whole question, so then each is asked for alone."""
        if not ids:
            return ()
        try:
            return await self._ec2.describe_capacity_reservations(ReservationQuery(ids=tuple(ids)))
        except AwsError as error:
            if not error.is_not_found:
                raise ProviderError(f"capacity reservations cannot be read: {error}") from error
        if len(ids) == 1:
            return ()
        alone = await asyncio.gather(*(self._describe((name,)) for name in ids))
        return [reservation_info for reservation_infos in alone for reservation_info in reservation_infos]

    async def _delete_claim(self, claim: NodeClaim) -> None:
        if not await delete_if_present(self._kube, NODE_CLAIM, claim.metadata):
            return
        _log.info(
            "deleting nodeclaim before its capacity block ends",
            NodeClaim={"name": claim.metadata.name},
            **{"capacity-reservation-id": _reservation_id(claim)},
        )


class CapacityTypeCorrection:
    """Follows instances that fell out of their reservation (AWS-605): they are on demand, and what they cost matters again.

    ``instances`` gives the cluster's instances, freshly read, and raises ``ProviderError``.
    """

    def __init__(
        self, instances: Callable[[], Awaitable[tuple[Instance, ...]]], cluster_view: AwsClusterView, kube: Writer
    ) -> None:
        self._instances = instances
        self._cluster_view = cluster_view
        self._kube = kube

    async def reconcile(self) -> float:
        """Correct labels of claims and Nodes; seconds until the next pass, none if one of them just changed.

        No call is made while neither a claim nor its Node is reserved. Raises ``ProviderError``, ``KubeError``.
        """
        if not any(map(self._has_reserved_label, self._cluster_view.claims())):
            return _PERIOD_SECONDS
        on_demand = {
            instance.provider_id
            for instance in await self._instances()
            if instance.labels.get(labels.CAPACITY_TYPE) == labels.ON_DEMAND
        }
        for claim in tuple(self._cluster_view.claims()):
            if claim.status.provider_id in on_demand and not _is_terminating(claim.metadata):
                try:
                    await self._correct(claim)
                except Conflict:
                    return 0.0
        return _PERIOD_SECONDS

    async def _correct(self, claim: NodeClaim) -> None:
        """The Node has its own turn: it may not have been registered when the claim was corrected."""
        if _is_reserved(claim.metadata):
            await self._patch_to_on_demand(NODE_CLAIM, claim.metadata)
        node = self._node_of(claim)
        if (
            node is not None
            and _is_registered(node)
            and _is_reserved(node.metadata)
            and not _is_terminating(node.metadata)
        ):
            await self._patch_to_on_demand(NODE, node.metadata)

    def _has_reserved_label(self, claim: NodeClaim) -> bool:
        node = self._node_of(claim)
        return _is_reserved(claim.metadata) or (node is not None and _is_reserved(node.metadata))

    def _node_of(self, claim: NodeClaim) -> Node | None:
        return self._cluster_view.node_of(claim.status.provider_id.rpartition("/")[2])

    async def _patch_to_on_demand(self, kind: Kind[T], meta: ObjectMeta) -> None:
        try:
            await self._kube.patch(kind, meta.name, _ON_DEMAND_PATCH)
        except NotFound:
            return
        _log.info("instance is no longer in its capacity reservation", **{kind.name: {"name": meta.name}})


def is_expiring(reservation: CapacityReservationInfo, now: datetime, lead: timedelta) -> bool:
    """Whether a reservation takes its instances with it soon: a capacity block, ``lead`` before its end (AWS-152)."""
    return (
        reservation.reservation_type == aws_labels.CAPACITY_BLOCK
        and reservation.end_date is not None
        and reservation.end_date - now <= lead
    )


def _reservation_id(claim: NodeClaim) -> str:
    return claim.metadata.labels.get(labels.RESERVATION_ID, "")


def _is_reserved(meta: ObjectMeta) -> bool:
    return meta.labels.get(labels.CAPACITY_TYPE) == labels.RESERVED


def _is_registered(node: Node) -> bool:
    return node.metadata.labels.get(labels.REGISTERED) == "true"


def _is_terminating(meta: ObjectMeta) -> bool:
    return meta.deletion_timestamp is not None
