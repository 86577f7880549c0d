"""The settings of the AWS provider, and what it discovers about its cluster at the start (AWS §1)."""
# ruff: noqa: RUF009 - what `setting` returns is a dataclass field, as `field` does

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction

from karpenter.model import setting_kinds as kinds
from karpenter.model.feature_gate_flags import parse_gate
from karpenter.model.feature_gates import FeatureGate, FeatureGates
from karpenter.model.setting_kinds import SettingKind, setting
from karpenter.model.ubuntu_images import IMAGE_PARAMETER
from karpenter.providers.aws.bootstrap.bootstrap_settings import (
    BootstrapSettings,
    SelfManagedSettings,
    bootstrap_settings_of,
)
from karpenter.runtime.intervals import Intervals


@dataclass(frozen=True)
class AwsFeatureGates:
    """The AWS provider's own gates (AWS-013, K15-A06), all off by default. Unknown names are ignored.

    The two of device claims have no effect while the core ignores such claims.
    """

    node_class_cel: bool = False
    dra_nvidia_gpu: bool = False
    dra_efa: bool = False
    reboot_for_repair: bool = False

    def __str__(self) -> str:
        values = (self.node_class_cel, self.dra_nvidia_gpu, self.dra_efa, self.reboot_for_repair)
        return ",".join(f"{name}={str(value).lower()}" for name, value in zip(AWS_GATES, values, strict=True))


#: The names of the gates, in the order of ``AwsFeatureGates``.
AWS_GATES = ("NodeClassCEL", "DRANVIDIAGPU", "DRAEFA", "RebootForRepair")


def parse_aws_feature_gates(text: str) -> AwsFeatureGates:
    """The gates of a list. Raises ``FeatureGateError``."""
    gates = dict(parse_gate(entry) for entry in filter(None, text.split(",")))
    return AwsFeatureGates(*(gates.get(name, False) for name in AWS_GATES))


_AWS_FEATURE_GATES: SettingKind[AwsFeatureGates] = SettingKind(
    parse_aws_feature_gates, "a list of gates", "GATE=true|false,..."
)


@dataclass(frozen=True, repr=False, eq=False)
class AwsProviderSettings:
    """AWS provider."""

    cluster_name: str = setting(
        kinds.TEXT, "", "Name of the cluster, also the tag on everything of it on AWS. Required with provider aws."
    )
    cluster_endpoint: str = setting(
        kinds.ENDPOINT, "", "URL of the API server for nodes; empty means the one EKS reports."
    )
    cluster_ca_bundle: str = setting(
        kinds.CA_BUNDLE,
        "",
        "Certificates of the API server, base64; empty means those of the controller's own connection.",
    )
    cluster_dns_ip: str = setting(
        kinds.IP_ADDRESS, "", "Address of the cluster's DNS; empty means that of the Service kube-dns."
    )
    service_cidr: str = setting(
        kinds.CIDR, "", "Address range of Services, needed by AL2023 images; empty means the one EKS reports."
    )
    isolated_vpc: bool = setting(
        kinds.SWITCH, "false", "Never call AWS services that have no endpoint inside a VPC: prices, instance profiles."
    )
    eks_control_plane: bool = setting(kinds.SWITCH, "false", "Ask EKS, not the API server, for the Kubernetes version.")
    vm_memory_overhead_percent: Fraction = setting(
        kinds.FRACTION, "0.075", "Share of an instance's memory that its operating system does not see: 0.075 is 7.5 %."
    )
    interruption_queue: str = setting(
        kinds.TEXT, "", "Name of the SQS queue with interruption messages; empty means that none is read."
    )
    reserved_enis: int = setting(kinds.COUNT, "0", "Network interfaces of every instance that pods cannot use.")
    disable_dry_run: bool = setting(kinds.SWITCH, "false", "Validate EC2NodeClasses without dry runs of launches.")
    launch_batch_tag: bool = setting(
        kinds.SWITCH,
        "true",
        "Tag instances with karpenter.k8s.aws/launch-batch, which finds instances of a lost answer; Karpenter has no such tag.",
    )
    enable_zonal_shift: bool = setting(kinds.SWITCH, "false", "Avoid zones that EKS shifts away from.")
    ami_refresh_interval: timedelta = setting(
        kinds.REFRESH_INTERVAL, "1m", "How long the images of image selectors are cached."
    )
    ubuntu_image_parameter: str = setting(
        kinds.TEXT,
        "",
        "SSM parameter of images of amiFamily Ubuntu, with {version} and {arch}; empty means Canonical's for 22.04, ebs-gp2.",
    )
    subnet_refresh_interval: timedelta = setting(
        kinds.REFRESH_INTERVAL, "1m", "How long the subnets of subnet selectors are cached."
    )
    security_group_refresh_interval: timedelta = setting(
        kinds.REFRESH_INTERVAL, "1m", "How long the security groups of security group selectors are cached."
    )
    aws_feature_gates: AwsFeatureGates = setting(
        _AWS_FEATURE_GATES,
        "",
        "Feature gates of the AWS provider: NodeClassCEL, DRANVIDIAGPU, DRAEFA, RebootForRepair; those left out are off.",
    )


