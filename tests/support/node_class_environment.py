"""The controller of EC2NodeClasses with fakes of AWS, an in-memory API server, and a clock that tests advance."""

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
from karpenter.instancetypes import ec2_packaged_types
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
from support.fake_node_class_services import START, Ec2, Iam, Ssm
from support.manual_clock import ManualClock

CLUSTER = AwsClusterInfo("shop", "us-west-2", "https://shop.example", "Q0E=", "1.32")
TYPES = tuple(
    instance_type
    for instance_type in ec2_packaged_types.packaged_instance_types()
    if instance_type.name in ("m5.large", "m6g.large", "c5.xlarge", "g5.xlarge")
)


@dataclass
class RecordedEvents:
    """Recorded events, in order."""

    events: list[tuple[str, str, str]] = field(default_factory=list)

    def normal(self, kind: object, involved: ObjectMeta, reason: str, message: str) -> None:
        self.events.append(("Normal", reason, message))

    def warning(self, kind: object, involved: ObjectMeta, reason: str, message: str) -> None:
        self.events.append(("Warning", reason, message))

    def of(self, reason: str) -> list[str]:
        return [message for _, event, message in self.events if event == reason]


@dataclass
class WatchedObjects:
    """The cluster view, which ``NodeClassEnvironment.sync`` updates."""

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


