"""A launch before it is a request: which templates, which ways to use them, and everything the answer is read with. Pure.

Claims whose plans have the same ``key`` may share a fleet. Subnets are not part of it: they are chosen when it is known for how
many machines, so claims alike stay together however the addresses fall.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from karpenter.api.core import Taint
from karpenter.api.ec2 import AMI, EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.catalog.types import InstanceType, Offering
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.providers.aws import names
from karpenter.providers.aws.kubelet.resolved import Resolved
from karpenter.providers.aws.launch import filters
from karpenter.providers.aws.launch.contents import Content, Machine, content, template_data
from karpenter.providers.aws.launch.filters import Candidates, Filtered, Wish
from karpenter.providers.aws.nodeclass.images import image_for
from karpenter.providers.aws.settings import Cluster
from karpenter.providers.contract import LaunchFailed


@dataclass(frozen=True)
class Boot:
    """What a machine's user data depends on, beside cluster and class (AWS-220 to AWS-226)."""

    node_class: EC2NodeClass
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    max_pods: int
    kubelet: Resolved


class Knowledge(Protocol):
    """What other parts of the provider know about types."""

    def efa_interfaces(self, instance_type: str) -> int:
        """How many EFA interfaces a type can have."""

    def kubelet(self, node_class: EC2NodeClass, instance_type: InstanceType) -> Resolved:
        """The class's kubelet settings on a type."""

    def user_data(self, boot: Boot) -> bytes:
        """The data a machine boots with, before base64. Raises ``ProviderError``."""


@dataclass(frozen=True)
class Rules:
    """Settings of launches: gate ReservedCapacity, and whether minValues are law (policy Strict)."""

    cluster: Cluster
    reserved_capacity: bool = True
    strict_min_values: bool = True


@dataclass(frozen=True)
class Offer:
    """One way to make the machine: a pool of EC2's, with its price in USD an hour."""

    instance_type: str
    zone: str
    price_per_hour: float
    image_id: str
    reservation: str = ""


@dataclass(frozen=True)
class TemplatePlan:
    """A template and the offers that use it, cheapest first."""

    content: Content
    offers: tuple[Offer, ...]


