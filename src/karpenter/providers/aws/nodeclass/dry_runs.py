"""The calls a launch makes, tried without effect (AWS-115 to AWS-119, AWS-126).

Nothing is left behind: the template, too, is only tried. Each call's verdict is kept by itself, so that one missing permission
does not hide another, and a class whose verdicts are all known costs no call.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import NamedTuple, Protocol

import structlog

from karpenter.api.ec2 import EC2NodeClass
from karpenter.model.clock import Clock
from karpenter.providers.aws.cache import Expiring
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.failures import explained
from karpenter.providers.aws.nodeclass.trials import Trial, fleet_request, machine_data, template_tags
from karpenter.providers.aws.ports import FleetPort, MachineTrial, TemplatePort
from karpenter.providers.aws.settings import Cluster
from karpenter.providers.aws.shapes import LaunchTemplateData
from karpenter.providers.contract import LaunchFailed

_KEPT = timedelta(minutes=30)
_UNAUTHORIZED = "UnauthorizedOperation"
_TOO_MUCH_USER_DATA = "UserDataSizeLimitExceeded"
#: What EC2 takes, before base64 (AWS-225).
_USER_DATA_BYTES = 16384
_USER_DATA_TEXT = "User data is limited to"
_PROFILE_TEXT = "iaminstanceprofile.name is invalid"
_log = structlog.get_logger()

#: The data of the launch template for a trial. Raises ``LaunchFailed`` for what the user should read.
TemplateData = Callable[[EC2NodeClass, Trial], LaunchTemplateData]


class TrialPort(TemplatePort, FleetPort, Protocol):
    """The part of EC2 that is tried."""


class Outcome(NamedTuple):
    """What came of a call: passed without a ``reason``, nothing yet when ``later``; ``kept`` ones hold for a while."""

    reason: str = ""
    message: str = ""
    later: bool = False
    kept: bool = True


PASSED = Outcome()
LATER = Outcome(later=True, kept=False)


class DryRuns:
    """Tries trials. ``cluster`` tells the cluster as it is now."""

    def __init__(
        self, ec2: TrialPort, clock: Clock, cluster: Callable[[], Cluster], template_data: TemplateData
    ) -> None:
        self._ec2 = ec2
        self._cluster = cluster
        self._template_data = template_data
        self._kept: Expiring[tuple[str, str], Outcome] = Expiring(clock, _KEPT)
        self._calls: tuple[tuple[str, Callable[[EC2NodeClass, Trial], Awaitable[Outcome]]], ...] = (
            ("CreateLaunchTemplate", self._try_template),
            ("CreateFleet", self._try_fleet),
            ("RunInstances", self._try_machine),
        )

    def known(self, key: str) -> tuple[Outcome, ...] | None:
        """The verdicts on everything ``key`` stands for; None while one is missing (AWS-109)."""
        found = tuple(self._kept.get((key, name)) for name, _ in self._calls)
        known = tuple(item for item in found if item is not None)
        return known if len(known) == len(self._calls) else None

    async def judge(self, node_class: EC2NodeClass, key: str, trials: Sequence[Trial]) -> tuple[Outcome, ...]:
        """Make the calls whose verdict is not known; what came of each, in order. Ends at one that has to be made later.

        Raises ``AwsError`` for what says nothing about permissions.
        """
        found: list[Outcome] = []
        for name, call in self._calls:
            outcome = self._kept.get((key, name)) or await _first_problem(node_class, trials, call)
            if outcome.kept:
                self._kept.put((key, name), outcome)
            found.append(outcome)
            if outcome.later:
                break
        return tuple(found)

    async def _try_template(self, node_class: EC2NodeClass, trial: Trial) -> Outcome:
        try:
            data = self._template_data(node_class, trial)
        except LaunchFailed as error:
            return Outcome(error.reason, error.message)
        size = len(b64decode(data.user_data))
        if size > _USER_DATA_BYTES:
            return Outcome(_TOO_MUCH_USER_DATA, f"User data has {size} bytes, EC2 takes at most {_USER_DATA_BYTES}")
        try:
            tags = template_tags(node_class, self._cluster())
            await self._ec2.create_launch_template(_template_name(node_class), data, tags, dry_run=True)
        except AwsError as error:
            if _USER_DATA_TEXT in error.message:
                return Outcome(_TOO_MUCH_USER_DATA, error.message)
            return _judged(error, "CreateLaunchTemplate")
        return PASSED

    async def _try_fleet(self, node_class: EC2NodeClass, trial: Trial) -> Outcome:
        """What is refused for other reasons than permissions is no verdict: the template, for one, does not exist."""
        try:
            name = _template_name(node_class)
            await self._ec2.try_fleet(fleet_request(node_class, self._cluster(), trial, name))
        except AwsError as error:
            if _is_verdict(error):
                return _judged(error, "CreateFleet")
            _log.debug("create fleet dry run is not conclusive", error=str(error))
        return PASSED

    async def _try_machine(self, node_class: EC2NodeClass, trial: Trial) -> Outcome:
        """Until one subnet works; if none does the first one's answer counts (AWS-117)."""
        try:
            data = machine_data(node_class, self._cluster(), self._template_data(node_class, trial))
        except LaunchFailed:
            return PASSED  # which the trial of the template has told
        first: AwsError | None = None
        for subnet in node_class.status.subnets:
            name = _template_name(node_class)
            tried = MachineTrial(name, trial.instance_type.name, data, subnet.id)
            try:
                await self._ec2.try_run_instances(tried)
                return PASSED
            except AwsError as error:
                if error.is_dry_run_passed:
                    return PASSED
                first = first or error
        return PASSED if first is None else _judged_machine(node_class, first)


async def _first_problem(
    node_class: EC2NodeClass,
    trials: Sequence[Trial],
    call: Callable[[EC2NodeClass, Trial], Awaitable[Outcome]],
) -> Outcome:
    for trial in trials:
        outcome = await call(node_class, trial)
        if outcome != PASSED:
            return outcome
    return PASSED


def _is_verdict(error: AwsError) -> bool:
    return error.is_dry_run_passed or error.code == _UNAUTHORIZED or _is_passing(error)


def _is_passing(error: AwsError) -> bool:
    """Whether it will be over by itself."""
    return error.is_throttling or error.has_no_answer


def _judged(error: AwsError, call: str) -> Outcome:
    if error.is_dry_run_passed:
        return PASSED
    if error.code == _UNAUTHORIZED:
        return Outcome(
            f"{call}AuthCheckFailed", f"Controller isn't authorized to call ec2:{call}: {explained(str(error))}"
        )
    if _is_passing(error):
        return LATER
    raise error


def _judged_machine(node_class: EC2NodeClass, error: AwsError) -> Outcome:
    if _PROFILE_TEXT not in error.message.lower():
        return _judged(error, "RunInstances")
    if not node_class.spec.instance_profile:
        return LATER  # IAM tells EC2 of a new profile within seconds
    message = f"instance profile {node_class.spec.instance_profile} does not exist"
    return Outcome("InstanceProfileNotFound", message, kept=False)


def _template_name(node_class: EC2NodeClass) -> str:
    digest = hashlib.sha256(node_class.metadata.name.encode()).hexdigest()[:16]
    return f"karpenter.k8s.aws/trial-{digest}"
