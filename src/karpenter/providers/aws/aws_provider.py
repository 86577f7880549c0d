"""The provider contract on EC2 (OPS-210 ff.): each method finds the EC2NodeClass and delegates to the part that does the work."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM, NODE_POOL, Kind
from karpenter.api.meta import Wire
from karpenter.conversion.metadata import KUBELET_ANNOTATION
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube.errors import KubeError, NotFound
from karpenter.kube.protocol import Reader
from karpenter.model import conditions, labels
from karpenter.model.clock import Clock
from karpenter.model.repair_policies import RepairPolicy
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_apis import InstanceApi
from karpenter.providers.aws.aws_context import AwsClusterView, AwsEventRecorder
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.ec2_descriptions import InstanceInfo
from karpenter.providers.aws.ec2_repair import LEGACY_REPAIR_POLICIES
from karpenter.providers.aws.instance import instance_info
from karpenter.providers.aws.instance.fleet_launcher import FleetLauncher
from karpenter.providers.aws.instance.instance_provider import InstanceProvider, InstanceTerminator
from karpenter.providers.aws.instancetype.instance_type_provider import InstanceTypeProvider
from karpenter.providers.aws.interruption.interruption_handling import replacement_reason
from karpenter.providers.aws.nodeclass.nodeclass_discovery import PlacementGroupProvider
from karpenter.providers.aws.nodeclass.nodeclass_drift import (
    DriftComparison,
    NodeClassDrift,
    confirmed_drift,
    node_class_drift,
)
from karpenter.providers.aws.nodeclass.nodeclass_hash import NodeClassHashInputs
from karpenter.providers.contract import (
    HookPending,
    HookSatisfied,
    Instance,
    InstanceDrift,
    InsufficientCapacity,
    LaunchFailed,
    NodeClassNotReady,
    ProviderError,
    RegistrationHook,
)


@dataclass(frozen=True)
class AwsProviderDependencies:
    """The parts the provider delegates to."""

    kube: Reader
    cluster_view: AwsClusterView
    events: AwsEventRecorder
    instance_types: InstanceTypeProvider
    launcher: FleetLauncher
    instances: InstanceProvider
    terminator: InstanceTerminator
    placement_groups: PlacementGroupProvider
    hash_inputs: NodeClassHashInputs
    hooks: tuple[RegistrationHook, ...]
    repair_policies: tuple[RepairPolicy, ...] = LEGACY_REPAIR_POLICIES


class AwsProvider:
    """Instances on EC2. Implements ``CloudProvider``."""

    def __init__(self, dependencies: AwsProviderDependencies, clock: Clock, reserved_capacity: bool) -> None:
        self._dependencies = dependencies
        self._clock = clock
        self._reserved_capacity = reserved_capacity

    @property
    def name(self) -> str:
        """The provider's name, in logs and metrics (AWS-691)."""
        return "aws"

    @property
    def node_class_kinds(self) -> tuple[Kind[Wire], ...]:
        """The NodeClass kinds it supports (AWS-691)."""
        return (EC2_NODE_CLASS,)  # type: ignore[return-value]

    def repair_policies(self) -> tuple[RepairPolicy, ...]:
        """Node conditions that lead to repair (K15-A63)."""
        return self._dependencies.repair_policies

    def registration_hooks(self) -> tuple[RegistrationHook, ...]:
        """The partition of a placement group (AWS-612)."""
        return self._dependencies.hooks

    async def create(self, claim: NodeClaim) -> Instance:
        """Launch one instance for the claim (AWS-410 to AWS-417)."""
        try:
            return await self._create(claim)
        finally:
            self._dependencies.launcher.expected_launches.begin(claim.metadata.uid)

    async def _create(self, claim: NodeClaim) -> Instance:
        node_class = self._cached_node_class(claim)
        if node_class is None:
            node_class = await ready_node_class(self._dependencies.kube, claim, self._dependencies.events)
        node_class = with_own_kubelet(node_class, claim, self._pool_of(claim))
        try:
            types = self._dependencies.instance_types.types_for(node_class)
        except ProviderError as error:
            raise LaunchFailed("InstanceTypeResolutionFailed", str(error)) from error
        instance = await self._dependencies.launcher.launch(claim, node_class, types)
        self._dependencies.instances.mark_launched(instance_info.parse_instance_id(instance.provider_id))
        return instance

    def _cached_node_class(self, claim: NodeClaim) -> EC2NodeClass | None:
        """The class as last watched if it can be launched from; whatever else it is, the API server has the last word.

        So a wave of launches does not read the same class once for every claim.
        """
        node_class = self._dependencies.cluster_view.node_class_named(claim.spec.node_class_ref.name)
        if node_class is None or node_class.metadata.deletion_timestamp is not None:
            return None
        try:
            check_node_class_ready(node_class)
        except ProviderError:
            return None
        return node_class

    async def delete(self, provider_id: str) -> None:
        """Have an instance ended (AWS-526)."""
        await self._dependencies.terminator.delete(provider_id)

    async def reboot(self, claim: NodeClaim, operation_id: str) -> None:
        """Restart the claim's instance in place (K15-A60)."""
        await self._dependencies.instances.reboot(claim.status.provider_id, operation_id)

    async def get(self, provider_id: str) -> Instance:
        """One instance, as EC2 has it now (AWS-522)."""
        return self._provider_instance(
            await self._dependencies.instances.describe(instance_info.parse_instance_id(provider_id))
        )

    async def list(self) -> tuple[Instance, ...]:
        """All instances of the cluster (AWS-521)."""
        return tuple(map(self._provider_instance, await self._dependencies.instances.list()))

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """Everything the pool's class could use (AWS §§7-8).

        Raises ``NodeClassNotReady`` where the class itself says, or is about to say, what is missing.
        """
        reference = pool.spec.template.spec.node_class_ref
        node_class = self._dependencies.cluster_view.node_class_named(reference.name)
        if node_class is None:
            raise NodeClassNotReady(f"EC2NodeClass {reference.name} of NodePool {pool.metadata.name} does not exist")
        node_class = with_own_kubelet(node_class, pool)
        try:
            return self._dependencies.instance_types.types_for(node_class)
        except ProviderError as error:
            if conditions.is_true(node_class.status.conditions, "Ready"):
                raise
            raise NodeClassNotReady(str(error)) from error

    async def drift(self, claim: NodeClaim) -> InstanceDrift | None:
        """How an instance differs from its class now (AWS-560 to AWS-568). No call is made where the class itself was changed."""
        reason = replacement_reason(claim)
        if reason:
            return InstanceDrift(reason)
        node_class = self._node_class_of_claim(claim)
        if node_class is None:
            return None
        drift = node_class_drift(claim, node_class, self._dependencies.hash_inputs.changed_fields)
        if not drift.reason:
            drift = await self._instance_drift(claim, node_class)
        return InstanceDrift(drift.reason, drift.message) if drift.reason else None

    async def _instance_drift(self, claim: NodeClaim, node_class: EC2NodeClass) -> NodeClassDrift:
        instances = self._dependencies.instances
        instance_id = instance_info.parse_instance_id(claim.status.provider_id)
        comparison = DriftComparison(
            claim=claim,
            node_class=node_class,
            instance=await instances.get(instance_id),
            types={
                instance_type.name: instance_type
                for instance_type in self._dependencies.instance_types.types_for(node_class)
            },
            group_id=self._group_id(node_class),
        )
        return await confirmed_drift(comparison, lambda: instances.describe(instance_id))

    def _node_class_of_claim(self, claim: NodeClaim) -> EC2NodeClass | None:
        """The class the claim's pool has now; None, and an event on the pool, where there is none to compare with (AWS-560)."""
        pool = self._pool_of(claim)
        if pool is None:
            return None
        node_class = self._dependencies.cluster_view.node_class_named(pool.spec.template.spec.node_class_ref.name)
        if node_class is None or node_class.metadata.deletion_timestamp is not None:
            self._dependencies.events.warning(
                NODE_POOL, pool.metadata, NODE_CLASS_UNRESOLVED_REASON, NODE_CLASS_UNRESOLVED_MESSAGE
            )
            return None
        return with_own_kubelet(node_class, claim, pool)

    def _pool_of(self, claim: NodeClaim) -> NodePool | None:
        name = claim.metadata.labels.get(labels.NODE_POOL, "")
        return next((each for each in self._dependencies.cluster_view.pools() if each.metadata.name == name), None)

    def _group_id(self, node_class: EC2NodeClass) -> str | None:
        """The placement group's id; empty where the class asks for none, None where it is not known."""
        if node_class.spec.placement_group_selector is None:
            return ""
        group = self._dependencies.placement_groups.cached(node_class)
        return group.group_id if group is not None else None

    def _provider_instance(self, info: InstanceInfo) -> Instance:
        """A described instance. Where its pool or class is gone, it is as EC2 describes it (AWS-525)."""
        node_class = (
            self._dependencies.cluster_view.node_class_named(instance_info.tag_value(info, aws_labels.NODE_CLASS))
            or EC2NodeClass()
        )
        launched = instance_info.instance_of_info(info, self._reserved_capacity)
        return Instance(
            provider_id=instance_info.provider_id_of(info),
            claim_name=instance_info.tag_value(info, aws_labels.NODE_CLAIM_TAG),
            labels={
                **instance_info.instance_labels(launched, node_class, None),
                labels.INSTANCE_TYPE: info.instance_type,
                labels.NODE_POOL: instance_info.tag_value(info, labels.NODE_POOL),
            },
            capacity={},
            allocatable={},
            created_at=info.launch_time or self._clock.now(),
            image_id=info.image_id,
            node_name=info.private_dns_name,
            terminating=instance_info.is_terminating(info),
        )


