"""Buying one machine per claim, many at once, and never the same one twice.

**The protocol.** Money is spent by CreateFleet alone, and its answer may be lost: a time-out, a crash, another leader. So a
purchase has an identity, the *batch*, which is known in three places that survive us:

1. Claims whose plans are equal and that come within a short window make a batch. Its id follows from their uids and from the
   batches they took part in before (``batches.batch_id``).
2. The id is written on every claim of the batch (annotation ``karpenter.k8s.aws/launch-batch``) against the version we read. A
   claim that went or joined another batch falls out here. Only claims that carry the id are bought for.
3. The id is the request's client token and a tag of its instances. Asked again, EC2 answers as it did, or refuses a request that
   differs (IdempotentParameterMismatch); it never buys again.
4. Instances are dealt out one per claim; who gets none gets the fleet's errors. The batch is then *closed*, in memory only. A
   claim of a closed batch without a share takes part in a new one.

A claim that carries a batch this process did not close is never bought for before the batch is settled (``_recover``):

* The claims that are owed a machine of it are listed anew: they carry the id, live and have no provider ID.
* Instances with its tag that no claim names are theirs, dealt out by uid and instance id. Fewer than claims: EC2 may not show all
  of them yet, so we wait for ``VISIBLE_SECONDS``; then those without are told that there is none.
* No instance in any state: the request may never have arrived. It is sent again with the same token for as many as are owed. If
  it did arrive, the token brings the old answer, or the refusal, and then it is a matter of waiting for what EC2 shows.

So a batch needs no record of its outcome. A claim that was not reached (killed between two annotations) carries no id and is in a
new batch. Instances nobody is owed any more (their claim was deleted) are garbage; the collector leaves alone whatever belongs to
a batch somebody is still owed something of (``batches.unsettled``). Two replicas do not launch at once: that is fenced elsewhere.

Work belongs to the batch, not to who waits: a caller that gives up finds the result when it asks again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import structlog

from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.catalog.types import InstanceType
from karpenter.kube.errors import KubeError
from karpenter.kube.protocol import Kube
from karpenter.model.clock import Clock
from karpenter.providers.aws import facts, failures, names
from karpenter.providers.aws.batching import Batcher, Window
from karpenter.providers.aws.cache import Expiring
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.launch import batches, fleet, marking, outcome
from karpenter.providers.aws.launch.addresses import Addresses, Places
from karpenter.providers.aws.launch.batches import Shares
from karpenter.providers.aws.launch.buyer import AlreadyBought, Buyer, Lost, Refusal
from karpenter.providers.aws.launch.consequences import Consequences
from karpenter.providers.aws.launch.outcome import Bought
from karpenter.providers.aws.launch.plan import Knowledge, LaunchPlan, Rules, plan_launch
from karpenter.providers.aws.ports import InstancePort
from karpenter.providers.aws.series import CREATE_FLEET, InstanceSeries
from karpenter.providers.aws.shapes import Filter, FleetAnswer, FleetRequest, InstanceInfo
from karpenter.providers.contract import Instance, InsufficientCapacity, ProviderError

T = TypeVar("T")
Share = Instance | ProviderError

#: AWS-750.
FLEET_WINDOW = Window(idle_seconds=0.035, longest_seconds=1.0, most=1000)
#: How long EC2 may take to show an instance it made.
VISIBLE_SECONDS = 40.0
_LOOK_SECONDS = 2.0
#: How often a claim may turn out to be in another batch than it was thought to be.
_TURNS = 4
_MARKS_AT_ONCE = 50
_REMEMBERED = timedelta(hours=1)
_CLOSED_FOR = timedelta(hours=24)
_MOST_PLANS = 256
_MOST_SHOWN = 5
_log = structlog.get_logger()


@dataclass(frozen=True)
class Order:
    """A claim, what to ask for, and all types to read the answer with."""

    claim: NodeClaim
    plan: LaunchPlan
    types: Sequence[InstanceType]

    @property
    def uid(self) -> str:
        """Whose order it is."""
        return self.claim.metadata.uid


@dataclass(frozen=True)
class Trade:
    """Whom a launcher works with."""

    kube: Kube
    ec2: InstancePort
    clock: Clock
    buyer: Buyer
    addresses: Addresses
    knowledge: Knowledge
    consequences: Consequences
    series: InstanceSeries


class Launcher:
    """Buys machines."""

    def __init__(self, trade: Trade, rules: Rules) -> None:
        self._trade = trade
        self._rules = rules
        self._batcher: Batcher[str, Order, Instance] = Batcher(
            FLEET_WINDOW, self._work, trade.series.batcher(CREATE_FLEET)
        )
        self._dealt: Expiring[str, Instance] = Expiring(trade.clock, _REMEMBERED)
        self._closed: Expiring[str, bool] = Expiring(trade.clock, _CLOSED_FOR)
        self._unanswered: dict[str, FleetRequest] = {}
        self._running: dict[str, asyncio.Task[Instance]] = {}
        self._recovering: dict[str, asyncio.Task[Mapping[str, Share]]] = {}
        self._plans: dict[bytes, tuple[Sequence[InstanceType], LaunchPlan]] = {}

    def claim_of(self, instance_id: str) -> str:
        """The claim a machine was bought for lately, by name; empty for others. The claim may not name the machine yet."""
        tail = f"/{instance_id}"
        found = (item for _, item in self._dealt.items() if item.provider_id.endswith(tail))
        return next((item.claim_name for item in found), "")

    async def launch(self, claim: NodeClaim, node_class: EC2NodeClass, types: Sequence[InstanceType]) -> Instance:
        """One machine for the claim; asked again for the same claim (uid), the same machine. Raises ``ProviderError``."""
        uid = claim.metadata.uid
        known = self._dealt.get(uid)
        if known is not None:
            return known
        running = self._running.get(uid)
        if running is None:
            order = Order(claim, self._plan(claim, node_class, types), types)
            running = self._running[uid] = _begin(self._settle(order))
            running.add_done_callback(lambda done: self._running.pop(uid, None))
        return await asyncio.shield(running)

    # -- plans --------------------------------------------------------------------------------------------------------------

    def _plan(self, claim: NodeClaim, node_class: EC2NodeClass, types: Sequence[InstanceType]) -> LaunchPlan:
        """Claims alike have one plan as long as what is sold stays the same."""
        shape = _shape(claim, node_class)
        known = self._plans.get(shape)
        if known is not None and known[0] is types:
            return known[1]
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        plan = plan_launch(claim, node_class, types, self._trade.knowledge, self._rules)
        self._plans[shape] = (types, plan)
        _report(plan)
        return plan

    # -- one claim ----------------------------------------------------------------------------------------------------------

    async def _settle(self, order: Order) -> Instance:
        for _ in range(_TURNS):
            batch = batches.batch_of(order.claim)
            try:
                if batch and self._closed.get(batch) is None:
                    share = (await self._recovered(batch, order)).get(order.uid)
                    if share is None:
                        order = replace(order, claim=await marking.read(self._trade.kube, order.claim))
                        continue
                    if isinstance(share, ProviderError):
                        raise share
                    return share
                return await self._batcher.ask(order.plan.key, order)
            except marking.Changed as changed:
                order = replace(order, claim=changed.claim)
        raise ProviderError(f"claim {order.claim.metadata.name} goes from one purchase to the next")

    async def _recovered(self, batch: str, order: Order) -> Mapping[str, Share]:
        running = self._recovering.get(batch)
        if running is None:
            running = self._recovering[batch] = _begin(self._recover(batch, order))
            running.add_done_callback(lambda done: self._recovering.pop(batch, None))
        return await asyncio.shield(running)

    # -- one batch ----------------------------------------------------------------------------------------------------------

    async def _work(self, key: str, orders: Sequence[Order]) -> Sequence[Instance | Exception]:
        """Steps 2 to 4 of the protocol for a window's orders."""
        await self._trade.buyer.prepare(orders[0].plan)
        unique = {order.uid: order for order in orders}
        batch = batches.batch_id(order.claim for order in unique.values())
        marked = dict(zip(unique, await self._marked(unique.values(), batch), strict=True))
        buyers = tuple(order for order in marked.values() if isinstance(order, Order))
        shares = await self._purchase(batch, buyers, frozenset()) if buyers else {}
        return [shares[item.uid] if isinstance(item, Order) else item for item in (marked[o.uid] for o in orders)]

    async def _marked(self, orders: Iterable[Order], batch: str) -> list[Order | Exception]:
        slots = asyncio.Semaphore(_MARKS_AT_ONCE)

        async def one(order: Order) -> Order | Exception:
            async with slots:
                try:
                    return replace(order, claim=await marking.mark(self._trade.kube, order.claim, batch))
                except (marking.Changed, ProviderError) as error:
                    return error

        return list(await asyncio.gather(*(one(order) for order in orders)))

    async def _purchase(self, batch: str, orders: Sequence[Order], taken: frozenset[str]) -> Mapping[str, Share]:
        """Ask for the batch and deal out what comes; a share for every order."""
        plan = orders[0].plan
        request, places = self._request(batch, plan, len(orders))
        used: tuple[str, ...] = ()
        try:
            answer = await self._trade.buyer.buy(plan, request)
            bought = outcome.from_answer(answer, plan)
            used = tuple(item.subnet_id for item in bought)
        except Refusal as refusal:
            self._close(batch)
            return {order.uid: refusal.error for order in orders}
        except Lost as lost:
            return {order.uid: lost.error for order in orders}
        except AlreadyBought:
            return await self._adopt(batch, orders, taken)
        finally:
            self._trade.addresses.give_back(places, used)
        return self._dealt_out(batch, orders, tuple(item for item in bought if item.instance_id not in taken), answer)

    def _request(self, batch: str, plan: LaunchPlan, count: int) -> tuple[FleetRequest, Places]:
        """The request, the very same where it was sent before and not answered."""
        needs = {zone: need * count for zone, need in plan.needs.items()}
        places = self._trade.addresses.choose(plan.node_class.status.subnets, needs)
        request = self._unanswered.get(batch)
        if request is None or request.target_capacity_specification.total_target_capacity != count:
            request = fleet.request(plan, places, fleet.Purchase(batch, count))
            self._unanswered[batch] = request
        return request, places

    def _dealt_out(
        self, batch: str, orders: Sequence[Order], bought: Sequence[Bought], answer: FleetAnswer
    ) -> Mapping[str, Share]:
        plan = orders[0].plan
        refused = failures.refusals(answer)
        self._trade.consequences.refused(plan, refused, answer.fleet_id)
        if any(item.code in failures.TEMPLATE_MISSING for item in refused):
            self._trade.buyer.doubt(plan)
        for item in bought:
            self._trade.consequences.took(item.reservation)
        if len(bought) > len(orders):
            extra = [item.instance_id for item in bought[len(orders) :]]
            _log.warning("the fleet made more machines than were asked for", ids=extra)
        shares: dict[str, Share] = {
            order.uid: self._hand_over(order, item) for order, item in zip(orders, bought, strict=False)
        }
        lacking = orders[len(bought) :]
        if lacking:
            error = failures.missing(refused)
            _log.info(
                "the fleet made no machine", **{"fleet-id": answer.fleet_id}, claims=len(lacking), error=str(error)
            )
            self._trade.consequences.tell((order.claim for order in lacking), refused)
            shares |= {order.uid: error for order in lacking}
        self._close(batch)
        return shares

    def _hand_over(self, order: Order, bought: Bought) -> Instance:
        known = next((item for item in order.types if item.name == bought.instance_type), None)
        instance = outcome.instance(bought, order.claim, order.plan.node_class, known, self._trade.clock.now())
        self._dealt.put(order.uid, instance)
        return instance

    def _close(self, batch: str) -> None:
        self._unanswered.pop(batch, None)
        self._closed.put(batch, True)

    # -- batches this process did not see the end of ------------------------------------------------------------------------

    async def _recover(self, batch: str, asking: Order) -> Mapping[str, Share]:
        """Settle a batch; a share for every claim that is owed one of it."""
        owed = await self._owed(batch, asking.uid)
        if all(claim.metadata.uid != asking.uid for claim in owed.claims):
            return {}
        orders = tuple(replace(asking, claim=claim) for claim in owed.claims)
        _log.info("settling a launch that was interrupted", batch=batch, claims=len(orders))
        if await self._tagged(batch):
            return await self._adopt(batch, orders, owed.taken)
        try:
            await self._trade.buyer.prepare(asking.plan)
            return await self._purchase(batch, orders, owed.taken)
        except ProviderError as error:
            return {order.uid: error for order in orders}

    async def _owed(self, batch: str, asking: str) -> Shares:
        try:
            listing = await self._trade.kube.list(NODE_CLAIM)
        except KubeError as error:
            raise ProviderError(f"listing claims, {error}") from error
        if listing.rejected:
            # Any of them may own what we would deal out.
            unreadable = ", ".join(sorted(item.name for item in listing.rejected))
            raise ProviderError(f"an interrupted launch waits for claims nobody can read: {unreadable}")
        return batches.shares(batch, listing.items, asking)

    async def _adopt(self, batch: str, orders: Sequence[Order], taken: frozenset[str]) -> Mapping[str, Share]:
        """Deal out what the batch bought, as EC2 shows it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + VISIBLE_SECONDS
        while True:
            seen = await self._tagged(batch)
            free = {
                info.instance_id: info for info in seen if not facts.is_going(info) and info.instance_id not in taken
            }
            if len(free) >= len(orders) or loop.time() >= deadline:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        dealt = batches.deal((order.claim for order in orders), sorted(free))
        missing = InsufficientCapacity(_why_none(batch, seen))
        shares: dict[str, Share] = {}
        for order in orders:
            info = free.get(dealt.get(order.uid, ""))
            shares[order.uid] = missing if info is None else self._adopted(order, info)
        self._close(batch)
        return shares

    def _adopted(self, order: Order, info: InstanceInfo) -> Instance:
        instance = self._hand_over(order, outcome.from_info(info, self._rules.reserved_capacity))
        _log.info("adopted a machine", **{"provider-id": instance.provider_id}, NodeClaim={"name": instance.claim_name})
        return instance

    async def _tagged(self, batch: str) -> tuple[InstanceInfo, ...]:
        try:
            return await self._trade.ec2.describe_instances(
                filters=(
                    Filter(name=f"tag:{names.BATCH}", values=(batch,)),
                    Filter(name=f"tag:{names.CLUSTER_TAG}", values=(self._rules.cluster.name,)),
                )
            )
        except AwsError as error:
            raise failures.failed(error, "looking for the machines of an interrupted launch") from error


def _begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Work that goes on when nobody waits for it any more; its fault is then nobody's."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


def _shape(claim: NodeClaim, node_class: EC2NodeClass) -> bytes:
    """Equal for claims that get the same plan."""
    own, of_class = claim.metadata, node_class.metadata
    about = (claim.spec, own.labels, {key: own.annotations.get(key) for key in _READ_ANNOTATIONS})
    version = (of_class.name, of_class.uid, of_class.generation, of_class.resource_version, node_class.status)
    return hashlib.sha256(msgspec.json.encode((about, version), order="sorted")).digest()


_READ_ANNOTATIONS = ("karpenter.sh/nodeclaim-min-values-relaxed", "karpenter.sh/price-overlay-applied")


def _report(plan: LaunchPlan) -> None:
    """AWS-429, AWS-431."""
    for rejection in plan.filtered.rejections:
        _log.debug(
            "filtered out instance types from launch",
            filter=rejection.filter,
            **{"instance-types": rejection.types[:_MOST_SHOWN]},
        )
    if plan.is_inflexible:
        _log.warning(
            "at least 5 instance types are recommended when spot falls back to on-demand",
            **{"instance-type-count": len(plan.filtered.types)},
        )


def _why_none(batch: str, seen: Iterable[InstanceInfo]) -> str:
    """What became of a batch's machines, as far as EC2 says it (AWS-858)."""
    ended = [
        f"{info.instance_id} ended ({info.state_reason.code}: {info.state_reason.message})"
        for info in seen
        if facts.is_going(info) and info.state_reason is not None
    ]
    return "; ".join((f"purchase {batch} made no machine for this claim", *ended))