@dataclass(frozen=True)
class LaunchPlan:
    """What is going to be asked for. ``needs`` are the addresses one machine takes in each zone."""

    node_class: EC2NodeClass
    pool: str
    capacity_type: str
    tenancy: str
    reservation_kind: str
    is_prioritized: bool
    context: str
    tags: Mapping[str, str]
    templates: tuple[TemplatePlan, ...]
    types: Mapping[str, InstanceType]
    needs: Mapping[str, int]
    filtered: Filtered
    is_inflexible: bool = False
    has_efa: bool = False
    group_id: str = ""
    partition: int = 0

    @cached_property
    def key(self) -> str:
        """Equal for claims whose machines can be bought together."""
        ways = [[item.content.name, [list(vars(offer).values()) for offer in item.offers]] for item in self.templates]
        how = [self.capacity_type, self.tenancy, self.reservation_kind, self.is_prioritized, self.context]
        where = [[subnet.id, subnet.zone] for subnet in self.node_class.status.subnets]
        text = json.dumps([ways, how, where, dict(self.tags), self.group_id, self.partition], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def offer(self, instance_type: str, zone: str) -> Offer | None:
        """The offer behind a machine of this type in this zone."""
        found = (offer for item in self.templates for offer in item.offers)
        return next((offer for offer in found if (offer.instance_type, offer.zone) == (instance_type, zone)), None)


def plan_launch(
    claim: NodeClaim,
    node_class: EC2NodeClass,
    types: Sequence[InstanceType],
    knowledge: Knowledge,
    rules: Rules,
) -> LaunchPlan:
    """What to ask for. Raises ``ProviderError`` where nothing can be."""
    _check_class(node_class)
    wish = filters.wish_of(claim)
    filtered = filters.select(wish, types, varied=rules.strict_min_values)
    kind = filters.capacity_type(wish, filtered.types)
    return _Planning(claim, node_class, wish, kind, knowledge, rules).plan(filtered)


def _check_class(node_class: EC2NodeClass) -> None:
    """What no launch can do without (AWS-436, AWS-485)."""
    status = node_class.status
    if not status.subnets:
        raise LaunchFailed("SubnetResolutionFailed", f"EC2NodeClass {node_class.metadata.name} has no subnets")
    if not status.security_groups:
        raise LaunchFailed("LaunchFailed", f"EC2NodeClass {node_class.metadata.name} has no security groups")
    if not status.amis:
        raise LaunchFailed("LaunchFailed", "no amis exist given constraints")


@dataclass(frozen=True)
class _Sort:
    """Types that can share a template do not differ in any of this (AWS-481)."""

    image_id: str
    efa_count: int
    max_pods: int
    kube_reserved: tuple[tuple[str, str], ...]
    system_reserved: tuple[tuple[str, str], ...]
    reservation: str


@dataclass(frozen=True)
class _Planning:
    """One claim's plan in the making."""

    claim: NodeClaim
    node_class: EC2NodeClass
    wish: Wish
    capacity_type: str
    knowledge: Knowledge
    rules: Rules

    def plan(self, filtered: Filtered) -> LaunchPlan:
        types = self._of_capacity_type(filtered.types)
        annotations = self.claim.metadata.annotations
        is_relaxed = annotations.get(labels.MIN_VALUES_RELAXED) == "true"
        return LaunchPlan(
            node_class=self.node_class,
            pool=self._pool,
            capacity_type=self.capacity_type,
            tenancy=filters.tenancy(self.wish),
            reservation_kind=next((filters.reservation_kind(way) for item in types for way in item.offerings), ""),
            is_prioritized=labels.PRICE_OVERLAY in annotations,
            context="" if is_relaxed else (self.node_class.spec.context or ""),
            tags=self._tags,
            templates=self._templates(types),
            types={item.name: item for item in types},
            needs=_needs(types),
            has_efa=self._has_efa,
            group_id=_group(types),
            partition=self._partition,
            filtered=filtered,
            is_inflexible=filters.is_inflexible(self.wish, filtered.types),
        )

    @property
    def _pool(self) -> str:
        return self.claim.metadata.labels.get(labels.NODE_POOL, "")

    @property
    def _tags(self) -> Mapping[str, str]:
        return names.tags_for(self.node_class, self.rules.cluster, self._pool)

    @property
    def _wants_efa(self) -> bool:
        return self.wish.requests.get(names.EFA, 0) > 0

    @property
    def _has_efa(self) -> bool:
        """Whether the machine will have EFA interfaces (AWS-468)."""
        own = self.node_class.spec.network_interfaces
        return any(entry.interface_type == "efa-only" for entry in own) if own else self._wants_efa

    @property
    def _partition(self) -> int:
        """The lowest partition the claim names, 0 where it leaves that to EC2. Numbers, not texts, are compared (AWS-500)."""
        asked = self.wish.requirements.of(names.PARTITION)
        numbers = [] if asked.complement else [int(value) for value in asked.values if value.isdigit()]
        return min(numbers, default=0)

    def _of_capacity_type(self, types: Candidates) -> Candidates:
        """The types with the offerings of the one capacity type, one per zone or, where reserved, per reservation."""
        found = []
        for item in types:
            ways = _distinct(way for way in item.offerings if self._can_use(way))
            if ways:
                found.append(replace(item, offerings=ways))
        return tuple(found)

    def _can_use(self, way: Offering) -> bool:
        if way.capacity_type != self.capacity_type:
            return False
        own = filters.label(way, names.PARTITION)
        return not self._partition or not own or own == str(self._partition)

    def _templates(self, types: Candidates) -> tuple[TemplatePlan, ...]:
        sorts: dict[_Sort, list[Offer]] = {}
        amis = self.node_class.status.amis
        images = {item.name: image_for(item, amis) for item in types}
        if not any(images.values()):
            raise LaunchFailed("LaunchFailed", f"no instance type can run any of the images {_listed(amis)}")
        for item in types:
            image = images[item.name]
            for way in item.offerings if image is not None else ():
                offer = Offer(item.name, way.zone, way.price_per_hour, image.id if image else "", way.reservation)
                sorts.setdefault(self._sort(item, offer), []).append(offer)
        kind = next((filters.reservation_kind(way) for item in types for way in item.offerings), "")
        group = _group(types)
        plans = (TemplatePlan(self._content(sort, kind, group), _ordered(ways)) for sort, ways in sorts.items())
        return tuple(sorted(plans, key=lambda item: item.content.name))

    def _sort(self, item: InstanceType, offer: Offer) -> _Sort:
        kubelet = self.knowledge.kubelet(self.node_class, item)
        has_own = bool(self.node_class.spec.network_interfaces)
        return _Sort(
            image_id=offer.image_id,
            efa_count=self.knowledge.efa_interfaces(item.name) if self._wants_efa and not has_own else 0,
            max_pods=item.capacity.get(res.PODS, 0) // res.ONE,
            kube_reserved=tuple(sorted(kubelet.kube_reserved.items())),
            system_reserved=tuple(sorted(kubelet.system_reserved.items())),
            reservation=offer.reservation,
        )

    def _content(self, sort: _Sort, kind: str, group: str) -> Content:
        machine = Machine(
            image_id=sort.image_id,
            user_data=self.knowledge.user_data(self._boot(sort)),
            capacity_type=self.capacity_type,
            tenancy=filters.tenancy(self.wish),
            efa_count=sort.efa_count,
            is_sandbox=self.wish.requests.get(names.SANDBOX, 0) > 0,
            reservation=sort.reservation,
            reservation_kind=kind,
            group_id=group,
            partition=self._partition,
        )
        data = template_data(self.node_class, self.rules.cluster, machine, self._tags, self.rules.reserved_capacity)
        return content(data, self._tags)

    def _boot(self, sort: _Sort) -> Boot:
        spec = self.claim.spec
        return Boot(
            node_class=self.node_class,
            labels={**self.claim.metadata.labels, labels.CAPACITY_TYPE: self.capacity_type},
            taints=tuple(taint.as_taint() for taint in (*spec.taints, *spec.startup_taints)),
            max_pods=sort.max_pods,
            kubelet=Resolved(kube_reserved=dict(sort.kube_reserved), system_reserved=dict(sort.system_reserved)),
        )


def _distinct(ways: Iterable[Offering]) -> tuple[Offering, ...]:
    """One offering per zone and reservation: those of other partitions are the same to a request (AWS-448)."""
    found: dict[tuple[str, str], Offering] = {}
    for way in ways:
        found.setdefault((way.zone, way.reservation), way)
    return tuple(found.values())


def _ordered(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    return tuple(sorted(offers, key=lambda offer: (offer.price_per_hour, offer.instance_type, offer.zone)))


def _needs(types: Candidates) -> Mapping[str, int]:
    """Per zone the fewest addresses a machine there takes: one per pod (AWS-433)."""
    found: dict[str, int] = {}
    for item in types:
        pods = item.capacity.get(res.PODS, 0) // res.ONE
        for way in item.offerings:
            found[way.zone] = min(pods, found.get(way.zone, pods))
    return found


def _group(types: Candidates) -> str:
    """The placement group, which all types of a class name alike; empty where there is none."""
    values = types[0].requirements.of(names.GROUP_ID).values if types else frozenset()
    return next(iter(values)) if len(values) == 1 else ""


def _listed(amis: Iterable[AMI]) -> str:
    return ", ".join(ami.id for ami in amis)
