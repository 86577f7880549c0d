"""The facts of each AMI family (AWS-055, AWS-265 to AWS-269).

A family decides the format of user data (the other modules of this package), the default volumes, the volume that pods write on,
and how many pods the network of an instance allows. The facts are tables, looked up by the family's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from karpenter.api.ec2_node_class import AMIFamily, BlockDevice, BlockDeviceMapping, EC2NodeClassSpec, MetadataOptions
from karpenter.model import ubuntu_images
from karpenter.providers.aws.aws_settings import AwsClusterInfo

AL2 = "AL2"
AL2023 = "AL2023"
BOTTLEROCKET = "Bottlerocket"
CUSTOM = "Custom"
UBUNTU = "Ubuntu"
WINDOWS_2019 = "Windows2019"
WINDOWS_2022 = "Windows2022"
WINDOWS_2025 = "Windows2025"
#: The build of Windows a family's instances run (AWS-066).
WINDOWS_BUILDS = {WINDOWS_2019: "10.0.17763", WINDOWS_2022: "10.0.20348", WINDOWS_2025: "10.0.26100"}
#: How many pods an instance runs whose family is not bound to the addresses of its interfaces (AWS-300).
DEFAULT_MAX_PODS = 110

_BY_ALIAS = {name.lower(): name for name in get_args(AMIFamily) if name not in (CUSTOM, UBUNTU)}


@dataclass(frozen=True)
class AmiFamilyTraits:
    """Facts of a family.

    ``ephemeral_device`` is the device pods write on, empty where it is the last of the class's mappings. With
    ``reserves_for_interfaces`` the memory the kubelet keeps is reckoned from the pods the interfaces could serve, otherwise from
    those that really may run (AWS-306).
    """

    name: str
    block_devices: tuple[BlockDeviceMapping, ...] = ()
    ephemeral_device: str = ""
    reserves_for_interfaces: bool = True
    applies_pods_per_core: bool = True
    is_limited_by_interfaces: bool = True

    @property
    def is_windows(self) -> bool:
        """Whether its instances run Windows."""
        return self.name.startswith("Windows")


def _volume(device: str, size: str) -> BlockDeviceMapping:
    return BlockDeviceMapping(device_name=device, ebs=BlockDevice(volume_size=size, volume_type="gp3", encrypted=True))


def _amazon_linux_traits(name: str) -> AmiFamilyTraits:
    return AmiFamilyTraits(name, (_volume("/dev/xvda", "20Gi"),), "/dev/xvda")


def _windows_traits(name: str) -> AmiFamilyTraits:
    return AmiFamilyTraits(
        name,
        (_volume("/dev/sda1", "50Gi"),),
        "/dev/sda1",
        reserves_for_interfaces=False,
        is_limited_by_interfaces=False,
    )


_BOTTLEROCKET_TRAITS = AmiFamilyTraits(
    BOTTLEROCKET,
    (_volume("/dev/xvda", "6Gi"), _volume("/dev/xvdb", "20Gi")),
    "/dev/xvdb",
    reserves_for_interfaces=False,
    applies_pods_per_core=False,
)
#: Every family by its name.
AMI_FAMILIES: Mapping[str, AmiFamilyTraits] = {
    family.name: family
    for family in (
        _amazon_linux_traits(AL2),
        _amazon_linux_traits(AL2023),
        _BOTTLEROCKET_TRAITS,
        _windows_traits(WINDOWS_2019),
        _windows_traits(WINDOWS_2022),
        _windows_traits(WINDOWS_2025),
        AmiFamilyTraits(CUSTOM),
        AmiFamilyTraits(
            UBUNTU, (_volume(ubuntu_images.ROOT_DEVICE, ubuntu_images.ROOT_VOLUME_SIZE),), ubuntu_images.ROOT_DEVICE
        ),
    )
}


def effective_ami_family(spec: EC2NodeClassSpec) -> str:
    """The family of the class's images: the one it names, else that of an alias, else Custom (AWS-055)."""
    if spec.ami_family is not None:
        return spec.ami_family
    aliases = (term.alias for term in spec.ami_selector_terms if term.alias is not None)
    families = (_BY_ALIAS.get(alias.partition("@")[0]) for alias in aliases)
    return next((family for family in families if family is not None), CUSTOM)


def ami_family_of(spec: EC2NodeClassSpec) -> AmiFamilyTraits:
    """The facts of the class's family."""
    return AMI_FAMILIES[effective_ami_family(spec)]


def has_own_bootstrap(spec: EC2NodeClassSpec) -> bool:
    """Whether the user data of the class is all there is: family Custom, or Ubuntu with a whole script (API-860)."""
    family = effective_ami_family(spec)
    return family == CUSTOM or (family == UBUNTU and ubuntu_images.is_self_contained(spec.user_data or ""))


def alias_version(spec: EC2NodeClassSpec) -> str:
    """What stands behind the ``@`` of the class's alias (``latest``, ``v20250501``), empty where it has no alias."""
    aliases = (term.alias for term in spec.ami_selector_terms if term.alias is not None)
    return next(aliases, "").partition("@")[2]


def metadata_options(spec: EC2NodeClassSpec, cluster: AwsClusterInfo) -> MetadataOptions:
    """How the metadata service answers: as the class says, or as for objects stored without defaults (AWS-269)."""
    if spec.metadata_options is not None:
        return spec.metadata_options
    return MetadataOptions(
        http_endpoint="disabled",
        http_protocol_ipv6="enabled" if cluster.is_ipv6 else "disabled",
        http_put_response_hop_limit=2,
        http_tokens="required",
    )
