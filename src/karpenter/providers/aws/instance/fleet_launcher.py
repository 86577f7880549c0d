"""Launching one instance per claim, many at once, and never the same one twice.

**The protocol.** Only CreateFleet spends money, and its response may be lost: a time-out, a crash, another leader. So a launch
has an identity, the *batch*. Claims, requests and instances carry it, so it survives this process:

1. Claims whose plans are equal and that come within a short window make a batch. The window stays open while launches of other
   claims are known to come (``expected_launches``). Its id follows from their uids and from the batches they took part in before
   (``launch_batches.batch_id``).
2. The id is written on every claim of the batch (annotation ``karpenter.k8s.aws/launch-batch``) against the version we read. A
   claim that was deleted or joined another batch drops out here. Only claims that carry the id get instances.
3. The id is the request's client token and a tag of its instances. For a repeated request EC2 returns the first response, or
   refuses a request that differs (IdempotentParameterMismatch). It never launches again.
4. Instances are assigned one per claim; a claim without an instance gets the fleet's errors. The batch is then *closed*, in
   memory only. A claim of a closed batch without a share takes part in a new one.

A claim that carries a batch this process did not close is never launched before the batch is settled (``_recover``):

* The claims that wait for an instance of it are listed again: they carry the id, are not being deleted and have no provider ID.
* Instances with its tag that no claim names are theirs, assigned in order of uid and instance id. Fewer than claims: EC2 may not
  show all of them yet, so we wait for ``VISIBILITY_SECONDS``; then the launch fails for those without.
* No instance in any state: the request may never have arrived. It is sent again with the same token for as many as are owed. If
  it did arrive, EC2 returns the first response or the refusal, and the launcher waits until EC2 lists the instances.

So a batch needs no record of its outcome. A claim that was not reached (killed between two annotations) carries no id and is in a
new batch. Instances whose claim was deleted are garbage. Garbage collection keeps the instances of a batch in which a claim still
waits (``launch_batches.unsettled_batches``). Two replicas do not launch at once: the write fence prevents it.

The work belongs to the batch, not to the caller: a caller that stops waiting gets the result with its next call.

The tag can be switched off (``--launch-batch-tag=false``) where an organization's policies list the allowed tag keys. Then the
client token alone prevents a second launch: a repeated request returns the first response, but instances of a lost answer
that EC2 does not repeat are garbage, as with Karpenter.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import inf
from typing import Any, Protocol, TypeVar

import msgspec
import structlog
from cachetools import TTLCache

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube.errors import KubeError
from karpenter.kube.protocol import Kube
from karpenter.model.clock import Clock
from karpenter.providers.aws import aws_errors, aws_labels
from karpenter.providers.aws.aws_apis import InstanceApi
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_metrics import CREATE_FLEET_BATCHER, InstanceMetrics
from karpenter.providers.aws.aws_types import Ec2Filter
from karpenter.providers.aws.bootstrap.bootstrap_token import JoinParameters
from karpenter.providers.aws.ec2_descriptions import InstanceInfo
from karpenter.providers.aws.ec2_requests import FleetAnswer, FleetRequest
from karpenter.providers.aws.instance import fleet_request, instance_info, launch_batches
from karpenter.providers.aws.instance.expected_launches import ExpectedLaunches
from karpenter.providers.aws.instance.fleet_request import (
    FleetAlreadyCreated,
    FleetOutcomeUnknown,
    FleetRefused,
    FleetSender,
    SubnetAddresses,
    SubnetChoice,
)
from karpenter.providers.aws.instance.instance_info import LaunchedInstance
from karpenter.providers.aws.instance.launch_batches import BatchClaims
from karpenter.providers.aws.instance.launch_effects import LaunchEffects
from karpenter.providers.aws.instance.launch_plan import (
    LaunchInputResolver,
    LaunchPlan,
    LaunchSettings,
    LaunchSubject,
    plan_launch,
)
from karpenter.providers.aws.request_batching import RequestBatcher, RequestBatchWindow
from karpenter.providers.contract import Instance, InsufficientCapacity, ProviderError

T = TypeVar("T")
LaunchResult = Instance | ProviderError

#: AWS-750.
FLEET_BATCH_WINDOW = RequestBatchWindow(idle_seconds=0.035, maximum_seconds=1.0, maximum_requests=1000)
#: How long EC2 may take to show an instance it made.
VISIBILITY_SECONDS = 40.0
_VISIBILITY_POLL_SECONDS = 2.0
#: How often a claim may turn out to be in another batch than it was thought to be.
_MAX_BATCH_CHANGES = 4
_MAX_CONCURRENT_MARKS = 50
_LAUNCHED_FOR = timedelta(hours=1)
_CLOSED_FOR = timedelta(hours=24)
_MAX_PLANS = 256
_MAX_LOGGED_TYPES = 5
_log = structlog.get_logger()


@dataclass(frozen=True)
class LaunchOrder:
    """A claim, what to ask for, and all types to read the answer with."""

    claim: NodeClaim
    plan: LaunchPlan
    types: Sequence[InstanceType]

    @property
    def uid(self) -> str:
        """Whose order it is."""
        return self.claim.metadata.uid


class JoinParameterSource(Protocol):
    """How instances of self-managed clusters join."""

    async def parameters(self, claim: NodeClaim, node_class: EC2NodeClass) -> JoinParameters | None:
        """What the claim's user data contains, None where its class joins otherwise. Raises ``ProviderError``."""

    async def launch_failed(self, claim: NodeClaim) -> None:
        """The claim's launch made no instance and will not: what was made for it is no longer needed."""


