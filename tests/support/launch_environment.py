"""The environment of launch tests: an API server in memory, a fake EC2, an EC2NodeClass and a few types, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from karpenter.api.core import Node
from karpenter.api.ec2_node_class import (
    AMI,
    EC2NodeClass,
    EC2NodeClassSpec,
    EC2NodeClassStatus,
    ImageRequirement,
    MetadataOptions,
    SecurityGroup,
    Subnet,
)
from karpenter.api.karpenter import NodeClaim, NodeClaimResourceRequests, NodeClaimSpec, NodeClassReference
from karpenter.api.kinds import NODE_CLAIM, Kind
from karpenter.api.meta import Condition, ObjectMeta, Wire
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.well_known_labels import complete_requirements, label_in
from karpenter.metrics import Metrics
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements, requirement
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_metrics import InstanceMetrics
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.bootstrap.bootstrap_token import JoinParameters
from karpenter.providers.aws.instance import instance_info
from karpenter.providers.aws.instance.fleet_launcher import FleetLauncher, JoinParameterSource, LauncherDependencies
from karpenter.providers.aws.instance.fleet_request import FleetSender, SubnetAddresses
from karpenter.providers.aws.instance.instance_provider import InstanceProvider, InstanceScope
from karpenter.providers.aws.instance.launch_effects import LaunchEffects
from karpenter.providers.aws.instance.launch_plan import (
    LaunchPlan,
    LaunchSettings,
    LaunchSubject,
    UserDataInputs,
    plan_launch,
)
from karpenter.providers.aws.instance.launch_templates import LaunchTemplateProvider
from karpenter.providers.aws.instancetype.ec2_offerings import OfferingKey
from karpenter.providers.aws.userdata.kubelet_settings import KubeletSettings
from karpenter.simulation import virtual_time as virtual
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.apiserver.list_query import compile_query
from karpenter.simulation.virtual_time import LoopClock
from support.builders import wanted
from support.fake_ec2 import FakeEc2
from support.metrics_scrape import counted

#: A label with a different value for each NodeClaim.
OWN_LABEL = "example.com/own"
START = datetime(2026, 1, 5, 9, tzinfo=UTC)
CLUSTER = AwsClusterInfo(
    name="c", region="us-west-2", endpoint="https://c.example", ca_bundle="Y2E=", version="1.33", dns_ip="10.100.0.10"
)
CLASS_REF = NodeClassReference(group="karpenter.k8s.aws", kind="EC2NodeClass", name="default")
ZONES = ("a", "b")
ZONE_IDS = {"a": "az1", "b": "az2", "c": "az3"}
READY = Condition(type="Ready", status="True", observed_generation=1)
ARM_IMAGE = AMI(id="ami-arm", requirements=(ImageRequirement(key=labels.ARCH, operator="In", values=("arm64",)),))
X86_IMAGE = AMI(id="ami-x86", requirements=(ImageRequirement(key=labels.ARCH, operator="In", values=("amd64",)),))
SPOT_OR_ON_DEMAND = {labels.CAPACITY_TYPE: (labels.SPOT, labels.ON_DEMAND)}
ON_DEMAND = {labels.CAPACITY_TYPE: (labels.ON_DEMAND,)}
RESERVED_OR_ON_DEMAND = {labels.CAPACITY_TYPE: (labels.RESERVED, labels.ON_DEMAND)}


def node_class(spec: Mapping[str, Any] = {}, **status: Any) -> EC2NodeClass:
    defaults: dict[str, Any] = {
        "subnets": (Subnet(id="s-a", zone="a", zone_id="az1"), Subnet(id="s-b", zone="b", zone_id="az2")),
        "security_groups": (SecurityGroup(id="sg-2"), SecurityGroup(id="sg-1")),
        "amis": (X86_IMAGE, ARM_IMAGE),
        "instance_profile": "profile",
        "conditions": (READY,),
    }
    return EC2NodeClass(
        metadata=ObjectMeta(
            name="default",
            uid="class-uid",
            generation=1,
            annotations={aws_labels.NODE_CLASS_HASH: "h", aws_labels.NODE_CLASS_HASH_VERSION: "v"},
        ),
        spec=EC2NodeClassSpec(**{"ami_family": "AL2023", "metadata_options": MetadataOptions(), **spec}),
        status=EC2NodeClassStatus(**{**defaults, **status}),
    )


def replaced_annotations(node_class: EC2NodeClass, annotations: Mapping[str, str]) -> EC2NodeClass:
    """The class with additional annotations."""
    meta = node_class.metadata
    replaced = msgspec.structs.replace(meta, annotations={**meta.annotations, **annotations})
    return msgspec.structs.replace(node_class, metadata=replaced)


def offering(kind: str, zone: str, price: float, **more: Any) -> Offering:
    required = {labels.CAPACITY_TYPE: kind, labels.ZONE: zone, **more.pop("labels", {})}
    return Offering(Requirements(requirement(key, "In", (value,)) for key, value in required.items()), price, **more)


def reserved(
    zone: str, price: float, units: int, reservation: str, kind: str = "default", again: bool = False
) -> Offering:
    own = {
        labels.RESERVATION_ID: reservation,
        aws_labels.RESERVATION_TYPE: kind,
        aws_labels.RESERVATION_INTERRUPTIBLE: "true" if again else "false",
    }
    return offering(labels.RESERVED, zone, price, reservation_capacity=units, labels=own)


def ec2_type(
    name: str,
    price: float = 0.1,
    *,
    offerings: Iterable[Offering] | None = None,
    arch: str = "amd64",
    pods: int = 29,
    capacity: Mapping[str, str] = {},
    more: Mapping[str, tuple[str, ...]] = {},
) -> InstanceType:
    """An instance type. Default offerings: on-demand, and spot at 40 % of the price, in both zones."""
    default_offerings = tuple(
        offering(kind, zone, price * factor)
        for zone in ZONES
        for kind, factor in ((labels.SPOT, 0.4), (labels.ON_DEMAND, 1.0))
    )
    own = tuple(offerings) if offerings is not None else default_offerings
    values_by_key = {
        labels.INSTANCE_TYPE: (name,),
        labels.ARCH: (arch,),
        labels.OS: ("linux",),
        labels.ZONE: tuple(sorted({item.zone for item in own})),
        labels.CAPACITY_TYPE: (labels.SPOT, labels.ON_DEMAND, labels.RESERVED),
        aws_labels.TENANCY: ("default", "dedicated"),
        labels.RESERVATION_ID: tuple({item.reservation_id for item in own if item.reservation_id}),
        aws_labels.RESERVATION_TYPE: ("default", "capacity-block"),
        aws_labels.RESERVATION_INTERRUPTIBLE: ("true", "false"),
        **more,
    }
    amounts = res.parse_resources({"cpu": "2", "memory": "8Gi", "pods": str(pods), **capacity})
    asked = {key: label_in(key, *values) for key, values in values_by_key.items() if values}
    return InstanceType(name, complete_requirements(asked), amounts, {}, own)


def claim(
    name: str = "one",
    requirements: Mapping[str, tuple[str, ...]] = SPOT_OR_ON_DEMAND,
    requests: Mapping[str, str] = {"cpu": "1"},
    **metadata: Any,
) -> NodeClaim:
    own: dict[str, Any] = {"uid": f"uid-{name}", "labels": {labels.NODE_POOL: "default"}, **metadata}
    return NodeClaim(
        metadata=ObjectMeta(name=name, **own),
        spec=NodeClaimSpec(
            requirements=tuple(wanted(key, "In", *values) for key, values in requirements.items()),
            node_class_ref=CLASS_REF,
            resources=NodeClaimResourceRequests(requests=requests),
        ),
    )


class StaticLaunchInputs:
    """Fixed launch inputs. User data contains the inputs that it was created from."""

    def boot_labels(self, claim: NodeClaim) -> Mapping[str, str]:
        return {key: value for key, value in claim.metadata.labels.items() if key != OWN_LABEL}

    def efa_interfaces(self, instance_type: str) -> int:
        return 4

    def kubelet(self, node_class: EC2NodeClass, instance_type: InstanceType) -> KubeletSettings:
        return KubeletSettings()

    def user_data(self, inputs: UserDataInputs) -> bytes:
        return msgspec.json.encode((dict(inputs.labels), inputs.taints, inputs.max_pods), order="sorted")


def planned(
    asked: NodeClaim, types: Iterable[InstanceType], of: EC2NodeClass | None = None, **rules: Any
) -> LaunchPlan:
    return plan_launch(
        LaunchSubject(asked, of or node_class()), tuple(types), StaticLaunchInputs(), LaunchSettings(CLUSTER, **rules)
    )


class NoJoinParameters:
    """No instance joins with kubeadm."""

    async def parameters(self, claim: NodeClaim, node_class: EC2NodeClass) -> JoinParameters | None:
        return None

    async def launch_failed(self, claim: NodeClaim) -> None:
        raise AssertionError("there are no join parameters to delete")


@dataclass
class RecordedEffects:
    """Recorded effects of launches: unavailable offerings, reservation counts, events."""

    unavailable: list[OfferingKey] = field(default_factory=list)
    unavailable_capacity_types: list[str] = field(default_factory=list)
    full_subnets: list[str] = field(default_factory=list)
    units: dict[str, int] = field(default_factory=dict)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def mark_unavailable(self, key: OfferingKey, reason: str, fleet_id: str) -> None:
        self.unavailable.append(key)

    def mark_capacity_type_unavailable(self, capacity_type: str) -> None:
        self.unavailable_capacity_types.append(capacity_type)

    def mark_subnet_unavailable(self, subnet_id: str) -> None:
        self.full_subnets.append(subnet_id)

    def mark_launched(self, reservation: str) -> None:
        self.units[reservation] = self.units.get(reservation, 0) - 1

    def mark_exhausted(self, reservation: str) -> None:
        self.units[reservation] = 0

    def mark_terminated(self, reservation: str) -> None:
        self.units[reservation] = self.units.get(reservation, 0) + 1

    def warning(self, kind: Kind[Wire], involved: ObjectMeta, reason: str, message: str) -> None:
        self.warnings.append((involved.name, reason))
        self.messages.append(message)

    def zone_id(self, zone: str) -> str:
        return ZONE_IDS.get(zone, "")


@dataclass
class WatchedObjects:
    """A cluster view without delay."""

    kube: MemoryKube
    nodes: list[Node] = field(default_factory=list)

    def claims(self) -> Iterable[NodeClaim]:
        resource = self.kube.server.resource(NODE_CLAIM.group, NODE_CLAIM.version, NODE_CLAIM.plural)
        page = self.kube.server.list(resource, compile_query(NODE_CLAIM, "", "", ""))
        return [typed for entry in page.entries if isinstance(typed := entry.typed(NODE_CLAIM), NodeClaim)]

    def pools(self) -> Iterable[Any]:
        return ()

    def claim_of(self, instance_id: str) -> NodeClaim | None:
        return next(
            (nodeclaim for nodeclaim in self.claims() if nodeclaim.status.provider_id.endswith(f"/{instance_id}")), None
        )

    def node_of(self, instance_id: str) -> Node | None:
        return next((node for node in self.nodes if node.spec.provider_id.endswith(f"/{instance_id}")), None)


@dataclass
class LaunchEnvironment:
    """The parts that a launch test uses and inspects."""

    clock: LoopClock
    kube: MemoryKube
    ec2: FakeEc2
    recorded: RecordedEffects = field(default_factory=RecordedEffects)
    addresses: SubnetAddresses = field(default_factory=SubnetAddresses)
    shifted: frozenset[str] = frozenset()
    join_source: JoinParameterSource = field(default_factory=NoJoinParameters)
    inputs: StaticLaunchInputs = field(default_factory=StaticLaunchInputs)

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.series = InstanceMetrics(self.metrics, self.recorded)
        self.restart()

    def restart(self) -> None:
        """Start a new process: all state in memory is new, except metrics."""
        region = InstanceScope(CLUSTER, lambda: self.shifted, self.recorded.zone_id)
        self.instances = InstanceProvider(self.ec2, region, self.clock, self.series)
        self.templates = LaunchTemplateProvider(self.ec2, CLUSTER, self.clock)
        self.seen = WatchedObjects(self.kube)
        self.launcher = self._launcher()

    def _launcher(self) -> FleetLauncher:
        recorded = self.recorded
        dependencies = LauncherDependencies(
            kube=self.kube,
            ec2=self.ec2,
            clock=self.clock,
            fleet_sender=FleetSender(self.ec2, self.templates),
            subnet_addresses=self.addresses,
            input_resolver=self.inputs,
            join_source=self.join_source,
            effects=LaunchEffects(recorded, recorded, self.addresses, self.series, recorded),
            metrics=self.series,
        )
        return FleetLauncher(dependencies, LaunchSettings(CLUSTER))

    async def claim(self, name: str = "one", *args: Any, **more: Any) -> NodeClaim:
        return await self.kube.create(NODE_CLAIM, claim(name, *args, **more))

    async def set_provider_id(self, asked: NodeClaim, instance_id: str) -> None:
        """Write the provider id of its instance into a NodeClaim."""
        patch = {"status": {"providerID": instance_info.format_provider_id("a", instance_id)}}
        await self.kube.patch(NODE_CLAIM, asked.metadata.name, patch, subresource="status")

    def sample(self, name: str, **own: str) -> float:
        return counted(self.metrics.registry, name, own) or 0.0


def run_scenario(scenario: Callable[[LaunchEnvironment], Awaitable[None]]) -> None:
    """Run a scenario in virtual time."""

    async def main(clock: LoopClock) -> None:
        await scenario(LaunchEnvironment(clock, MemoryKube(MemoryServer(clock)), FakeEc2(clock)))

    virtual.run_virtual(main, START)
