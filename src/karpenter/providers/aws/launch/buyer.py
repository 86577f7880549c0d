"""Sending one purchase until EC2 has answered it (AWS-457).

The client token is the purchase's identity, so EC2 carries the request out once however often it arrives. Only two kinds of
answers end the attempts: one that says what was bought, and one that says that nothing was.
"""

from __future__ import annotations

import asyncio

import structlog

from karpenter.providers.aws import failures
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.launch.plan import LaunchPlan
from karpenter.providers.aws.launch.templates import Templates
from karpenter.providers.aws.ports import FleetPort
from karpenter.providers.aws.shapes import FleetAnswer, FleetRequest
from karpenter.providers.contract import LaunchFailed, ProviderError

#: Pauses between attempts, in seconds: together less than what a caller waits.
PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_log = structlog.get_logger()


class Refusal(Exception):
    """EC2 refused the call, so nothing was bought. ``error`` is what the claims are told."""

    def __init__(self, error: LaunchFailed) -> None:
        super().__init__(str(error))
        self.error = error


class Lost(Exception):
    """EC2 does not say what became of the request. ``error`` is what the claims are told."""

    def __init__(self, error: ProviderError) -> None:
        super().__init__(str(error))
        self.error = error


class AlreadyBought(Exception):
    """EC2 has carried out another request of this identity: what it bought carries its tag."""


class Buyer:
    """Sends CreateFleet."""

    def __init__(self, ec2: FleetPort, templates: Templates) -> None:
        self._ec2 = ec2
        self._templates = templates

    async def prepare(self, plan: LaunchPlan) -> None:
        """Have the plan's templates made. Raises ``LaunchFailed`` (AWS-458)."""
        try:
            await asyncio.gather(*(self._templates.ensure(item.content) for item in plan.templates))
        except AwsError as error:
            raise failures.failed(error, "preparing the launch template") from error

    def doubt(self, plan: LaunchPlan) -> None:
        """Its templates may be gone: look again before they are used (AWS-457)."""
        self._templates.forget(item.content.name for item in plan.templates)

    async def buy(self, plan: LaunchPlan, request: FleetRequest) -> FleetAnswer:
        """EC2's answer. Raises ``Refusal``, ``Lost`` or ``AlreadyBought``."""
        is_uncertain = has_new_templates = False
        pauses = iter(PAUSES_SECONDS)
        while True:
            try:
                return await self._ec2.create_fleet(request)
            except AwsError as error:
                refused = error
            if refused.code == failures.MISMATCH:
                raise AlreadyBought
            is_uncertain = is_uncertain or refused.has_no_answer
            if refused.code == failures.TEMPLATE_GONE and not has_new_templates:
                has_new_templates = True
                await self._renew_templates(plan, is_uncertain)
                continue
            pause = next(pauses, None)
            if pause is None or not (refused.has_no_answer or refused.is_throttling):
                raise _end(failures.failed(refused, "creating the fleet"), is_uncertain)
            _log.debug("asking for the fleet again", error=str(refused), **{"client-token": request.client_token})
            await asyncio.sleep(pause)

    async def _renew_templates(self, plan: LaunchPlan, is_uncertain: bool) -> None:
        """Somebody deleted a template under our feet."""
        self.doubt(plan)
        try:
            await self.prepare(plan)
        except LaunchFailed as error:
            raise _end(error, is_uncertain) from error


def _end(error: LaunchFailed, is_uncertain: bool) -> Refusal | Lost:
    return Lost(error) if is_uncertain else Refusal(error)
