"""EC2NodeClasses under their controller: AWS as a few tables, the in-memory API server, and a clock that tests move."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from karpenter.api.core import Node
from karpenter.api.ec2_node_class import (
    AMISelectorTerm,
    EC2NodeClass,
    EC2NodeClassSpec,
    SecurityGroupSelectorTerm,
    SubnetSelectorTerm,
)
from karpenter.api.karpenter import NodeClaim, NodeClaimSpec, NodeClassReference, NodePool
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM, NODE_POOL
from karpenter.api.meta import ObjectMeta
from karpenter.instancetypes import ec2_catalog as catalogue
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.metrics import Metrics
from karpenter.model import conditions
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_settings import AwsClusterInfo, AwsSettings
from karpenter.providers.aws.aws_types import tag_list
from karpenter.providers.aws.ec2_descriptions import (
    ImageInfo,
    SecurityGroupInfo,
    SubnetInfo,
)
from karpenter.providers.aws.ec2_requests import (
    LaunchTemplateData,
    NetworkInterfaceRequest,
)
from karpenter.providers.aws.nodeclass.ami_discovery import AmiProvider, AmiReconciler, SsmParameters
from karpenter.providers.aws.nodeclass.instance_profiles import (
    InstanceProfileGarbageCollector,
    InstanceProfileProvider,
    InstanceProfileReconciler,
)
from karpenter.providers.aws.nodeclass.nodeclass_controller import (
    NodeClassCleanup,
    NodeClassController,
    NodeClassReconcileContext,
    NodeClassTermination,
)
from karpenter.providers.aws.nodeclass.nodeclass_discovery import (
    CapacityReservationProvider,
    CapacityReservationReconciler,
    PlacementGroupProvider,
    PlacementGroupReconciler,
    SecurityGroupProvider,
    SecurityGroupReconciler,
    SubnetProvider,
    SubnetReconciler,
)
from karpenter.providers.aws.nodeclass.nodeclass_dry_runs import DryRunCandidate, LaunchDryRuns
from karpenter.providers.aws.nodeclass.nodeclass_hash import NodeClassHashInputs, NodeClassHashStamper
from karpenter.providers.aws.nodeclass.nodeclass_subreconcilers import (
    NodeClassChangeLog,
    NodeClassSubreconciler,
    NodeClassWarnings,
    node_class_condition_types,
)
from karpenter.providers.aws.nodeclass.nodeclass_validation import ValidationInputs, ValidationReconciler
from karpenter.providers.aws.userdata.kubelet_settings import KubeletTypeFacts
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.ec2_class_services import Ec2, HandClock, Iam, Ssm

CLUSTER = AwsClusterInfo("shop", "us-west-2", "https://shop.example", "Q0E=", "1.32")
TYPES = tuple(
    instance_type
    for instance_type in catalogue.packaged_instance_types()
    if instance_type.name in ("m5.large", "m6g.large", "c5.xlarge", "g5.xlarge")
)


@dataclass
class Told:
    """Events, in order."""

    events: list[tuple[str, str, str]] = field(default_factory=list)

    def normal(self, kind: object, involved: ObjectMeta, reason: str, message: str) -> None:
        self.events.append(("Normal", reason, message))

    def warning(self, kind: object, involved: ObjectMeta, reason: str, message: str) -> None:
        self.events.append(("Warning", reason, message))

    def of(self, reason: str) -> list[str]:
        return [message for _, event, message in self.events if event == reason]


@dataclass
class Seen:
    """The cluster as watches told it when ``Classes.see`` was called."""

    known_claims: tuple[NodeClaim, ...] = ()
    known_pools: tuple[NodePool, ...] = ()

    def claims(self) -> Iterable[NodeClaim]:
        return self.known_claims

    def pools(self) -> Iterable[NodePool]:
        return self.known_pools

    def claim_of(self, instance_id: str) -> NodeClaim | None:
        return next(
            (nodeclaim for nodeclaim in self.known_claims if nodeclaim.status.provider_id.endswith(instance_id)), None
        )

    def node_of(self, instance_id: str) -> Node | None:
        return None


class Classes:
    """A cluster with classes. ``look`` lets the controller look at one as it is stored now."""

    def __init__(self, **settings: Any) -> None:
        self.clock = HandClock()
        self.kube = MemoryKube(MemoryServer(self.clock))
        self.ec2, self.iam, self.ssm = Ec2(), Iam(), Ssm()
        self.recorder, self.seen = Told(), Seen()
        self.cluster = CLUSTER
        self.types: tuple[InstanceType, ...] = TYPES
        self.facts: tuple[KubeletTypeFacts, ...] = (KubeletTypeFacts("m5.xlarge", 4, 16384, 4, 15, 58),)
        self.addresses: dict[str, int] = {}
        self.units: dict[str, int] = {}
        self.user_data = ""
        self.cidr_error: AwsError | None = None
        self.missing: tuple[str, ...] = ()
        #: What a process draws at its start, of 0 to 1.
        self.drawn = 0.5
        self.gone: list[str] = []
        self.known: dict[str, EC2NodeClass] = {}
        self.settings = AwsSettings("shop", **settings)
        self.made = self.restarted()

    def restarted(self) -> Process:
        """The controller as a new process would have it."""
        return Process(self)

    async def cidr(self) -> str:
        if self.cidr_error is not None:
            raise self.cidr_error
        return "10.100.0.0/16"

    async def missing_to_join(self, node_class: EC2NodeClass) -> tuple[str, ...]:
        return self.missing

    def template_data(self, node_class: EC2NodeClass, trial: DryRunCandidate) -> LaunchTemplateData:
        interfaces = (NetworkInterfaceRequest(device_index=0, groups=("sg-1",)),)
        return LaunchTemplateData(image_id=trial.image.id, user_data=self.user_data, network_interfaces=interfaces)

    async def see(self) -> None:
        """What is stored comes through the watches."""
        self.known.clear()
        self.known.update(
            {node_class.metadata.name: node_class for node_class in (await self.kube.list(EC2_NODE_CLASS)).items}
        )
        self.seen.known_claims = (await self.kube.list(NODE_CLAIM)).items
        self.seen.known_pools = (await self.kube.list(NODE_POOL)).items

    async def look(self, name: str = "default") -> float | None:
        await self.see()
        return await self.made.controller.reconcile(name)

    async def get(self, name: str = "default") -> EC2NodeClass:
        return await self.kube.get(EC2_NODE_CLASS, name)

    async def create(self, name: str = "default", **spec: Any) -> EC2NodeClass:
        return await self.kube.create(
            EC2_NODE_CLASS, EC2NodeClass(metadata=ObjectMeta(name=name), spec=spec_of(**spec))
        )

    async def change(self, patch: Mapping[str, Any], name: str = "default") -> None:
        await self.kube.patch(EC2_NODE_CLASS, name, {"spec": patch})

    async def claim(self, name: str, annotations: Mapping[str, str] | None = None, **more: Any) -> NodeClaim:
        meta = ObjectMeta(name=name, annotations=annotations or {}, labels={"karpenter.sh/nodepool": "np"})
        return await self.kube.create(
            NODE_CLAIM, NodeClaim(metadata=meta, spec=NodeClaimSpec(requirements=(), node_class_ref=REFERENCE), **more)
        )

    async def condition(self, type_: str, name: str = "default") -> tuple[str, str]:
        """Status and reason."""
        condition = conditions.find_condition((await self.get(name)).status.conditions, type_)
        return ("", "") if condition is None else (condition.status, condition.reason)

    async def message(self, type_: str, name: str = "default") -> str:
        condition = conditions.find_condition((await self.get(name)).status.conditions, type_)
        return "" if condition is None else condition.message

    def stocked(self) -> Classes:
        """With a subnet, a group and an image that the usual class finds."""
        own = tag_list({"team": "a"})
        self.ec2.subnets = [subnet("subnet-a", 50), subnet("subnet-b", 100, zone="us-west-2b")]
        self.ec2.groups = [SecurityGroupInfo(group_id="sg-1", group_name="nodes", vpc_id="vpc-1", tags=own)]
        self.ec2.images = [
            ImageInfo(image_id="ami-1", name="plain", architecture="x86_64", creation_date="2025-01-01T00:00:00Z")
        ]
        return self


class Process:
    """The controller over a world, put together as the provider does it."""

    def __init__(self, world: Classes) -> None:
        self._world = world
        ec2: Any = world.ec2
        iam: Any = world.iam
        clock, settings = world.clock, world.settings
        self._news = NodeClassChangeLog()
        self.parameters = SsmParameters(world.ssm, ec2, clock)
        self.placement_groups = PlacementGroupProvider(ec2, clock)
        self._profiles = InstanceProfileProvider(iam, clock, CLUSTER, lambda: str(uuid.uuid4()))
        self.collector = InstanceProfileGarbageCollector(self._profiles, CLUSTER, world.known.values, world.seen.claims)
        editions = NodeClassHashInputs()
        around = NodeClassReconcileContext(
            world.kube,
            clock,
            node_class_condition_types(settings.reserved_capacity),
            world.known.get,
            lambda: world.cluster,
        )
        leftovers = NodeClassCleanup(None if settings.isolated_vpc else self._profiles, ec2, CLUSTER)
        end = NodeClassTermination(
            leftovers,
            world.kube,
            world.recorder,
            world.seen.claims,
            lambda node_class: world.gone.append(node_class.metadata.name),
        )
        stamps = NodeClassHashStamper(world.kube, world.seen.claims)
        self.controller = NodeClassController(around, self._parts(ec2), stamps, editions, end, Metrics())

    def _parts(self, ec2: Any) -> tuple[NodeClassSubreconciler, ...]:
        world, clock, news = self._world, self._world.clock, self._news
        warnings = NodeClassWarnings(world.recorder, news)
        images = AmiProvider(ec2, self.parameters, clock, lambda: world.cluster, world.settings)
        subnets = SubnetProvider(ec2, clock, world.settings.subnet_refresh_interval, world.addresses.__setitem__)
        reservations = CapacityReservationReconciler(
            CapacityReservationProvider(ec2, clock, world.units.__setitem__), clock, news
        )
        return (
            AmiReconciler(images, lambda: world.cluster, news, world.recorder),
            *((reservations,) if world.settings.reserved_capacity else ()),
            PlacementGroupReconciler(self.placement_groups),
            SubnetReconciler(subnets, news, warnings),
            SecurityGroupReconciler(
                SecurityGroupProvider(ec2, clock, world.settings.security_group_refresh_interval),
                subnets,
                news,
                warnings,
            ),
            InstanceProfileReconciler(self._profiles),
            self._validation(ec2),
        )

    def _validation(self, ec2: Any) -> ValidationReconciler:
        world = self._world
        knowledge = ValidationInputs(
            world.cidr,
            world.seen.pools,
            lambda _: world.facts,
            lambda node_class: world.types,
            lambda *_: True,
            world.missing_to_join,
        )
        tried = LaunchDryRuns(
            ec2,
            world.clock,
            lambda: world.cluster,
            lambda *asked: world.template_data(*asked),
            world.settings.launch_batch_tag,
            lambda: world.drawn,
        )
        off = world.settings.disable_dry_run
        return ValidationReconciler(
            knowledge,
            None if off else tried,
            world.settings.kubelet_expressions,
            shares_gpus=world.settings.dra_nvidia_gpu_gate,
        )


REFERENCE = NodeClassReference(group="karpenter.k8s.aws", kind="EC2NodeClass", name="default")


def subnet(name: str, free: int = 10, zone: str = "us-west-2a", vpc: str = "vpc-1", **tagged: str) -> SubnetInfo:
    return SubnetInfo(
        subnet_id=name,
        vpc_id=vpc,
        availability_zone=zone,
        availability_zone_id=f"id-of-{zone}",
        available_ip_address_count=free,
        tags=tag_list(tagged or {"team": "a"}),
    )


def spec_of(**fields: Any) -> EC2NodeClassSpec:
    """A specification that finds what ``stocked`` holds."""
    usual: dict[str, Any] = {
        "subnet_selector_terms": (SubnetSelectorTerm(tags={"team": "a"}),),
        "security_group_selector_terms": (SecurityGroupSelectorTerm(tags={"team": "a"}),),
        "ami_selector_terms": (AMISelectorTerm(id="ami-1"),),
        "ami_family": "AL2023",
        "role": "nodes",
    }
    return EC2NodeClassSpec(**{**usual, **fields})
