"""Startup on AWS: discovery of the cluster, and startup errors (AWS §1.2)."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import pytest
from structlog.testing import capture_logs

from karpenter.kube.errors import Forbidden
from karpenter.kube.protocol import JsonObject
from karpenter.model.clock import SystemClock
from karpenter.providers.aws.aws_apis import AwsApis
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_settings import AwsSettings
from karpenter.providers.aws.aws_types import EksCluster, KubernetesNetworkConfig, ZonalShift
from karpenter.providers.aws.cluster_discovery import (
    ApiServerAccess,
    AwsStartupError,
    DiscoveredCluster,
    discover_cluster,
)
from karpenter.simulation.apiserver import MemoryKube, MemoryServer

SETTINGS = AwsSettings(cluster_name="prod")
EKS = EksCluster(
    name="prod",
    arn="arn:prod",
    version="1.31",
    endpoint="https://eks/",
    kubernetes_network_config=KubernetesNetworkConfig(service_ipv4_cidr="10.100.0.0/16"),
)


@dataclass
class FakeAws:
    """Fakes of an AWS account and an API server."""

    eks: EksCluster | AwsError = EKS
    opened: AwsError | None = None
    probed: AwsError | None = None
    shifts: AwsError | None = None
    version: str = "1.33"
    asked: list[str] = field(default_factory=list)
    server: MemoryServer = field(default_factory=lambda: MemoryServer(SystemClock()))

    @property
    def services(self) -> AwsApis:
        ports = SimpleNamespace(eks=self, zonal_shift=self)
        return cast(AwsApis, ports)

    async def open(self) -> str:
        if self.opened is not None:
            raise self.opened
        return "us-west-2"

    async def probe(self) -> None:
        if self.probed is not None:
            raise self.probed

    async def describe_cluster(self, name: str) -> EksCluster:
        self.asked.append(name)
        if isinstance(self.eks, AwsError):
            raise self.eks
        return self.eks

    async def get_managed_resource(self, arn: str) -> tuple[ZonalShift, ...]:
        self.asked.append(arn)
        if self.shifts is not None:
            raise self.shifts
        return ()

    async def say_version(self) -> str:
        return self.version

    def service(self, name: str, address: str, **labels: str) -> None:
        resource = self.server.resource("", "v1", "services")
        body: JsonObject = {"metadata": {"name": name, "labels": labels}, "spec": {"clusterIP": address}}
        self.server.create(resource, "kube-system", body)

    async def start(self, settings: AwsSettings = SETTINGS, ca_bundle: str = "") -> DiscoveredCluster:
        return await discover_cluster(
            self, settings, ApiServerAccess(MemoryKube(self.server), self.say_version, ca_bundle)
        )


async def refusal(starting: Awaitable[object]) -> str:
    with pytest.raises(AwsStartupError) as caught:
        await starting
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_missing_settings_are_discovered() -> None:
    """AWS-019 to AWS-021, AWS-025, AWS-026, AWS-T008, AWS-T010."""
    aws = FakeAws(version="1.33+")
    aws.service("kube-dns", "10.100.0.10")
    cluster = (await aws.start(ca_bundle="Q0E=")).cluster
    assert (cluster.name, cluster.region) == ("prod", "us-west-2")
    assert cluster.endpoint == "https://eks"
    assert cluster.ca_bundle == "Q0E="
    assert cluster.version == "1.33"
    assert cluster.dns_ip == "10.100.0.10"
    assert not cluster.is_ipv6
    assert cluster.service_cidr == "10.100.0.0/16"
    assert cluster.arn == ""
    assert aws.asked == ["prod"], "EKS is asked once for everything"


async def test_configured_settings_are_not_discovered() -> None:
    """AWS-002, AWS-003; the settings that serve clusters without EKS."""
    aws = FakeAws(eks=AwsError("AccessDeniedException", "no"))
    settings = replace(
        SETTINGS,
        cluster_endpoint="https://mine:6443",
        cluster_ca_bundle="TUlORQ==",
        cluster_dns_ip="10.0.0.10",
        service_cidr="10.0.0.0/16",
    )
    cluster = (await aws.start(settings, ca_bundle="Q0E=")).cluster
    assert cluster.endpoint == "https://mine:6443"
    assert cluster.ca_bundle == "TUlORQ=="
    assert (cluster.dns_ip, cluster.service_cidr) == ("10.0.0.10", "10.0.0.0/16")
    assert aws.asked == []


async def test_an_ipv6_dns_address_makes_an_ipv6_cluster() -> None:
    """AWS-020, AWS-T009."""
    aws = FakeAws()
    aws.service("kube-dns", "fd01:99f0:d47b::a")
    assert (await aws.start()).cluster.is_ipv6


async def test_a_dns_service_with_another_name_is_found_by_its_label() -> None:
    """AWS-020."""
    aws = FakeAws()
    aws.service("coredns", "10.0.0.53", **{"k8s-app": "kube-dns"})
    aws.service("headless", "None", **{"k8s-app": "kube-dns"})
    assert (await aws.start()).cluster.dns_ip == "10.0.0.53"


async def test_a_missing_dns_service_is_logged_and_does_not_stop_the_start() -> None:
    """AWS-020."""
    with capture_logs() as lines:
        assert (await FakeAws().start()).cluster.dns_ip == ""
    assert [line for line in lines if "unable to detect the IP of the kube-dns service" in line["event"]]


async def test_services_that_cannot_be_read_do_not_stop_the_start() -> None:
    """AWS-020."""
    aws = FakeAws()
    aws.server.inject_fault(Forbidden("no"), plural="services")
    assert (await aws.start()).cluster.dns_ip == ""


async def test_the_version_of_a_managed_control_plane_comes_from_eks() -> None:
    """AWS-005."""
    assert (await FakeAws().start(replace(SETTINGS, eks_control_plane=True))).cluster.version == "1.31"


@pytest.mark.parametrize(
    ("aws", "settings", "parts"),
    [
        pytest.param(
            FakeAws(opened=AwsError("NoRegion", "no AWS region; set AWS_REGION")),
            SETTINGS,
            ("no access to AWS", "set AWS_REGION"),
            id="AWS-017",
        ),
        pytest.param(
            FakeAws(probed=AwsError("UnauthorizedOperation", "You may not")),
            SETTINGS,
            ("ec2 api connectivity check failed in us-west-2", "UnauthorizedOperation: You may not"),
            id="AWS-018",
        ),
        pytest.param(
            FakeAws(eks=AwsError("ResourceNotFoundException", "No cluster found")),
            SETTINGS,
            (
                "unable to detect the cluster endpoint",
                "no EKS cluster prod in us-west-2",
                "--cluster-endpoint",
            ),
            id="AWS-T008",
        ),
        pytest.param(
            FakeAws(eks=AwsError("AccessDeniedException", "no")),
            SETTINGS,
            ("unable to detect the cluster endpoint", "AccessDeniedException"),
            id="AWS-019",
        ),
        pytest.param(
            FakeAws(eks=EksCluster(name="prod")),
            SETTINGS,
            ("unable to detect the cluster endpoint", "--cluster-endpoint"),
            id="no endpoint yet",
        ),
        pytest.param(
            FakeAws(eks=AwsError("AccessDeniedException", "no")),
            replace(SETTINGS, enable_zonal_shift=True, cluster_endpoint="https://x"),
            ("zonal shifts of prod cannot be read", "--enable-zonal-shift"),
            id="AWS-022, EKS",
        ),
        pytest.param(
            FakeAws(shifts=AwsError("ResourceNotFoundException", "not managed")),
            replace(SETTINGS, enable_zonal_shift=True),
            ("zonal shifts of prod cannot be read", "not managed"),
            id="AWS-022, shift",
        ),
        pytest.param(
            FakeAws(version="unknown"), SETTINGS, ("unable to detect the Kubernetes version", "'unknown'"), id="AWS-023"
        ),
    ],
)
async def test_a_startup_error_is_one_line(aws: FakeAws, settings: AwsSettings, parts: tuple[str, ...]) -> None:
    message = await refusal(aws.start(settings))
    for part in parts:
        assert part in message


async def test_zonal_shifts_are_read_by_the_cluster_arn() -> None:
    """AWS-022."""
    aws = FakeAws()
    assert (await aws.start(replace(SETTINGS, enable_zonal_shift=True))).cluster.arn == "arn:prod"
    assert aws.asked == ["prod", "arn:prod"]


async def test_an_upgrade_is_noticed_and_an_unsupported_version_is_logged_once() -> None:
    """AWS-025, K15-A11: 1.26 to 1.37."""
    aws = FakeAws(version="1.37")
    with capture_logs() as lines:
        facts = await aws.start()
        assert await facts.reconcile() == 300.0
        aws.version = "1.38"
        await facts.reconcile()
        await facts.reconcile()
    assert facts.cluster.version == "1.38"
    warnings = [line for line in lines if line["event"] == "kubernetes version is not supported"]
    assert [line["version"] for line in warnings] == ["1.38"]


async def test_a_service_cidr_that_could_not_be_read_is_read_again() -> None:
    """AWS-026: a CIDR that is unknown at startup can be read later."""
    aws = FakeAws(eks=AwsError("Timeout", "late"))
    facts = await aws.start(replace(SETTINGS, cluster_endpoint="https://x"))
    assert facts.cluster.service_cidr == ""
    aws.eks = EKS
    await facts.reconcile()
    assert facts.cluster.service_cidr == "10.100.0.0/16"