@dataclass(frozen=True)
class LauncherDependencies:
    """The dependencies of a launcher."""

    kube: Kube
    ec2: InstanceApi
    clock: Clock
    fleet_sender: FleetSender
    subnet_addresses: SubnetAddresses
    input_resolver: LaunchInputResolver
    join_source: JoinParameterSource
    effects: LaunchEffects
    metrics: InstanceMetrics


class FleetLauncher:
    """Launches instances."""

    def __init__(self, dependencies: LauncherDependencies, settings: LaunchSettings) -> None:
        self._dependencies = dependencies
        self._settings = settings
        #: Launches that an open batch waits for.
        self.expected_launches = ExpectedLaunches(dependencies.clock.now)
        self._batcher: RequestBatcher[str, LaunchOrder, Instance] = RequestBatcher(
            FLEET_BATCH_WINDOW,
            self._launch_batch,
            dependencies.metrics.batcher(CREATE_FLEET_BATCHER),
            more_expected=self.expected_launches.has_more,
        )
        self._launched: TTLCache[str, Instance, datetime] = TTLCache(inf, _LAUNCHED_FOR, dependencies.clock.now)
        self._closed_batches: TTLCache[str, bool, datetime] = TTLCache(inf, _CLOSED_FOR, dependencies.clock.now)
        self._unanswered_requests: dict[str, FleetRequest] = {}
        self._running: dict[str, asyncio.Task[Instance]] = {}
        self._recovering: dict[str, asyncio.Task[Mapping[str, LaunchResult]]] = {}
        #: NodeClaims (by uid) whose request may still launch an instance: what it refers to must stay.
        self._undecided: set[str] = set()
        self._plans: dict[bytes, tuple[Sequence[InstanceType], LaunchPlan]] = {}

    def claim_name_of(self, instance_id: str) -> str:
        """The claim an instance was launched for lately, by name; empty for others. The claim may not name the instance yet."""
        tail = f"/{instance_id}"
        names = (instance for _, instance in self._launched.items() if instance.provider_id.endswith(tail))
        return next((instance.claim_name for instance in names), "")

    async def launch(self, claim: NodeClaim, node_class: EC2NodeClass, types: Sequence[InstanceType]) -> Instance:
        """One instance for the claim; asked again for the same claim (uid), the same instance. Raises ``ProviderError``."""
        uid = claim.metadata.uid
        launched = self._launched.get(uid)
        if launched is not None:
            return launched
        running = self._running.get(uid)
        if running is None:
            running = self._running[uid] = _start_detached(self._launch_claim(claim, node_class, types))
            running.add_done_callback(lambda done: self._running.pop(uid, None))
        return await asyncio.shield(running)

    async def _launch_claim(
        self, claim: NodeClaim, node_class: EC2NodeClass, types: Sequence[InstanceType]
    ) -> Instance:
        join = await self._dependencies.join_source.parameters(claim, node_class)
        subject, uid = LaunchSubject(claim, node_class, join), claim.metadata.uid
        self._undecided.discard(uid)
        try:
            order = LaunchOrder(claim, self._plan(subject, types), types)
            return await self._launch_and_tidy(order, join)
        except ProviderError:
            if join is not None and uid not in self._undecided:
                await self._dependencies.join_source.launch_failed(claim)
            raise

    async def _launch_and_tidy(self, order: LaunchOrder, join: JoinParameters | None) -> Instance:
        """Launch; templates that contain a token of one claim go once the request is answered (AWS-915)."""
        try:
            return await self._launch_or_recover(order)
        finally:
            if join is not None and join.is_single_use and order.uid not in self._undecided:
                await self._dependencies.fleet_sender.delete_templates(order.plan)

    # -- plans --------------------------------------------------------------------------------------------------------------

    def _plan(self, subject: LaunchSubject, types: Sequence[InstanceType]) -> LaunchPlan:
        """Claims alike have one plan as long as what is sold stays the same."""
        if subject.join is not None and subject.join.is_single_use:
            return self._new_plan(subject, types)
        shape = _plan_key(subject)
        cached = self._plans.get(shape)
        if cached is not None and cached[0] is types:
            return cached[1]
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        plan = self._new_plan(subject, types)
        self._plans[shape] = (types, plan)
        return plan

    def _new_plan(self, subject: LaunchSubject, types: Sequence[InstanceType]) -> LaunchPlan:
        plan = plan_launch(subject, types, self._dependencies.input_resolver, self._settings)
        _log_plan(plan)
        return plan

    # -- one claim ----------------------------------------------------------------------------------------------------------

    async def _launch_or_recover(self, order: LaunchOrder) -> Instance:
        self.expected_launches.begin(order.uid)
        for _ in range(_MAX_BATCH_CHANGES):
            batch = launch_batches.batch_of_claim(order.claim)
            try:
                if batch and self._closed_batches.get(batch) is None:
                    share = (await self._recover_once(batch, order)).get(order.uid)
                    if share is None:
                        order = replace(
                            order, claim=await launch_batches.read_claim(self._dependencies.kube, order.claim)
                        )
                        continue
                    if isinstance(share, ProviderError):
                        raise share
                    return share
                return await self._batcher.submit(order.plan.key, order)
            except launch_batches.BatchChanged as changed:
                order = replace(order, claim=changed.claim)
        raise ProviderError(f"claim {order.claim.metadata.name} goes from one launch batch to the next")

    async def _recover_once(self, batch: str, order: LaunchOrder) -> Mapping[str, LaunchResult]:
        running = self._recovering.get(batch)
        if running is None:
            running = self._recovering[batch] = _start_detached(self._recover(batch, order))
            running.add_done_callback(lambda done: self._recovering.pop(batch, None))
        return await asyncio.shield(running)

    # -- one batch ----------------------------------------------------------------------------------------------------------

    async def _launch_batch(self, key: str, orders: Sequence[LaunchOrder]) -> Sequence[Instance | Exception]:
        """Steps 2 to 4 of the protocol for a window's orders."""
        await self._dependencies.fleet_sender.ensure_templates(orders[0].plan)
        unique = {order.uid: order for order in orders}
        batch = launch_batches.batch_id(order.claim for order in unique.values())
        marked = dict(zip(unique, await self._mark_claims(unique.values(), batch), strict=True))
        launching = tuple(order for order in marked.values() if isinstance(order, LaunchOrder))
        shares = await self._create_fleet(batch, launching, frozenset()) if launching else {}
        outcomes = (marked[order.uid] for order in orders)
        return [shares[outcome.uid] if isinstance(outcome, LaunchOrder) else outcome for outcome in outcomes]

    async def _mark_claims(self, orders: Iterable[LaunchOrder], batch: str) -> list[LaunchOrder | Exception]:
        slots = asyncio.Semaphore(_MAX_CONCURRENT_MARKS)

        async def one(order: LaunchOrder) -> LaunchOrder | Exception:
            async with slots:
                try:
                    return replace(
                        order, claim=await launch_batches.mark_claim(self._dependencies.kube, order.claim, batch)
                    )
                except (launch_batches.BatchChanged, ProviderError) as error:
                    return error

        return list(await asyncio.gather(*(one(order) for order in orders)))

    async def _create_fleet(
        self, batch: str, orders: Sequence[LaunchOrder], taken: frozenset[str]
    ) -> Mapping[str, LaunchResult]:
        """Ask for the batch and deal out what comes; a share for every order."""
        plan = orders[0].plan
        request, subnets = self._fleet_request(batch, plan, len(orders))
        used: tuple[str, ...] = ()
        try:
            answer = await self._dependencies.fleet_sender.create_fleet(plan, request)
            instances = instance_info.instances_of_fleet(answer, plan)
            used = tuple(launched_instance.subnet_id for launched_instance in instances)
        except FleetRefused as refusal:
            self._close_batch(batch)
            return {order.uid: refusal.error for order in orders}
        except FleetOutcomeUnknown as lost:
            self._undecided.update(order.uid for order in orders)
            return {order.uid: lost.error for order in orders}
        except FleetAlreadyCreated:
            return await self._adopt_instances(batch, orders, taken)
        finally:
            self._dependencies.subnet_addresses.release(subnets, used)
        return self._assign(
            batch,
            orders,
            tuple(launched_instance for launched_instance in instances if launched_instance.instance_id not in taken),
            answer,
        )

    def _fleet_request(self, batch: str, plan: LaunchPlan, count: int) -> tuple[FleetRequest, SubnetChoice]:
        """The request, the very same where it was sent before and not answered."""
        needs = {zone: need * count for zone, need in plan.address_needs.items()}
        subnets = self._dependencies.subnet_addresses.choose(plan.node_class.status.subnets, needs)
        request = self._unanswered_requests.get(batch)
        if request is None or request.target_capacity_specification.total_target_capacity != count:
            fleet_batch = fleet_request.FleetBatch(batch, count, self._settings.launch_batch_tag)
            request = fleet_request.create_fleet_request(plan, subnets, fleet_batch)
            self._unanswered_requests[batch] = request
        return request, subnets

    def _assign(
        self, batch: str, orders: Sequence[LaunchOrder], launched: Sequence[LaunchedInstance], answer: FleetAnswer
    ) -> Mapping[str, LaunchResult]:
        plan = orders[0].plan
        refused = aws_errors.fleet_refusals(answer)
        self._dependencies.effects.record_refusals(plan, refused, answer.fleet_id)
        if any(launch_refusal.code in aws_errors.TEMPLATE_NOT_FOUND_CODES for launch_refusal in refused):
            self._dependencies.fleet_sender.forget_templates(plan)
        for launched_instance in launched:
            self._dependencies.effects.record_launched(launched_instance.reservation)
        if len(launched) > len(orders):
            extra = [instance.instance_id for instance in launched[len(orders) :]]
            _log.warning("the fleet made more instances than were asked for", ids=extra)
        shares: dict[str, LaunchResult] = {
            order.uid: self._assign_instance(order, info) for order, info in zip(orders, launched, strict=False)
        }
        lacking = orders[len(launched) :]
        if lacking:
            error = aws_errors.no_instance_error(refused)
            _log.info(
                "the fleet made no instance", **{"fleet-id": answer.fleet_id}, claims=len(lacking), error=str(error)
            )
            self._dependencies.effects.record_events((order.claim for order in lacking), refused)
            shares |= {order.uid: error for order in lacking}
        self._close_batch(batch)
        return shares

    def _assign_instance(self, order: LaunchOrder, launched: LaunchedInstance) -> Instance:
        instance_type = next((candidate for candidate in order.types if candidate.name == launched.instance_type), None)
        instance = instance_info.provider_instance(
            launched, order.claim, order.plan.node_class, instance_type, self._dependencies.clock.now()
        )
        self._launched[order.uid] = instance
        return instance

    def _close_batch(self, batch: str) -> None:
        self._unanswered_requests.pop(batch, None)
        self._closed_batches[batch] = True

    # -- batches this process did not see the end of ------------------------------------------------------------------------

    async def _recover(self, batch: str, asking: LaunchOrder) -> Mapping[str, LaunchResult]:
        """Settle a batch; a share for every claim that is owed one of it."""
        owed = await self._batch_claims(batch, asking.uid)
        if all(claim.metadata.uid != asking.uid for claim in owed.owed):
            return {}
        orders = tuple(replace(asking, claim=claim) for claim in owed.owed)
        _log.info("settling a launch that was interrupted", batch=batch, claims=len(orders))
        if await self._instances_of_batch(batch):
            return await self._adopt_instances(batch, orders, owed.taken_instance_ids)
        try:
            await self._dependencies.fleet_sender.ensure_templates(asking.plan)
            return await self._create_fleet(batch, orders, owed.taken_instance_ids)
        except ProviderError as error:
            return {order.uid: error for order in orders}

    async def _batch_claims(self, batch: str, asking: str) -> BatchClaims:
        try:
            listing = await self._dependencies.kube.list(NODE_CLAIM)
        except KubeError as error:
            raise ProviderError(f"listing claims, {error}") from error
        if listing.undecodable:
            # Any of them may own what we would deal out.
            unreadable = ", ".join(sorted(rejected.name for rejected in listing.undecodable))
            raise ProviderError(f"an interrupted launch waits for claims nobody can read: {unreadable}")
        return launch_batches.batch_claims(batch, listing.items, asking)

    async def _adopt_instances(
        self, batch: str, orders: Sequence[LaunchOrder], taken: frozenset[str]
    ) -> Mapping[str, LaunchResult]:
        """Deal out what the batch launched, as EC2 shows it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + VISIBILITY_SECONDS
        while True:
            seen = await self._instances_of_batch(batch)
            free = {
                info.instance_id: info
                for info in seen
                if not instance_info.is_terminating(info) and info.instance_id not in taken
            }
            if len(free) >= len(orders) or loop.time() >= deadline:
                break
            await asyncio.sleep(_VISIBILITY_POLL_SECONDS)
        assigned = launch_batches.assign_instances((order.claim for order in orders), sorted(free))
        missing = InsufficientCapacity(_no_instance_message(batch, seen))
        shares: dict[str, LaunchResult] = {}
        for order in orders:
            info = free.get(assigned.get(order.uid, ""))
            shares[order.uid] = missing if info is None else self._adopted_instance(order, info)
        self._close_batch(batch)
        return shares

    def _adopted_instance(self, order: LaunchOrder, info: InstanceInfo) -> Instance:
        instance = self._assign_instance(order, instance_info.instance_of_info(info, self._settings.reserved_capacity))
        _log.info(
            "adopted an instance", **{"provider-id": instance.provider_id}, NodeClaim={"name": instance.claim_name}
        )
        return instance

    async def _instances_of_batch(self, batch: str) -> tuple[InstanceInfo, ...]:
        try:
            return await self._dependencies.ec2.describe_instances(
                filters=(
                    Ec2Filter(name=f"tag:{aws_labels.LAUNCH_BATCH}", values=(batch,)),
                    Ec2Filter(name=f"tag:{aws_labels.CLUSTER_TAG}", values=(self._settings.cluster.name,)),
                )
            )
        except AwsError as error:
            raise aws_errors.launch_error(error, "looking for the instances of an interrupted launch") from error


def _start_detached(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start work that goes on when its caller stops waiting; its error is then dropped."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


def _plan_key(subject: LaunchSubject) -> bytes:
    """Equal for claims that get the same plan."""
    claim, node_class = subject.claim, subject.node_class
    own, of_class = claim.metadata, node_class.metadata
    about = (claim.spec, own.labels, {key: own.annotations.get(key) for key in _READ_ANNOTATIONS})
    kubelet = node_class.spec.kubelet
    version = (of_class.name, of_class.uid, of_class.generation, of_class.resource_version, node_class.status, kubelet)
    return hashlib.sha256(msgspec.json.encode((about, version, subject.join), order="sorted")).digest()


_READ_ANNOTATIONS = ("karpenter.sh/nodeclaim-min-values-relaxed", "karpenter.sh/price-overlay-applied")


def _log_plan(plan: LaunchPlan) -> None:
    """Log what the filters removed, and warn where few types are left (AWS-429, AWS-431)."""
    for rejection in plan.filtered.rejections:
        _log.debug(
            "filtered out instance types from launch",
            filter=rejection.filter,
            **{"instance-types": rejection.types[:_MAX_LOGGED_TYPES]},
        )
    if plan.is_inflexible:
        _log.warning(
            "at least 5 instance types are recommended when spot falls back to on-demand",
            **{"instance-type-count": len(plan.filtered.types)},
        )


def _no_instance_message(batch: str, seen: Iterable[InstanceInfo]) -> str:
    """What became of a batch's instances, as far as EC2 says it (AWS-858)."""
    ended = [
        f"{info.instance_id} ended ({info.state_reason.code}: {info.state_reason.message})"
        for info in seen
        if instance_info.is_terminating(info) and info.state_reason is not None
    ]
    return "; ".join((f"launch batch {batch} made no instance for this claim", *ended))
