"""What AWS answers when it refuses, and what its codes mean (AWS-450, AWS-452, AWS-459)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from karpenter.model import labels
from karpenter.model.expected_error import ExpectedError
from karpenter.providers.aws.ec2_requests import FleetAnswer, FleetError
from karpenter.providers.contract import InsufficientCapacity, LaunchFailed, ProviderError


class AwsError(ExpectedError):
    """A call to AWS failed.

    ``code`` is the service's error code, such as ``InsufficientInstanceCapacity``; ``Timeout`` or ``ConnectionError`` where no
    answer came. Then the call may or may not have been carried out.
    """

    def __init__(self, code: str, message: str, operation: str = "", request_id: str = "", status: int = 0) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.operation = operation
        self.request_id = request_id
        self.status = status

    @property
    def has_no_answer(self) -> bool:
        """Whether the call may have been carried out all the same."""
        return self.code in _NO_ANSWER_CODES or (self.status >= 500 and not self.is_throttling)

    @property
    def is_throttling(self) -> bool:
        """Whether AWS asks for fewer calls."""
        return self.code in _THROTTLING_CODES

    @property
    def is_not_found(self) -> bool:
        """Whether what was asked for does not exist (AWS-459)."""
        return self.code in _NOT_FOUND_CODES

    @property
    def is_unauthorized(self) -> bool:
        """Whether a permission is missing (AWS-126)."""
        return self.code in _UNAUTHORIZED_CODES

    @property
    def is_dry_run_passed(self) -> bool:
        """Whether this is how a dry run says that all is well (AWS-126)."""
        return self.code == "DryRunOperation"


class AwsCallError(AwsError):
    """A call to AWS failed. ``service`` is AWS's short name of the service, such as ``ec2``."""

    service = ""


def error_log_fields(error: AwsError) -> dict[str, object]:
    """The log fields of a failed call (AWS-017)."""
    return {
        "aws-error-code": error.code,
        "aws-request-id": error.request_id,
        "aws-service-name": error.service if isinstance(error, AwsCallError) else "",
        "aws-operation-name": error.operation,
        "aws-status-code": error.status,
    }


TIMEOUT_CODE = "Timeout"
CONNECTION_ERROR_CODE = "ConnectionError"
_NO_ANSWER_CODES = frozenset({TIMEOUT_CODE, CONNECTION_ERROR_CODE})
_THROTTLING_CODES = frozenset(
    {
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "EC2ThrottledException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
    }
)
_NOT_FOUND_CODES = frozenset(
    {
        "InvalidCapacityReservationId.NotFound",
        "InvalidInstanceID.NotFound",
        "InvalidLaunchTemplateName.NotFoundException",
        "InvalidLaunchTemplateId.NotFound",
        "QueueDoesNotExist",
        "AWS.SimpleQueueService.NonExistentQueue",
        "NoSuchEntity",
        "ParameterNotFound",
    }
)
_UNAUTHORIZED_CODES = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "AuthFailure"})

INSUFFICIENT_ADDRESSES = "InsufficientFreeAddressesInSubnet"
NO_SPOT_SERVICE_LINKED_ROLE = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
TEMPLATE_NOT_FOUND = "InvalidLaunchTemplateName.NotFoundException"
TEMPLATE_EXISTS = "InvalidLaunchTemplateName.AlreadyExistsException"
#: What a fleet says, per way to make the instance, of a template that is gone.
TEMPLATE_NOT_FOUND_CODES = frozenset({TEMPLATE_NOT_FOUND, "InvalidLaunchTemplateId.NotFound"})
IDEMPOTENT_PARAMETER_MISMATCH = "IdempotentParameterMismatch"
#: What a fleet that answered with neither instances nor errors is taken to have said.
EMPTY_FLEET_ERROR = FleetError(
    error_code="UnfulfillableCapacity", error_message="the fleet has neither instances nor errors"
)