class PlacementGroupPartitionHook:
    """A registration hook: a claim of a partition group waits until EC2 says which partition it is."""

    name = "placement-group-partition"

    def __init__(self, ec2: InstanceApi) -> None:
        self._ec2 = ec2

    async def check(self, claim: NodeClaim) -> HookSatisfied | HookPending:
        """See ``RegistrationHook``: the partition as a label. Only an empty label waits, none is no group's."""
        if claim.metadata.labels.get(aws_labels.PLACEMENT_GROUP_PARTITION) != "":
            return HookSatisfied()
        partition = await self._partition(claim.status.provider_id.rpartition("/")[2])
        return (
            HookSatisfied(labels={aws_labels.PLACEMENT_GROUP_PARTITION: str(partition)}) if partition else HookPending()
        )

    async def _partition(self, instance: str) -> int:
        """Its number, 0 where it is not known yet: also while EC2 does not know a new instance everywhere."""
        try:
            instances = await self._ec2.describe_instances((instance,))
        except AwsError as error:
            if error.is_not_found:
                return 0
            raise ProviderError(f"the placement of {instance} cannot be read: {error}") from error
        return instances[0].placement.partition_number if instances else 0


#: Reason and text of the event on an object whose class is missing or being deleted (AWS-410, AWS-560).
NODE_CLASS_UNRESOLVED_REASON = "NodeClassNotResolved"
NODE_CLASS_UNRESOLVED_MESSAGE = "Failed resolving NodeClass"


