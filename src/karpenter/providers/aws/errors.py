"""What AWS answers when it refuses, and what its codes mean (AWS-450, AWS-452, AWS-459)."""

from __future__ import annotations


class AwsError(Exception):
    """A call to AWS failed.

    ``code`` is the service's error code, such as ``InsufficientInstanceCapacity``; ``Timeout`` or ``ConnectionError`` where no
    answer came, and then nobody knows whether the call was carried out.
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
        return self.code in _NO_ANSWER or (self.status >= 500 and not self.is_throttling)

    @property
    def is_throttling(self) -> bool:
        """Whether AWS asks for fewer calls."""
        return self.code in _THROTTLING

    @property
    def is_not_found(self) -> bool:
        """Whether what was asked for does not exist (AWS-459)."""
        return self.code in _NOT_FOUND

    @property
    def is_unauthorized(self) -> bool:
        """Whether a permission is missing (AWS-126)."""
        return self.code in _UNAUTHORIZED

    @property
    def is_dry_run_passed(self) -> bool:
        """Whether this is how a dry run says that all is well (AWS-126)."""
        return self.code == "DryRunOperation"


TIMEOUT = "Timeout"
CONNECTION = "ConnectionError"
_NO_ANSWER = frozenset({TIMEOUT, CONNECTION})
_THROTTLING = frozenset(
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
_NOT_FOUND = frozenset(
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
_UNAUTHORIZED = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "AuthFailure"})