#: The capacity reservation is healthy and full.
RESERVATION_FULL = "ReservationCapacityExceeded"
#: No capacity here right now (K15-A46).
UNFULFILLABLE_CAPACITY_CODES = frozenset(
    {
        "InsufficientInstanceCapacity",
        "MaxSpotInstanceCountExceeded",
        "VcpuLimitExceeded",
        "UnfulfillableCapacity",
        "Unsupported",
        INSUFFICIENT_ADDRESSES,
        "MaxFleetCountExceeded",
        RESERVATION_FULL,
        "SpotMaxPriceTooLow",
        "InvalidCapacityReservationState.Unavailable",
    }
)
#: Quotas: waiting three minutes does not lift them.
QUOTA_CODES = frozenset({"MaxFleetCountExceeded", "MaxSpotInstanceCountExceeded", "VcpuLimitExceeded"})
_SPREAD_LIMIT = "limit of instances in this spread placement group"
_UNAUTHORIZED_WORDS = ("UnauthorizedOperation", "AccessDenied", "AuthFailure")

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
#: Why a permission is missing, by a phrase of EC2's error text.
_DENIED_BY = (
    ("with an explicit deny in a permissions boundary", "a permissions boundary denies it"),
    ("with an explicit deny in a service control policy", "a service control policy denies it"),
    (_NOT_FOR_IMAGES, "the image is not shared with this account"),
)


@dataclass(frozen=True)
class LaunchRefusal:
    """One way to make the instance that did not work."""

    code: str
    message: str
    instance_type: str
    zone: str
    subnet_id: str

    @property
    def is_capacity(self) -> bool:
        """Whether there is none now."""
        return self.code in UNFULFILLABLE_CAPACITY_CODES

    @property
    def is_spread_limit(self) -> bool:
        """Whether the placement group is full in that zone (AWS-454)."""
        return self.is_capacity and _SPREAD_LIMIT in self.message

    @property
    def reason(self) -> str:
        """The reason counters and conditions give."""
        return launch_failure_reason(f"{self.code}: {self.message}")


def launch_failure_reason(text: str) -> str:
    """The word for a refusal (AWS-452)."""
    if NO_SPOT_SERVICE_LINKED_ROLE in text:
        return "SpotSLRCreationFailed"
    if any(word in text for word in _UNAUTHORIZED_WORDS):
        return "AMIAuthorizationFailure" if _NOT_FOR_IMAGES in text else "Unauthorized"
    return next((name for words, name in _REASONS if all(word in text for word in words)), "LaunchFailed")


def explain_denial(text: str) -> str:
    """The text of a refusal, preceded by the reason if a permission is missing (AWS-126, AWS-452)."""
    if not any(word in text for word in _UNAUTHORIZED_WORDS) or NO_SPOT_SERVICE_LINKED_ROLE in text:
        return text
    denial = next((sentence for phrase, sentence in _DENIED_BY if phrase in text), "no policy allows it")
    return f"{denial}: {text}"


def fleet_refusals(answer: FleetAnswer) -> tuple[LaunchRefusal, ...]:
    """What an answer says did not work. One that says nothing at all says at least that."""
    errors = answer.errors
    if not errors and not any(instance_set.instance_ids for instance_set in answer.instances):
        errors = (EMPTY_FLEET_ERROR,)
    return tuple(_refusal(error) for error in errors)


def _refusal(error: FleetError) -> LaunchRefusal:
    ways = error.launch_template_and_overrides
    override = ways.overrides if ways is not None else None
    if override is None:
        return LaunchRefusal(error.error_code, error.error_message, "", "", "")
    return LaunchRefusal(
        error.error_code, error.error_message, override.instance_type, override.availability_zone, override.subnet_id
    )


def no_instance_error(refusals: Sequence[LaunchRefusal]) -> ProviderError:
    """The error of a claim that got no instance out of a fleet with these refusals (AWS-451)."""
    text = join_refusals(refusals)
    if all(
        launch_refusal.is_capacity or launch_refusal.code == NO_SPOT_SERVICE_LINKED_ROLE for launch_refusal in refusals
    ):
        return InsufficientCapacity(f"no instance came of the fleet: {text}")
    return LaunchFailed(launch_failure_reason(text), f"no instance came of the fleet: {explain_denial(text)}")


def join_refusals(refusals: Iterable[LaunchRefusal]) -> str:
    """Each refusal once, in order."""
    return ", ".join(dict.fromkeys(f"{launch_refusal.code}: {launch_refusal.message}" for launch_refusal in refusals))


def launch_error(error: AwsError, action: str) -> LaunchFailed:
    """The error of a launch whose call itself was refused (AWS-457, AWS-458)."""
    text = str(error)
    request = f" (request {error.request_id})" if error.request_id else ""
    return LaunchFailed(launch_failure_reason(text), f"{action}: {explain_denial(text)}{request}")


def marks_offering_unavailable(refusal: LaunchRefusal, capacity_type: str) -> bool:
    """Whether a refusal makes (capacity type, type, zone) unavailable for a while (AWS-453, AWS-455)."""
    return refusal.is_capacity and capacity_type != labels.RESERVED and bool(refusal.instance_type)