@dataclass(frozen=True, repr=False, eq=False)
class DeclaredAwsSettings(AwsProviderSettings, SelfManagedSettings):
    """All settings that the AWS provider declares."""


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
    launch_batch_tag: bool = True
    enable_zonal_shift: bool = False
    ami_refresh_interval: timedelta = timedelta(minutes=1)
    ubuntu_image_parameter: str = IMAGE_PARAMETER
    subnet_refresh_interval: timedelta = timedelta(minutes=1)
    security_group_refresh_interval: timedelta = timedelta(minutes=1)
    garbage_collection_interval: timedelta = timedelta(minutes=2)
    kubelet_expressions: bool = False
    reserved_capacity: bool = True
    node_overlay: bool = False
    reboot_for_repair: bool = False
    legacy_node_repair: bool = False
    #: Types bring the GPUs and the EFA interfaces that device claims can be met by.
    dra_nvidia_gpu: bool = False
    dra_efa: bool = False
    #: Gate DRANVIDIAGPU as written: validation asks it even while the core ignores claims (K15-A26).
    dra_nvidia_gpu_gate: bool = False
    bootstrap: BootstrapSettings = BootstrapSettings()


def aws_settings_of(
    settings: DeclaredAwsSettings,
    gates: FeatureGates,
    intervals: Intervals,
    *,
    legacy_node_repair: bool = False,
    ignore_dra_requests: bool = True,
) -> AwsSettings:
    """The provider's settings from what was declared, and from feature gates and intervals of the process."""
    aws_gates = settings.aws_feature_gates
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
        launch_batch_tag=settings.launch_batch_tag,
        enable_zonal_shift=settings.enable_zonal_shift,
        ami_refresh_interval=settings.ami_refresh_interval,
        ubuntu_image_parameter=settings.ubuntu_image_parameter or IMAGE_PARAMETER,
        subnet_refresh_interval=settings.subnet_refresh_interval,
        security_group_refresh_interval=settings.security_group_refresh_interval,
        kubelet_expressions=settings.aws_feature_gates.node_class_cel,
        garbage_collection_interval=intervals.garbage_collection,
        reserved_capacity=FeatureGate.RESERVED_CAPACITY in gates,
        node_overlay=FeatureGate.NODE_OVERLAY in gates,
        reboot_for_repair=settings.aws_feature_gates.reboot_for_repair,
        legacy_node_repair=legacy_node_repair,
        dra_nvidia_gpu=aws_gates.dra_nvidia_gpu and not ignore_dra_requests,
        dra_efa=aws_gates.dra_efa and not ignore_dra_requests,
        dra_nvidia_gpu_gate=aws_gates.dra_nvidia_gpu,
        bootstrap=bootstrap_settings_of(settings),
    )


@dataclass(frozen=True)
class AwsClusterInfo:
    """What is known of the cluster once the process has started (AWS-018 to AWS-026).

    ``version`` is ``major.minor``, ``full_version`` also has the patch (``1.33.2``); ``ca_bundle`` is base64 of PEM.
    ``full_version``, ``dns_ip`` and ``service_cidr`` are empty where unknown, ``arn`` where there is no EKS.
    """

    name: str
    region: str
    endpoint: str
    ca_bundle: str
    version: str
    dns_ip: str = ""
    service_cidr: str = ""
    arn: str = ""
    full_version: str = ""

    @property
    def is_ipv6(self) -> bool:
        """Whether the cluster's addresses are IPv6 (AWS-020)."""
        return ":" in self.dns_ip
