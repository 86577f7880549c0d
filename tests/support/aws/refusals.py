"""Calls to AWS that are refused."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from karpenter.providers.aws.aws_errors import AwsError


async def refused(call: Awaitable[object], code: str) -> AwsError:
    """The error that a call ends with, which has this code."""
    with pytest.raises(AwsError) as caught:
        await call
    assert caught.value.code == code
    return caught.value
