"""A launch before it is a request: which templates, which ways to use them, and everything the answer is read with. Pure.

Claims whose plans have the same ``key`` may share a fleet. Subnets are not part of it: they are chosen when it is known for how
many instances, so claims alike stay together however the addresses fall.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from karpenter.api.ec2_node_class import AMI, EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.api.scheduling_constraints import Taint
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.bootstrap.bootstrap_token import JoinParameters
from karpenter.providers.aws.instance import launch_filters
from karpenter.providers.aws.instance.launch_filters import CandidateTypes, LaunchableTypes, LaunchRequirements
from karpenter.providers.aws.instance.launch_templates import (
    LaunchTemplateContent,
    LaunchTemplateParameters,
    launch_template_content,
    template_data,
)
from karpenter.providers.aws.instancetype.device_templates import EFA_DRIVER
from karpenter.providers.aws.nodeclass.ami_selection import ami_for
from karpenter.providers.aws.userdata.kubelet_settings import KubeletSettings
from karpenter.providers.contract import LaunchFailed


@dataclass(frozen=True)
class UserDataInputs:
    """What an instance's user data depends on, beside cluster and class (AWS-220 to AWS-226)."""

    node_class: EC2NodeClass
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    max_pods: int
    kubelet: KubeletSettings
    join: JoinParameters | None = None


class LaunchInputResolver(Protocol):
    """What other parts of the provider know about instance types and NodePools."""

    def boot_labels(self, claim: NodeClaim) -> Mapping[str, str]:
        """The labels an instance boots with: those that all claims of the NodePool share."""

    def efa_interfaces(self, instance_type: str) -> int:
        """How many EFA interfaces a type can have."""

    def kubelet(self, node_class: EC2NodeClass, instance_type: InstanceType) -> KubeletSettings:
        """The class's kubelet settings on a type."""

    def user_data(self, inputs: UserDataInputs) -> bytes:
        """The data an instance boots with, before base64. Raises ``ProviderError``."""


@dataclass(frozen=True)
class LaunchSettings:
    """Settings of launches: gate ReservedCapacity, whether minValues are law (policy Strict), whether batches are tagged."""

    cluster: AwsClusterInfo
    reserved_capacity: bool = True
    strict_min_values: bool = True
    launch_batch_tag: bool = True


@dataclass(frozen=True)
class LaunchOffering:
    """One way to make the instance: a pool of EC2's, with its price in USD an hour."""

    instance_type: str
    zone: str
    price_per_hour: float
    image_id: str
    reservation: str = ""


@dataclass(frozen=True)
class TemplatePlan:
    """A template and the offers that use it, cheapest first."""

    content: LaunchTemplateContent
    offerings: tuple[LaunchOffering, ...]


