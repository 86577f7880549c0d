"""The settings of the AWS provider, and what it discovers about its cluster at the start (AWS §1)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction

from karpenter.model.feature_gates import FeatureGate
from karpenter.runtime.settings import Settings


@dataclass(frozen=True)
class AwsSettings:
    """The provider's settings (AWS-001 to AWS-013). ``cluster_ca_bundle`` is base64 of PEM.

    ``cluster_dns_ip`` and ``service_cidr`` are ours: what else would come from the EKS API or a Service of a known name, so that
    clusters without either can be served too.
    """

    cluster_name: str
    cluster_endpoint: str = ""
    cluster_ca_bundle: str = ""
    cluster_dns_ip: str = ""
    service_cidr: str = ""
    isolated_vpc: bool = False
    eks_control_plane: bool = False
    vm_memory_overhead: Fraction = Fraction(75, 1000)
    interruption_queue: str = ""
    reserved_enis: int = 0
    disable_dry_run: bool = False
    enable_zonal_shift: bool = False
    ami_refresh_interval: timedelta = timedelta(minutes=1)
    subnet_refresh_interval: timedelta = timedelta(minutes=1)
    garbage_collection_interval: timedelta = timedelta(minutes=2)
    kubelet_expressions: bool = False
    reserved_capacity: bool = True
    node_overlay: bool = False


def aws_settings_of(settings: Settings) -> AwsSettings:
    """The settings of the process that concern this provider."""
    return AwsSettings(
        cluster_name=settings.cluster_name,
        cluster_endpoint=settings.cluster_endpoint,
        cluster_ca_bundle=settings.cluster_ca_bundle,
        cluster_dns_ip=settings.cluster_dns_ip,
        service_cidr=settings.service_cidr,
        isolated_vpc=settings.isolated_vpc,
        eks_control_plane=settings.eks_control_plane,
        vm_memory_overhead=settings.vm_memory_overhead_percent,
        interruption_queue=settings.interruption_queue,
        reserved_enis=settings.reserved_enis,
        disable_dry_run=settings.disable_dry_run,
        enable_zonal_shift=settings.enable_zonal_shift,
        ami_refresh_interval=settings.ami_refresh_interval,
        subnet_refresh_interval=settings.subnet_refresh_interval,
        kubelet_expressions=settings.aws_feature_gates.node_class_cel,
        garbage_collection_interval=settings.intervals.garbage_collection,
        reserved_capacity=FeatureGate.RESERVED_CAPACITY in settings.gates,
        node_overlay=FeatureGate.NODE_OVERLAY in settings.gates,
    )


@dataclass(frozen=True)
class AwsClusterInfo:
    """What is known of the cluster once the process has started (AWS-018 to AWS-026).

    ``version`` is ``major.minor``; ``ca_bundle`` base64 of PEM; ``dns_ip`` and ``service_cidr`` are empty where unknown, ``arn``
    where there is no EKS.
    """

    name: str
    region: str
    endpoint: str
    ca_bundle: str
    version: str
    dns_ip: str = ""
    service_cidr: str = ""
    arn: str = ""

    @property
    def is_ipv6(self) -> bool:
        """Whether the cluster's addresses are IPv6 (AWS-020)."""
        return ":" in self.dns_ip
