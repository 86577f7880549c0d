"""All checks, one after the other in what they say, side by side in what they ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from karpenter.providers.aws.doctor import account, classes, machines
from karpenter.providers.aws.doctor.findings import Check, Finding
from karpenter.providers.aws.doctor.patient import Patient
from karpenter.providers.aws.errors import AwsError

_CHECKS: tuple[Callable[[Patient], Awaitable[list[Finding]]], ...] = (
    account.permissions,
    account.cluster,
    classes.selectors,
    classes.conditions,
    machines.roles,
    machines.volume_keys,
    account.queue,
    account.quotas,
    machines.deaths,
)


#: A check of something, which raises ``AwsError`` where AWS does not answer.
Examination = Callable[[Patient], Awaitable[list[Finding]]]


async def examine(patient: Patient) -> list[Finding]:
    """What all checks found, in their order. A check that AWS does not let finish is a finding itself."""
    found = await asyncio.gather(*(_checked(check, patient) for check in _CHECKS))
    return [finding for findings in found for finding in findings]


async def _checked(check: Examination, patient: Patient) -> list[Finding]:
    try:
        return await check(patient)
    except AwsError as error:
        name = Check(check.__name__.replace("_", " "))
        return [
            name.failure(
                f"{error.operation or 'a call'} failed: {error}", "this could not be looked at", "see the error"
            )
        ]