async def ready_node_class(kube: Reader, claim: NodeClaim, events: AwsEventRecorder) -> EC2NodeClass:
    """The claim's class, fit for a launch. Raises ``ProviderError``; a missing class also makes an event (AWS-410)."""
    name = claim.spec.node_class_ref.name
    try:
        node_class = await kube.get(EC2_NODE_CLASS, name)
    except NotFound as error:
        _record_unresolved(claim, events)
        raise InsufficientCapacity(f"EC2NodeClass {name} does not exist") from error
    except KubeError as error:
        raise ProviderError(f"reading EC2NodeClass {name}, {error}") from error
    if node_class.metadata.deletion_timestamp is not None:
        _record_unresolved(claim, events)
        raise InsufficientCapacity(f"EC2NodeClass {name} is being deleted")
    check_node_class_ready(node_class)
    return node_class


def check_node_class_ready(node_class: EC2NodeClass) -> None:
    """Raises where the class is not ready (AWS-412 to AWS-415)."""
    name = node_class.metadata.name
    ready = conditions.find_condition(node_class.status.conditions, "Ready")
    if ready is None or ready.status == conditions.UNKNOWN:
        message = ready.message if ready is not None else ""
        raise LaunchFailed("NodeClassReadinessUnknown", f"EC2NodeClass {name} is not known to be ready: {message}")
    if ready.status == conditions.FALSE:
        raise NodeClassNotReady(ready.message)
    if ready.observed_generation != node_class.metadata.generation:
        raise NodeClassNotReady(f"EC2NodeClass {name} has changed and is not looked at yet")
    restricted = sorted(key for key in node_class.spec.tags if aws_labels.is_restricted_tag(key))
    if restricted:
        raise NodeClassNotReady(f"EC2NodeClass {name}: the tag {restricted[0]} is ours to set")


def _record_unresolved(claim: NodeClaim, events: AwsEventRecorder) -> None:
    events.warning(NODE_CLAIM, claim.metadata, NODE_CLASS_UNRESOLVED_REASON, NODE_CLASS_UNRESOLVED_MESSAGE)


def with_own_kubelet(node_class: EC2NodeClass, *owners: NodeClaim | NodePool | None) -> EC2NodeClass:
    """The class with the kubelet configuration of the first owner that has one; unreadable ones count as none."""
    for owner in owners:
        text = owner.metadata.annotations.get(KUBELET_ANNOTATION, "") if owner is not None else ""
        kubelet = _decoded(text)
        if kubelet:
            return msgspec.structs.replace(node_class, spec=msgspec.structs.replace(node_class.spec, kubelet=kubelet))
    return node_class


def _decoded(text: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, object])
    except (msgspec.ValidationError, msgspec.DecodeError):
        return {}