@dataclass(frozen=True)
class LaunchPlan:
    """What is going to be asked for. ``address_needs`` are the addresses one instance takes in each zone."""

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
    address_needs: Mapping[str, int]
    filtered: LaunchableTypes
    is_inflexible: bool = False
    has_efa: bool = False
    group_id: str = ""
    partition: int = 0

    @cached_property
    def key(self) -> str:
        """Equal for claims whose instances can be launched together."""
        ways = [
            [template_plan.content.name, [list(vars(offer).values()) for offer in template_plan.offerings]]
            for template_plan in self.templates
        ]
        how = [self.capacity_type, self.tenancy, self.reservation_kind, self.is_prioritized, self.context]
        where = [[subnet.id, subnet.zone] for subnet in self.node_class.status.subnets]
        text = json.dumps([ways, how, where, dict(self.tags), self.group_id, self.partition], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def offering(self, instance_type: str, zone: str) -> LaunchOffering | None:
        """The offer behind an instance of this type in this zone."""
        matching = (offer for template_plan in self.templates for offer in template_plan.offerings)
        return next((offer for offer in matching if (offer.instance_type, offer.zone) == (instance_type, zone)), None)


@dataclass(frozen=True)
class LaunchSubject:
    """The claim and the node class of a launch. ``join`` is None if the instance does not join with kubeadm."""

    claim: NodeClaim
    node_class: EC2NodeClass
    join: JoinParameters | None = None


def plan_launch(
    subject: LaunchSubject,
    types: Sequence[InstanceType],
    input_resolver: LaunchInputResolver,
    settings: LaunchSettings,
) -> LaunchPlan:
    """What to ask for. Raises ``ProviderError`` where nothing can be."""
    claim, node_class = subject.claim, subject.node_class
    _check_class(node_class)
    required = launch_filters.launch_requirements(claim)
    filtered = launch_filters.filter_instance_types(required, types, strict_min_values=settings.strict_min_values)
    kind = launch_filters.launch_capacity_type(required, filtered.types)
    return _Planner(claim, node_class, required, kind, input_resolver, settings, subject.join).plan(filtered)


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
class _TemplateKey:
    """Types that can share a template do not differ in any of this (AWS-481)."""

    image_id: str
    efa_count: int
    max_pods: int
    kube_reserved: tuple[tuple[str, str], ...]
    system_reserved: tuple[tuple[str, str], ...]
    reservation: str


@dataclass(frozen=True)
class _Planner:
    """One claim's plan in the making."""

    claim: NodeClaim
    node_class: EC2NodeClass
    required: LaunchRequirements
    capacity_type: str
    input_resolver: LaunchInputResolver
    settings: LaunchSettings
    join: JoinParameters | None

    def plan(self, filtered: LaunchableTypes) -> LaunchPlan:
        types = self._of_capacity_type(filtered.types)
        annotations = self.claim.metadata.annotations
        is_relaxed = annotations.get(labels.MIN_VALUES_RELAXED) == "true"
        return LaunchPlan(
            node_class=self.node_class,
            pool=self._pool,
            capacity_type=self.capacity_type,
            tenancy=launch_filters.launch_tenancy(self.required),
            reservation_kind=_reservation_kind(types),
            is_prioritized=labels.PRICE_OVERLAY in annotations,
            context="" if is_relaxed else (self.node_class.spec.context or ""),
            tags=self._tags,
            templates=self._templates(types),
            types={instance_type.name: instance_type for instance_type in types},
            address_needs=_address_needs(types),
            has_efa=self._has_efa,
            group_id=placement_group_id(types),
            partition=self._partition,
            filtered=filtered,
            is_inflexible=launch_filters.is_inflexible(self.required, filtered.types),
        )

    @property
    def _pool(self) -> str:
        return self.claim.metadata.labels.get(labels.NODE_POOL, "")

    @property
    def _tags(self) -> Mapping[str, str]:
        return aws_labels.resource_tags_for(self.node_class, self.settings.cluster, self._pool)

    @property
    def _wants_efa(self) -> bool:
        """Whether the claim asks for EFA interfaces: as a resource, or as devices of their driver (K15-A52)."""
        drivers = self.claim.metadata.annotations.get(labels.REQUESTED_DRA_DRIVERS, "").split(",")
        is_claimed = any(driver.strip() == EFA_DRIVER for driver in drivers)
        return is_claimed or self.required.requests.get(aws_labels.EFA_RESOURCE, 0) > 0

    @property
    def _has_efa(self) -> bool:
        """Whether the instance will have EFA interfaces (AWS-468)."""
        own = self.node_class.spec.network_interfaces
        return any(entry.interface_type == "efa-only" for entry in own) if own else self._wants_efa

    @property
    def _partition(self) -> int:
        """The lowest partition the claim names, 0 where it leaves that to EC2. Numbers, not texts, are compared (AWS-500)."""
        requirement = self.required.requirements.requirement_for(aws_labels.PLACEMENT_GROUP_PARTITION)
        numbers = [] if requirement.complement else [int(value) for value in requirement.values if value.isdigit()]
        return min(numbers, default=0)

    def _of_capacity_type(self, types: CandidateTypes) -> CandidateTypes:
        """The types with the offerings of the one capacity type, one per zone or, where reserved, per reservation."""
        offerings = []
        for instance_type in types:
            ways = _distinct_offerings(way for way in instance_type.offerings if self._can_use(way))
            if ways:
                offerings.append(replace(instance_type, offerings=ways))
        return tuple(offerings)

    def _can_use(self, offering: Offering) -> bool:
        if offering.capacity_type != self.capacity_type:
            return False
        own = launch_filters.offering_label(offering, aws_labels.PLACEMENT_GROUP_PARTITION)
        return not self._partition or not own or own == str(self._partition)

    def _templates(self, types: CandidateTypes) -> tuple[TemplatePlan, ...]:
        sorts: dict[_TemplateKey, list[LaunchOffering]] = {}
        amis = self.node_class.status.amis
        images = {instance_type.name: ami_for(instance_type, amis) for instance_type in types}
        if not any(images.values()):
            raise LaunchFailed("LaunchFailed", f"no instance type can run any of the images {_listed_amis(amis)}")
        for instance_type in types:
            image = images[instance_type.name]
            for way in instance_type.offerings if image is not None else ():
                offer = LaunchOffering(
                    instance_type.name, way.zone, way.price_per_hour, image.id if image else "", way.reservation_id
                )
                sorts.setdefault(self._template_key(instance_type, offer), []).append(offer)
        kind = _reservation_kind(types)
        group = placement_group_id(types)
        plans = (TemplatePlan(self._content(sort, kind, group), _by_price(ways)) for sort, ways in sorts.items())
        return tuple(sorted(plans, key=lambda template_plan: template_plan.content.name))

    def _template_key(self, instance_type: InstanceType, offering: LaunchOffering) -> _TemplateKey:
        kubelet = self.input_resolver.kubelet(self.node_class, instance_type)
        has_own = bool(self.node_class.spec.network_interfaces)
        return _TemplateKey(
            image_id=offering.image_id,
            efa_count=self.input_resolver.efa_interfaces(instance_type.name) if self._wants_efa and not has_own else 0,
            max_pods=instance_type.capacity.get(res.PODS, 0) // res.ONE_UNIT,
            kube_reserved=tuple(sorted(kubelet.kube_reserved.items())),
            system_reserved=tuple(sorted(kubelet.system_reserved.items())),
            reservation=offering.reservation,
        )

    def _content(self, key: _TemplateKey, kind: str, group: str) -> LaunchTemplateContent:
        parameters = LaunchTemplateParameters(
            image_id=key.image_id,
            user_data=self.input_resolver.user_data(self._user_data_inputs(key)),
            capacity_type=self.capacity_type,
            tenancy=launch_filters.launch_tenancy(self.required),
            efa_count=key.efa_count,
            reservation=key.reservation,
            reservation_kind=kind,
            group_id=group,
            partition=self._partition,
        )
        data = template_data(
            self.node_class, self.settings.cluster, parameters, self._tags, self.settings.reserved_capacity
        )
        return launch_template_content(data, self._tags)

    def _user_data_inputs(self, key: _TemplateKey) -> UserDataInputs:
        spec = self.claim.spec
        return UserDataInputs(
            node_class=self.node_class,
            labels={**self.input_resolver.boot_labels(self.claim), labels.CAPACITY_TYPE: self.capacity_type},
            taints=tuple(taint.as_taint() for taint in (*spec.taints, *spec.startup_taints)),
            max_pods=key.max_pods,
            kubelet=KubeletSettings(kube_reserved=dict(key.kube_reserved), system_reserved=dict(key.system_reserved)),
            join=self.join,
        )


def _distinct_offerings(offerings: Iterable[Offering]) -> tuple[Offering, ...]:
    """One offering per zone and reservation: those of other partitions are the same to a request (AWS-448)."""
    by_pool: dict[tuple[str, str], Offering] = {}
    for way in offerings:
        by_pool.setdefault((way.zone, way.reservation_id), way)
    return tuple(by_pool.values())


def _by_price(offerings: Iterable[LaunchOffering]) -> tuple[LaunchOffering, ...]:
    return tuple(sorted(offerings, key=lambda offer: (offer.price_per_hour, offer.instance_type, offer.zone)))


def _address_needs(types: CandidateTypes) -> Mapping[str, int]:
    """Per zone the fewest addresses an instance there takes: one per pod (AWS-433)."""
    needs: dict[str, int] = {}
    for instance_type in types:
        pods = instance_type.capacity.get(res.PODS, 0) // res.ONE_UNIT
        for way in instance_type.offerings:
            needs[way.zone] = min(pods, needs.get(way.zone, pods))
    return needs


def _reservation_kind(types: CandidateTypes) -> str:
    """The kind of the reservations to launch into, which all offerings of a plan share; empty without reservations."""
    offerings = (offering for instance_type in types for offering in instance_type.offerings)
    return next(map(launch_filters.offering_reservation_kind, offerings), "")


def placement_group_id(types: Sequence[InstanceType]) -> str:
    """The placement group, which all types of a class name alike; empty where there is none."""
    values = types[0].requirements.requirement_for(aws_labels.PLACEMENT_GROUP_ID).values if types else frozenset()
    return next(iter(values)) if len(values) == 1 else ""


def _listed_amis(amis: Iterable[AMI]) -> str:
    return ", ".join(ami.id for ami in amis)
