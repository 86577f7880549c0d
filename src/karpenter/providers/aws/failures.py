"""What EC2's refusals mean for a launch (AWS-450 to AWS-456). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from karpenter.model import labels
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.shapes import FleetAnswer, FleetError
from karpenter.providers.contract import InsufficientCapacity, LaunchFailed, ProviderError

INSUFFICIENT_ADDRESSES = "InsufficientFreeAddressesInSubnet"
NO_SPOT_ROLE = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
TEMPLATE_GONE = "InvalidLaunchTemplateName.NotFoundException"
#: What a fleet says, per way to make the machine, of a template that is gone.
TEMPLATE_MISSING = frozenset({TEMPLATE_GONE, "InvalidLaunchTemplateId.NotFound"})
MISMATCH = "IdempotentParameterMismatch"
#: What a fleet that answered with neither machines nor errors is taken to have said.
NOTHING = FleetError(error_code="UnfulfillableCapacity", error_message="the fleet has neither machines nor errors")

#: No capacity here right now (AWS-450).
NO_CAPACITY = frozenset(
    {
        "InsufficientInstanceCapacity",
        "MaxSpotInstanceCountExceeded",
        "VcpuLimitExceeded",
        "UnfulfillableCapacity",
        "Unsupported",
        INSUFFICIENT_ADDRESSES,
        "MaxFleetCountExceeded",
        "ReservationCapacityExceeded",
    }
)
#: Quotas: waiting three minutes does not lift them.
QUOTAS = frozenset({"MaxFleetCountExceeded", "MaxSpotInstanceCountExceeded", "VcpuLimitExceeded"})
_SPREAD_LIMIT = "limit of instances in this spread placement group"
_UNAUTHORIZED = ("UnauthorizedOperation", "AccessDenied", "AuthFailure")

#: Texts and the reason each stands for, after the first two rows; the first that is found wins (AWS-452).
_REASONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("InvalidParameter", "belong to different networks"), "SecurityGroupSubnetVPCMismatch"),
    (("iamInstanceProfile.name is invalid",), "InstanceProfileNameInvalid"),
    (("InvalidLaunchTemplateId.NotFound",), "LaunchTemplateNotFound"),
    (("User data is limited to",), "UserDataSizeLimitExceeded"),
    (("InvalidAMIID.Malformed",), "InvalidAMIID"),
    (("InvalidAMIID.NotFound",), "AMINotFound"),
    (("RequestLimitExceeded",), "RequestLimitExceeded"),
    (("InternalError",), "InternalError"),
    (("not eligible for Free Tier",), "FreeTierIneligible"),
    (("MaxFleetCountExceeded",), "FleetQuotaExceeded"),
    (("PendingVerification",), "AccountPendingVerification"),
    (("MaxSpotInstanceCountExceeded",), "SpotQuotaExceeded"),
    (("VcpuLimitExceeded",), "VCPULimitExceeded"),
    ((INSUFFICIENT_ADDRESSES,), INSUFFICIENT_ADDRESSES),
)
_NOT_FOR_IMAGES = "Not authorized for images"
#: Who denies it, where EC2 says so.
_DENIED_BY = (
    ("with an explicit deny in a permissions boundary", "a permissions boundary denies it"),
    ("with an explicit deny in a service control policy", "a service control policy denies it"),
    (_NOT_FOR_IMAGES, "the image is not shared with this account"),
)


@dataclass(frozen=True)
class Refused:
    """One way to make the machine that did not work."""

    code: str
    message: str
    instance_type: str
    zone: str
    subnet_id: str

    @property
    def is_capacity(self) -> bool:
        """Whether there is none now."""
        return self.code in NO_CAPACITY

    @property
    def is_spread_limit(self) -> bool:
        """Whether the placement group is full in that zone (AWS-454)."""
        return self.is_capacity and _SPREAD_LIMIT in self.message

    @property
    def reason(self) -> str:
        """The reason counters and conditions give."""
        return reason(f"{self.code}: {self.message}")


def reason(text: str) -> str:
    """The word for a refusal (AWS-452)."""
    if NO_SPOT_ROLE in text:
        return "SpotSLRCreationFailed"
    if any(word in text for word in _UNAUTHORIZED):
        return "AMIAuthorizationFailure" if _NOT_FOR_IMAGES in text else "Unauthorized"
    return next((name for words, name in _REASONS if all(word in text for word in words)), "LaunchFailed")


def explained(text: str) -> str:
    """A refusal's text, led by who denies it where a permission is missing (AWS-126, AWS-452)."""
    if not any(word in text for word in _UNAUTHORIZED) or NO_SPOT_ROLE in text:
        return text
    denial = next((sentence for phrase, sentence in _DENIED_BY if phrase in text), "no policy allows it")
    return f"{denial}: {text}"


def refusals(answer: FleetAnswer) -> tuple[Refused, ...]:
    """What an answer says did not work. One that says nothing at all says at least that."""
    errors = answer.errors
    if not errors and not any(item.instance_ids for item in answer.instances):
        errors = (NOTHING,)
    return tuple(_refused(error) for error in errors)


def _refused(error: FleetError) -> Refused:
    ways = error.launch_template_and_overrides
    override = ways.overrides if ways is not None else None
    if override is None:
        return Refused(error.error_code, error.error_message, "", "", "")
    return Refused(
        error.error_code,
        error.error_message,
        override.instance_type,
        override.availability_zone,
        override.subnet_id,
    )


def missing(refused: Sequence[Refused]) -> ProviderError:
    """The error of a claim that got no machine out of a fleet with these refusals (AWS-451)."""
    text = joined(refused)
    if all(item.is_capacity or item.code == NO_SPOT_ROLE for item in refused):
        return InsufficientCapacity(f"no machine came of the fleet: {text}")
    return LaunchFailed(reason(text), f"no machine came of the fleet: {explained(text)}")


def joined(refused: Iterable[Refused]) -> str:
    """Each refusal once, in order."""
    return ", ".join(dict.fromkeys(f"{item.code}: {item.message}" for item in refused))


def failed(error: AwsError, what: str) -> LaunchFailed:
    """The error of a launch whose call itself was refused (AWS-457, AWS-458)."""
    text = str(error)
    request = f" (request {error.request_id})" if error.request_id else ""
    return LaunchFailed(reason(text), f"{what}: {explained(text)}{request}")


def marks_offering(refused: Refused, capacity_type: str) -> bool:
    """Whether a refusal makes (capacity type, type, zone) unavailable for a while (AWS-453, AWS-455)."""
    return refused.is_capacity and capacity_type != labels.RESERVED and bool(refused.instance_type)
