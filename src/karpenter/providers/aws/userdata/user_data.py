"""From all that is known to the bytes EC2 is given, and how many of them it takes (AWS-225)."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping

import structlog

from karpenter.model.ubuntu_images import is_self_contained
from karpenter.providers.aws.userdata import amazon_linux, bottlerocket
from karpenter.providers.aws.userdata.ami_families import (
    AL2,
    AL2023,
    BOTTLEROCKET,
    CUSTOM,
    UBUNTU,
    WINDOWS_2019,
    WINDOWS_2022,
    WINDOWS_2025,
)
from karpenter.providers.aws.userdata.bootstrap_options import BootstrapOptions, KubeletArguments, kubelet_extra_args
from karpenter.providers.aws.userdata.join_configuration import TemplateInputs, render_template

#: Bytes EC2 takes, before base64.
USER_DATA_LIMIT_BYTES = 16384
#: From this size on (90 % of the limit) a log line warns: the next label may be one too many.
USER_DATA_WARNING_BYTES = 14745

_log = structlog.get_logger()


def render_user_data(options: BootstrapOptions) -> bytes:
    """The user data, before base64.

    Raises ``UserDataError`` where the owner's part cannot be joined with ours, ``NodeClassNotReady`` where a fact about the
    cluster is missing that the family needs (AWS-248).
    """
    data = _WRITERS[options.family](options).encode()
    # Without a time stamp, so that the same text gives the same bytes.
    return gzip.compress(data, mtime=0) if options.join is not None and options.join.is_compressed else data


def user_data_size(data: bytes) -> int:
    """How many bytes the user data has, for ``karpenter_ec2nodeclasses_userdata_bytes``; logged when near the limit."""
    if len(data) >= USER_DATA_WARNING_BYTES:
        _log.info(
            "user data is close to the size EC2 takes",
            **{"userdata-bytes": len(data), "warn-threshold": USER_DATA_WARNING_BYTES, "limit": USER_DATA_LIMIT_BYTES},
        )
    return len(data)


_SCRIPT = r"$env:ProgramFiles\Amazon\EKS\Start-EKSBootstrap.ps1"


def windows_user_data(options: BootstrapOptions) -> str:
    """The owner's commands, then the call."""
    own = f"{options.custom_user_data}\n" if options.custom_user_data else ""
    return f"<powershell>\n{own}{' '.join(_powershell_call(options))}\n</powershell>"


def _powershell_call(options: BootstrapOptions) -> Iterator[str]:
    """With the service CIDR, where it is known, the script does not call the EKS API (AWS-259, Beyond)."""
    words = KubeletArguments(options)
    yield f'& "{_SCRIPT}"'
    yield f"-EKSClusterName {_powershell_quoted(options.cluster.name)}"
    yield f"-APIServerEndpoint {_powershell_quoted(options.cluster.endpoint)}"
    if options.cluster.ca_bundle:
        yield f"-Base64ClusterCA {_powershell_quoted(options.cluster.ca_bundle)}"
    yield f"-KubeletExtraArgs {_powershell_quoted(kubelet_extra_args(words))}"
    if words.cluster_dns:
        yield f"-DNSClusterIP {_powershell_quoted(words.cluster_dns[0])}"
    if options.cluster.service_cidr:
        yield f"-ServiceCIDR {_powershell_quoted(options.cluster.service_cidr)}"


def _powershell_quoted(text: str) -> str:
    """One word for PowerShell, taken as it is."""
    return "'" + text.replace("'", "''") + "'"


def custom_user_data(options: BootstrapOptions) -> str:
    """The user data of the EC2NodeClass is all there is (AWS-261), a template where its instances join with kubeadm."""
    if options.join is None:
        return options.custom_user_data
    return render_template(options.custom_user_data, TemplateInputs(options, options.join))


def ubuntu_user_data(options: BootstrapOptions) -> str:
    """A whole script of the owner's as it is, else the bootstrap script of EKS as on AL2 (API-860)."""
    is_whole = options.join is not None or is_self_contained(options.custom_user_data)
    return custom_user_data(options) if is_whole else amazon_linux.al2_user_data(options)


_WRITERS: Mapping[str, Callable[[BootstrapOptions], str]] = {
    AL2: amazon_linux.al2_user_data,
    AL2023: amazon_linux.al2023_user_data,
    BOTTLEROCKET: bottlerocket.bottlerocket_user_data,
    WINDOWS_2019: windows_user_data,
    WINDOWS_2022: windows_user_data,
    WINDOWS_2025: windows_user_data,
    CUSTOM: custom_user_data,
    UBUNTU: ubuntu_user_data,
}
