"""Windows: PowerShell that calls the image's own bootstrap script (AWS-258, AWS-259)."""

from __future__ import annotations

from collections.abc import Iterator

from karpenter.providers.aws.userdata.flags import kubelet_extra_args
from karpenter.providers.aws.userdata.inputs import Bootstrap, KubeletWords

_SCRIPT = r"$env:ProgramFiles\Amazon\EKS\Start-EKSBootstrap.ps1"


def write(given: Bootstrap) -> str:
    """The owner's commands, then the call."""
    own = f"{given.custom}\n" if given.custom else ""
    return f"<powershell>\n{own}{' '.join(_call(given))}\n</powershell>"


def _call(given: Bootstrap) -> Iterator[str]:
    """The script's service CIDR, where it is known, spares the machine a question to the EKS API (AWS-259, Beyond)."""
    words = KubeletWords(given)
    yield f'& "{_SCRIPT}"'
    yield f"-EKSClusterName {_quoted(given.cluster.name)}"
    yield f"-APIServerEndpoint {_quoted(given.cluster.endpoint)}"
    if given.cluster.ca_bundle:
        yield f"-Base64ClusterCA {_quoted(given.cluster.ca_bundle)}"
    yield f"-KubeletExtraArgs {_quoted(kubelet_extra_args(words))}"
    if words.cluster_dns:
        yield f"-DNSClusterIP {_quoted(words.cluster_dns[0])}"
    if given.cluster.service_cidr:
        yield f"-ServiceCIDR {_quoted(given.cluster.service_cidr)}"


def _quoted(text: str) -> str:
    """One word for PowerShell, taken as it is."""
    return "'" + text.replace("'", "''") + "'"
