"""Builds the controller of EC2NodeClasses: its subreconcilers in their order, and what they share."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM
from karpenter.kube.errors import KubeError
from karpenter.model import runtime_validation
from karpenter.providers.aws.aws_context import AwsContext
from karpenter.providers.aws.bootstrap import join_rules
from karpenter.providers.aws.bootstrap.bootstrap_settings import TokenDelivery
from karpenter.providers.aws.bootstrap.token_issuer import missing_prerequisites
from karpenter.providers.aws.instance.bootstrap_resolver import BootstrapResolver
from karpenter.providers.aws.instance.fleet_request import SubnetAddresses
from karpenter.providers.aws.instancetype.ec2_offerings import ReservationAvailability
from karpenter.providers.aws.instancetype.instance_type_provider import InstanceTypeProvider
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
from karpenter.providers.aws.nodeclass.nodeclass_dry_runs import LaunchDryRuns
from karpenter.providers.aws.nodeclass.nodeclass_hash import NodeClassHashInputs, NodeClassHashStamper
from karpenter.providers.aws.nodeclass.nodeclass_subreconcilers import (
    NodeClassChangeLog,
    NodeClassSubreconciler,
    NodeClassWarnings,
    node_class_condition_types,
)
from karpenter.providers.aws.nodeclass.nodeclass_validation import ValidationInputs, ValidationReconciler
from karpenter.providers.aws.userdata.join_configuration import lookalikes, wants_token
from karpenter.providers.contract import ProviderError


@dataclass(frozen=True)
class NodeClassDependencies:
    """The parts of the provider that NodeClass reconcilers read from and write to. ``on_deleted`` runs once a class is gone."""

    instance_types: InstanceTypeProvider
    bootstrap: BootstrapResolver
    placement_groups: PlacementGroupProvider
    subnet_addresses: SubnetAddresses
    reservation_availability: ReservationAvailability
    on_deleted: Callable[[EC2NodeClass], None]


class NodeClassControllers:
    """EC2NodeClasses and what is made for them."""

    def __init__(self, context: AwsContext, dependencies: NodeClassDependencies) -> None:
        self._context = context
        self._cluster_view = cluster_view = context.cluster_view
        self._dependencies = dependencies
        self._changes = NodeClassChangeLog()
        self._profiles = InstanceProfileProvider(
            context.services.iam, context.clock, context.current_cluster(), lambda: str(uuid.uuid4())
        )
        self.ssm_parameters = SsmParameters(context.services.ssm, context.services.ec2, context.clock)
        self.hash_inputs = NodeClassHashInputs()
        reconcile_context = NodeClassReconcileContext(
            kube=context.kube,
            clock=context.clock,
            condition_types=node_class_condition_types(context.settings.reserved_capacity),
            node_class_named=cluster_view.node_class_named,
            cluster=context.current_cluster,
        )
        stamps = NodeClassHashStamper(context.kube, cluster_view.claims)
        self.controller = NodeClassController(
            reconcile_context, self._subreconcilers(), stamps, self.hash_inputs, self._termination(), context.metrics
        )

    def on_node_class(self, old: EC2NodeClass | None, new: EC2NodeClass | None) -> None:
        """Informer handler. Publishes advice on the spec with every new generation."""
        if new is not None and (old is None or old.metadata.generation != new.metadata.generation):
            for finding in runtime_validation.advise_object(new):
                self._context.events.warning(EC2_NODE_CLASS, new.metadata, "NodeClassAdvice", str(finding))
            self._warn_of_misspelled_variables(new)
        self.controller.on_node_class(old, new)

    def _warn_of_misspelled_variables(self, node_class: EC2NodeClass) -> None:
        """AWS-922: such a name stays as it is, and the instance does not join."""
        if not join_rules.joins_with_kubeadm(node_class, self._context.settings.bootstrap):
            return
        for name, near in lookalikes(node_class.spec.user_data or "").items():
            text = f"spec.userData: ${{{name}}} is no variable and stays as it is; did you mean ${{{near}}}?"
            self._context.events.warning(EC2_NODE_CLASS, node_class.metadata, "NodeClassAdvice", text)

    async def collect_instance_profiles(self) -> None:
        """AWS-125. Raises ``ProviderError`` while anything cannot be read: it may have a profile in use."""
        cluster_view, kube = self._cluster_view, self._context.kube
        unreadable = (*(await kube.list(NODE_CLAIM)).undecodable, *(await kube.list(EC2_NODE_CLASS)).undecodable)
        if unreadable:
            texts = ", ".join(sorted(rejected.name for rejected in unreadable))
            raise ProviderError(f"instance profiles are left alone while nobody can read {texts}")
        await InstanceProfileGarbageCollector(
            self._profiles, self._context.current_cluster(), cluster_view.node_classes, cluster_view.claims
        ).collect()

    # -- parts ------------------------------------------------------------------------------------------------------------------

    def _subreconcilers(self) -> tuple[NodeClassSubreconciler, ...]:
        """The subreconcilers of a class, in the order in which they run (AWS-082)."""
        context, dependencies = self._context, self._dependencies
        ec2, clock, settings = context.services.ec2, context.clock, context.settings
        warnings = NodeClassWarnings(context.events, self._changes)
        images = AmiProvider(ec2, self.ssm_parameters, clock, context.current_cluster, settings)
        subnets = SubnetProvider(ec2, clock, settings.subnet_refresh_interval, self._record_free_addresses)
        reservations = CapacityReservationProvider(
            ec2, clock, dependencies.reservation_availability.set_available_count
        )
        reserved = (
            (CapacityReservationReconciler(reservations, clock, self._changes),) if settings.reserved_capacity else ()
        )
        return (
            AmiReconciler(images, context.current_cluster, self._changes, context.events),
            *reserved,
            PlacementGroupReconciler(dependencies.placement_groups),
            SubnetReconciler(subnets, self._changes, warnings),
            SecurityGroupReconciler(
                SecurityGroupProvider(ec2, clock, settings.security_group_refresh_interval),
                subnets,
                self._changes,
                warnings,
            ),
            InstanceProfileReconciler(self._profiles),
            self._validation(),
        )

    def _record_free_addresses(self, subnet_id: str, free: int) -> None:
        self._dependencies.subnet_addresses.set_free({subnet_id: free})

    def _validation(self) -> ValidationReconciler:
        context, instance_types = self._context, self._dependencies.instance_types
        inputs = ValidationInputs(
            service_cidr=self._service_cidr,
            pools=self._cluster_view.pools,
            kubelet_facts=lambda node_class: tuple(instance_types.kubelet_facts(node_class).values()),
            types=instance_types.types_for,
            is_compatible=instance_types.is_compatible,
            missing_to_join=self._missing_to_join,
        )
        dry_runs = LaunchDryRuns(
            context.services.ec2,
            context.clock,
            context.current_cluster,
            self._dependencies.bootstrap.dry_run_template_data,
            context.settings.launch_batch_tag,
        )
        enabled_dry_runs = None if context.settings.disable_dry_run else dry_runs
        return ValidationReconciler(
            inputs,
            enabled_dry_runs,
            context.settings.kubelet_expressions,
            shares_gpus=context.settings.dra_nvidia_gpu_gate,
        )

    async def _missing_to_join(self, node_class: EC2NodeClass) -> tuple[str, ...]:
        """AWS-936, for classes whose instances get a token. Raises ``KubeError``."""
        settings = self._context.settings.bootstrap
        is_external = settings.token_delivery is TokenDelivery.EXTERNAL
        if is_external or not join_rules.joins_with_kubeadm(node_class, settings):
            return ()
        if not wants_token(node_class.spec.user_data or ""):
            return ()
        return await missing_prerequisites(self._context.kube, settings.token_groups)

    async def _service_cidr(self) -> str:
        """AWS-026. Raises ``AwsError`` and ``ProviderError``."""
        context = self._context
        if not context.current_cluster().service_cidr:
            await context.services.eks.describe_cluster(context.current_cluster().name)
            try:
                await context.cluster.reconcile()
            except KubeError as error:
                raise ProviderError(f"asking for the cluster's version, {error}") from error
        return context.current_cluster().service_cidr

    def _termination(self) -> NodeClassTermination:
        context = self._context
        profiles = None if context.settings.isolated_vpc else self._profiles
        leftovers = NodeClassCleanup(profiles, context.services.ec2, context.current_cluster())
        return NodeClassTermination(leftovers, context.kube, context.events, self._cluster_view.claims, self._forget)

    def _forget(self, node_class: EC2NodeClass) -> None:
        self.hash_inputs.forget(node_class.metadata.name)
        self._changes.forget(node_class.metadata.uid)
        self._dependencies.on_deleted(node_class)
