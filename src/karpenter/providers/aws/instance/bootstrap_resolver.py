"""Resolves what a launch needs of instance types and user data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.providers.aws.aws_labels import resource_tags_for
from karpenter.providers.aws.aws_settings import AwsClusterInfo, AwsSettings
from karpenter.providers.aws.bootstrap.bootstrap_token import BootstrapToken, JoinParameters
from karpenter.providers.aws.bootstrap.join_resolver import join_parameters
from karpenter.providers.aws.bootstrap.join_rules import joins_with_kubeadm
from karpenter.providers.aws.ec2_requests import LaunchTemplateData
from karpenter.providers.aws.instance.launch_plan import UserDataInputs, placement_group_id
from karpenter.providers.aws.instance.launch_templates import LaunchTemplateParameters, template_data
from karpenter.providers.aws.instancetype.instance_type_provider import InstanceTypeProvider
from karpenter.providers.aws.nodeclass.nodeclass_dry_runs import DryRunCandidate
from karpenter.providers.aws.userdata.ami_families import effective_ami_family
from karpenter.providers.aws.userdata.bootstrap_options import BootstrapOptions, UserDataError
from karpenter.providers.aws.userdata.bottlerocket import bottlerocket_version
from karpenter.providers.aws.userdata.kubelet_settings import KubeletSettings, resolve_kubelet_settings
from karpenter.providers.aws.userdata.user_data import render_user_data, user_data_size
from karpenter.providers.contract import LaunchFailed
from karpenter.scheduling.offerings.nodepool_templates import nodepool_requirements

_RAID0 = "RAID0"
_NO_TOKEN = BootstrapToken("000000", "0" * 16)

#: Gets the size of a class's user data in bytes (AWS-225).
UserDataSizeObserver = Callable[[str, int], None]


class BootstrapResolver:
    """Implements ``LaunchInputResolver``; ``cluster`` is the cluster as it is now, ``pools`` are the NodePools."""

    def __init__(
        self,
        instance_types: InstanceTypeProvider,
        cluster: Callable[[], AwsClusterInfo],
        settings: AwsSettings,
        pools: Callable[[], Iterable[NodePool]],
        observe_size: UserDataSizeObserver,
    ) -> None:
        self._instance_types = instance_types
        self._cluster = cluster
        self._settings = settings
        self._pools = pools
        self._observe_size = observe_size

    def boot_labels(self, claim: NodeClaim) -> Mapping[str, str]:
        """The claim's labels to which its NodePool gives one value; all of them if the NodePool is gone.

        Labels that differ between claims would make a launch template each, and no two claims could share a fleet. The Node gets
        them at registration, before it opens for pods, as it gets those the kubelet must not set.
        """
        own = claim.metadata.labels
        pool = next((pool for pool in self._pools() if pool.metadata.name == own.get(labels.NODE_POOL)), None)
        if pool is None:
            return own
        return dict(own.items() & _shared_labels(pool).items())

    def efa_interfaces(self, instance_type: str) -> int:
        """How many EFA interfaces a type can have."""
        hardware = self._instance_types.type_info(instance_type)
        info = hardware.network_info.efa_info if hardware is not None else None
        return info.maximum_efa_interfaces if info is not None else 0

    def kubelet(self, node_class: EC2NodeClass, instance_type: InstanceType) -> KubeletSettings:
        """The class's kubelet settings on a type."""
        facts = self._instance_types.kubelet_facts(node_class).get(instance_type.name)
        return (
            KubeletSettings()
            if facts is None
            else resolve_kubelet_settings(node_class.spec.kubelet, facts, self._settings.kubelet_expressions)
        )

    def user_data(self, inputs: UserDataInputs) -> bytes:
        """The data an instance boots with, before base64. Raises ``ProviderError``."""
        node_class = inputs.node_class
        spec = node_class.spec
        servers = spec.kubelet.get("clusterDNS")
        own_dns = tuple(map(str, servers)) if isinstance(servers, list | tuple) else ()
        bootstrap = BootstrapOptions(
            cluster=self._cluster(),
            family=effective_ami_family(spec),
            labels=inputs.labels,
            taints=inputs.taints,
            kubelet_spec=spec.kubelet,
            kubelet_settings=replace(inputs.kubelet, cluster_dns=own_dns),
            max_pods=inputs.max_pods,
            custom_user_data=spec.user_data or "",
            raid0=spec.instance_store_policy == _RAID0,
            image_version=bottlerocket_version(node_class),
            join=inputs.join,
        )
        try:
            data = render_user_data(bootstrap)
        except UserDataError as error:
            raise LaunchFailed(
                "LaunchFailed", f"spec.userData of EC2NodeClass {node_class.metadata.name}: {error}"
            ) from error
        self._observe_size(node_class.metadata.name, user_data_size(data))
        return data

    def dry_run_template_data(self, node_class: EC2NodeClass, dry_run: DryRunCandidate) -> LaunchTemplateData:
        """The data of a template that is made for a dry run. Raises ``ProviderError``."""
        pool = dry_run.pool
        template = pool.spec.template.spec if pool is not None else None
        boot = UserDataInputs(
            node_class=node_class,
            labels={**(_shared_labels(pool) if pool is not None else {}), labels.CAPACITY_TYPE: dry_run.capacity_type},
            taints=tuple(taint.as_taint() for taint in (*template.taints, *template.startup_taints))
            if template
            else (),
            max_pods=dry_run.instance_type.capacity.get(res.PODS, 0) // res.ONE_UNIT,
            kubelet=self.kubelet(node_class, dry_run.instance_type),
            join=self._dry_run_join(node_class, dry_run.pool_name),
        )
        parameters = LaunchTemplateParameters(
            image_id=dry_run.image.id,
            user_data=self.user_data(boot),
            capacity_type=dry_run.capacity_type,
            tenancy=dry_run.tenancy,
            group_id=placement_group_id((dry_run.instance_type,)),
        )
        cluster = self._cluster()
        tags = resource_tags_for(node_class, cluster, dry_run.pool_name)
        return template_data(node_class, cluster, parameters, tags, self._settings.reserved_capacity)

    def _dry_run_join(self, node_class: EC2NodeClass, pool: str) -> JoinParameters | None:
        """As a launch has them, with a token that is none: nothing boots with this user data."""
        if not joins_with_kubeadm(node_class, self._settings.bootstrap):
            return None
        return join_parameters(node_class, "dry-run", pool, _NO_TOKEN)


def _shared_labels(pool: NodePool) -> Mapping[str, str]:
    """Labels to which a NodePool gives one value, by its template or by a requirement."""
    shared = nodepool_requirements(pool).without(labels.SIMULATION_ONLY)
    return {
        key: next(iter(requirement.values))
        for key, requirement in shared.items()
        if not requirement.complement and len(requirement.values) == 1
    }
