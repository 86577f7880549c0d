"""Discovery at startup on AWS: checks that EC2 answers and finds the cluster's data (AWS-017 to AWS-026).

Values from settings are not requested. Missing values come from EKS, from the API server or from Services of well-known names.
Clusters other than EKS need no EKS: set endpoint, DNS address and service CIDR. Any failure ends the startup with one line that
says how to fix it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
import structlog

from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube.errors import KubeError, NotFound
from karpenter.kube.protocol import Reader
from karpenter.providers.aws.aws_apis import AwsApis
from karpenter.providers.aws.aws_errors import AwsError, error_log_fields
from karpenter.providers.aws.aws_settings import AwsClusterInfo, AwsSettings
from karpenter.providers.aws.aws_types import EksCluster
from karpenter.providers.contract import ProviderError

#: How often the version is asked for (AWS-025), in seconds.
VERSION_POLL_SECONDS = 300.0
#: Minor versions that are supported, first and last.
_FIRST_MINOR, _LAST_MINOR = 26, 37
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_NO_SUCH_CLUSTER = "ResourceNotFoundException"
_DNS_NAMESPACE, _DNS_NAME, _DNS_LABEL = "kube-system", "kube-dns", "k8s-app=kube-dns"
_log = structlog.get_logger()


class AwsStartupError(Exception):
    """The process cannot start; the message says what is wrong and how to fix it."""


class AwsConnection(Protocol):
    """The account as this module uses it: ``AwsSession``."""

    @property
    def services(self) -> AwsApis:
        """All ports."""

    async def open(self) -> str:
        """Find the region. Raises ``AwsError``."""

    async def probe(self) -> None:
        """Return if EC2 answers as it should. Raises ``AwsError``."""


@dataclass(frozen=True)
class ApiServerAccess:
    """What is asked of the cluster's API server: objects, its version (``1.33``, ``1.33+``) and the CA we trust it by.

    ``version`` raises ``KubeError``; ``ca_bundle`` is base64 of PEM, empty where the system's authorities are trusted.
    """

    reader: Reader
    version: Callable[[], Awaitable[str]]
    ca_bundle: str = ""


class _ServiceAddressSpec(Wire, frozen=True, kw_only=True):
    """Of a Service, its address; ``None`` for one without."""

    cluster_ip: str = msgspec.field(name="clusterIP", default="")


class _ServiceAddress(Wire, frozen=True, kw_only=True):
    """A Service as far as its address."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _ServiceAddressSpec = _ServiceAddressSpec()


_SERVICE_ADDRESS = Kind("", "v1", "services", "Service", True, _ServiceAddress)


class DiscoveredCluster:
    """What is known of the cluster. The version changes when the control plane is upgraded; ``reconcile`` follows it."""

    def __init__(self, cluster: AwsClusterInfo, queries: _ClusterQueries) -> None:
        self._cluster = cluster
        self._queries = queries
        _log_version(cluster.version)

    @property
    def cluster(self) -> AwsClusterInfo:
        """The cluster as last seen."""
        return self._cluster

    async def reconcile(self) -> float:
        """Read the version again, and the service CIDR where it is unknown; seconds until the next pass.

        Raises ``KubeError`` and ``ProviderError``; what was known stays.
        """
        self._queries.forget_eks()
        try:
            version = await self._queries.version()
        except AwsError as error:
            raise ProviderError(str(error)) from error
        if version != self._cluster.version:
            _log_version(version)
        cidr = self._cluster.service_cidr or await self._queries.service_cidr()
        self._cluster = replace(self._cluster, version=version, service_cidr=cidr)
        return VERSION_POLL_SECONDS


async def discover_cluster(
    connection: AwsConnection, settings: AwsSettings, api_server: ApiServerAccess
) -> DiscoveredCluster:
    """Find out everything that launching needs to know of the cluster, each step before the next. Raises ``AwsStartupError``."""
    region = await _connect(connection)
    asking = _ClusterQueries(connection.services, settings, api_server)
    cluster = AwsClusterInfo(
        name=settings.cluster_name,
        region=region,
        endpoint=await _endpoint(asking, settings, region),
        dns_ip=settings.cluster_dns_ip or await _dns_address(api_server.reader),
        ca_bundle=settings.cluster_ca_bundle or api_server.ca_bundle,
        arn=await _zonal_shift_arn(asking, connection.services, settings),
        version=await _version(asking),
        service_cidr=await asking.service_cidr(),
    )
    return DiscoveredCluster(cluster, asking)