class NodeClassEnvironment:
    """A cluster with EC2NodeClasses and their controller. ``reconcile`` runs one reconcile of a class."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock(START)
        self.kube = MemoryKube(MemoryServer(self.clock))
        self.ec2, self.iam, self.ssm = Ec2(), Iam(), Ssm()
        self.recorder, self.seen = RecordedEvents(), WatchedObjects()
        self.cluster = CLUSTER
        self.types: tuple[InstanceType, ...] = TYPES
        self.facts: tuple[KubeletTypeFacts, ...] = (KubeletTypeFacts("m5.xlarge", 4, 16384, 4, 15, 58),)
        self.addresses: dict[str, int] = {}
        self.units: dict[str, int] = {}
        self.user_data = ""
        self.cidr_error: AwsError | None = None
        self.missing: tuple[str, ...] = ()
        #: The random value of a process, 0 to 1.
        self.random_value = 0.5
        self.gone: list[str] = []
        self.known: dict[str, EC2NodeClass] = {}
        self.settings = AwsSettings("shop", **settings)
        self.made = self.restarted()

    def restarted(self) -> NodeClassProcess:
        """The controller of a new process."""
        return NodeClassProcess(self)

    async def cidr(self) -> str:
        if self.cidr_error is not None:
            raise self.cidr_error
        return "10.100.0.0/16"

    async def missing_to_join(self, node_class: EC2NodeClass) -> tuple[str, ...]:
        return self.missing

    def template_data(self, node_class: EC2NodeClass, trial: DryRunCandidate) -> LaunchTemplateData:
        interfaces = (NetworkInterfaceRequest(device_index=0, groups=("sg-1",)),)
        return LaunchTemplateData(image_id=trial.image.id, user_data=self.user_data, network_interfaces=interfaces)

    async def sync(self) -> None:
        """Update the cluster view from the API server."""
        self.known.clear()
        self.known.update(
            {node_class.metadata.name: node_class for node_class in (await self.kube.list(EC2_NODE_CLASS)).items}
        )
        self.seen.known_claims = (await self.kube.list(NODE_CLAIM)).items
        self.seen.known_pools = (await self.kube.list(NODE_POOL)).items

    async def reconcile(self, name: str = "default") -> float | None:
        await self.sync()
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

    def with_resources(self) -> NodeClassEnvironment:
        """Add subnets, a security group and an image that the default class selects."""
        own = tag_list({"team": "a"})
        self.ec2.subnets = [subnet("subnet-a", 50), subnet("subnet-b", 100, zone="us-west-2b")]
        self.ec2.groups = [SecurityGroupInfo(group_id="sg-1", group_name="nodes", vpc_id="vpc-1", tags=own)]
        self.ec2.images = [
            ImageInfo(image_id="ami-1", name="plain", architecture="x86_64", creation_date="2025-01-01T00:00:00Z")
        ]
        return self


class NodeClassProcess:
    """The controller in an environment, wired as the provider does it."""

    def __init__(self, environment: NodeClassEnvironment) -> None:
        self._environment = environment
        ec2: Any = environment.ec2
        iam: Any = environment.iam
        clock, settings = environment.clock, environment.settings
        self._news = NodeClassChangeLog()
        self.parameters = SsmParameters(environment.ssm, ec2, clock)
        self.placement_groups = PlacementGroupProvider(ec2, clock)
        self._profiles = InstanceProfileProvider(iam, clock, CLUSTER, lambda: str(uuid.uuid4()))
        self.collector = InstanceProfileGarbageCollector(
            self._profiles, CLUSTER, environment.known.values, environment.seen.claims
        )
        editions = NodeClassHashInputs()
        around = NodeClassReconcileContext(
            environment.kube,
            clock,
            node_class_condition_types(settings.reserved_capacity),
            environment.known.get,
            lambda: environment.cluster,
        )
        leftovers = NodeClassCleanup(None if settings.isolated_vpc else self._profiles, ec2, CLUSTER)
        end = NodeClassTermination(
            leftovers,
            environment.kube,
            environment.recorder,
            environment.seen.claims,
            lambda node_class: environment.gone.append(node_class.metadata.name),
        )
        stamps = NodeClassHashStamper(environment.kube, environment.seen.claims)
        self.controller = NodeClassController(around, self._parts(ec2), stamps, editions, end, Metrics())

    def _parts(self, ec2: Any) -> tuple[NodeClassSubreconciler, ...]:
        environment, clock, news = self._environment, self._environment.clock, self._news
        warnings = NodeClassWarnings(environment.recorder, news)
        images = AmiProvider(ec2, self.parameters, clock, lambda: environment.cluster, environment.settings)
        subnets = SubnetProvider(
            ec2, clock, environment.settings.subnet_refresh_interval, environment.addresses.__setitem__
        )
        reservations = CapacityReservationReconciler(
            CapacityReservationProvider(ec2, clock, environment.units.__setitem__), clock, news
        )
        return (
            AmiReconciler(images, lambda: environment.cluster, news, environment.recorder),
            *((reservations,) if environment.settings.reserved_capacity else ()),
            PlacementGroupReconciler(self.placement_groups),
            SubnetReconciler(subnets, news, warnings),
            SecurityGroupReconciler(
                SecurityGroupProvider(ec2, clock, environment.settings.security_group_refresh_interval),
                subnets,
                news,
                warnings,
            ),
            InstanceProfileReconciler(self._profiles),
            self._validation(ec2),
        )

    def _validation(self, ec2: Any) -> ValidationReconciler:
        environment = self._environment
        knowledge = ValidationInputs(
            environment.cidr,
            environment.seen.pools,
            lambda _: environment.facts,
            lambda node_class: environment.types,
            lambda *_: True,
            environment.missing_to_join,
        )
        tried = LaunchDryRuns(
            ec2,
            environment.clock,
            lambda: environment.cluster,
            lambda *asked: environment.template_data(*asked),
            environment.settings.launch_batch_tag,
            lambda: environment.random_value,
        )
        off = environment.settings.disable_dry_run
        return ValidationReconciler(
            knowledge,
            None if off else tried,
            environment.settings.kubelet_expressions,
            shares_gpus=environment.settings.dra_nvidia_gpu_gate,
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
    """A spec that selects the resources of ``with_resources``."""
    usual: dict[str, Any] = {
        "subnet_selector_terms": (SubnetSelectorTerm(tags={"team": "a"}),),
        "security_group_selector_terms": (SecurityGroupSelectorTerm(tags={"team": "a"}),),
        "ami_selector_terms": (AMISelectorTerm(id="ami-1"),),
        "ami_family": "AL2023",
        "role": "nodes",
    }
    return EC2NodeClassSpec(**{**usual, **fields})