class _ClusterQueries:
    """Questions to EKS, which is asked once for all of them, and to the API server."""

    def __init__(self, services: AwsApis, settings: AwsSettings, api_server: ApiServerAccess) -> None:
        self._services = services
        self._settings = settings
        self._api_server = api_server
        self._eks: EksCluster | None = None

    def forget_eks(self) -> None:
        """Forget what EKS said, so that it is asked again."""
        self._eks = None

    async def eks(self) -> EksCluster:
        """The cluster as EKS knows it. Raises ``AwsError``."""
        if self._eks is None:
            self._eks = await self._services.eks.describe_cluster(self._settings.cluster_name)
        return self._eks

    async def version(self) -> str:
        """``major.minor`` (AWS-025). Raises ``AwsError``, ``KubeError``; ``ProviderError`` for what is no version."""
        if self._settings.eks_control_plane:
            text = (await self.eks()).version
        else:
            text = await self._api_server.version()
        match = _VERSION.match(text)
        if match is None:
            raise ProviderError(f"{text!r} is no Kubernetes version")
        return f"{match[1]}.{match[2]}"

    async def service_cidr(self) -> str:
        """The Services' addresses (AWS-026); empty where unknown. It may be read again."""
        if self._settings.service_cidr:
            return self._settings.service_cidr
        try:
            network = (await self.eks()).kubernetes_network_config
        except AwsError as error:
            _log.debug("no service CIDR from EKS", error=error.message, **error_log_fields(error))
            return ""
        return (network.service_ipv4_cidr or network.service_ipv6_cidr) if network is not None else ""


async def _connect(connection: AwsConnection) -> str:
    """The region, once EC2 has answered (AWS-017, AWS-018)."""
    try:
        region = await connection.open()
    except AwsError as error:
        raise AwsStartupError(f"no access to AWS: {error.message}") from error
    try:
        await connection.probe()
    except AwsError as error:
        raise AwsStartupError(f"ec2 api connectivity check failed in {region}: {error}") from error
    return region


async def _endpoint(queries: _ClusterQueries, settings: AwsSettings, region: str) -> str:
    """AWS-019. Without a slash at the end, because paths are appended."""
    if settings.cluster_endpoint:
        return settings.cluster_endpoint.rstrip("/")
    try:
        endpoint = (await queries.eks()).endpoint.rstrip("/")
    except AwsError as error:
        why = (
            f"there is no EKS cluster {settings.cluster_name} in {region}"
            if error.code == _NO_SUCH_CLUSTER
            else f"EKS does not tell ({error})"
        )
        raise AwsStartupError(f"unable to detect the cluster endpoint: {why}; set --cluster-endpoint") from error
    if not endpoint:
        raise AwsStartupError("unable to detect the cluster endpoint: EKS knows none yet; set --cluster-endpoint")
    return endpoint


async def _dns_address(reader: Reader) -> str:
    """The address of the cluster's DNS, by its usual name or, where it has another, by its label (AWS-020)."""
    try:
        services = await _dns_services(reader)
    except KubeError as error:
        _log.error("unable to detect the IP of the kube-dns service, services are unreadable", error=str(error))
        return ""
    address = next(
        (
            service_address.spec.cluster_ip
            for service_address in services
            if service_address.spec.cluster_ip not in ("", "None")
        ),
        "",
    )
    if not address:
        _log.error("unable to detect the IP of the kube-dns service; set --cluster-dns-ip where instances need it")
    return address


async def _dns_services(reader: Reader) -> tuple[_ServiceAddress, ...]:
    try:
        return (await reader.get(_SERVICE_ADDRESS, _DNS_NAME, _DNS_NAMESPACE),)
    except NotFound:
        return (await reader.list(_SERVICE_ADDRESS, _DNS_NAMESPACE, label_selector=_DNS_LABEL)).items


async def _zonal_shift_arn(queries: _ClusterQueries, services: AwsApis, settings: AwsSettings) -> str:
    """The cluster's ARN, by which zonal shifts are known; empty where they are switched off (AWS-022)."""
    if not settings.enable_zonal_shift:
        return ""
    advice = "correct that, or switch --enable-zonal-shift off"
    try:
        arn = (await queries.eks()).arn
        await services.zonal_shift.get_managed_resource(arn)
    except AwsError as error:
        raise AwsStartupError(f"zonal shifts of {settings.cluster_name} cannot be read: {error}; {advice}") from error
    return arn


async def _version(queries: _ClusterQueries) -> str:
    try:
        return await queries.version()
    except (AwsError, KubeError, ProviderError) as error:
        raise AwsStartupError(f"unable to detect the Kubernetes version: {error}") from error


def _log_version(version: str) -> None:
    """Once per change (AWS-025)."""
    _log.debug("discovered kubernetes version", version=version)
    major, minor = version.split(".")
    if int(major) != 1 or not _FIRST_MINOR <= int(minor) <= _LAST_MINOR:
        supported = f"1.{_FIRST_MINOR} to 1.{_LAST_MINOR}"
        _log.error("kubernetes version is not supported", version=version, supported=supported)
