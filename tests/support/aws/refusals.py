"""Helpers for calls that AWS refuses: through boto3 clients and through our session."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError

from karpenter.providers.aws.aws_errors import AwsError


@contextmanager
def refused(code: str) -> Iterator[dict[str, Any]]:
    """Expect that the boto3 call within is refused with a code; the yielded dict has the ``Message`` afterwards."""
    error: dict[str, Any] = {}
    with pytest.raises(ClientError) as caught:
        yield error
    error.update(caught.value.response["Error"])
    assert error["Code"] == code


async def refused_call(call: Awaitable[object], code: str) -> AwsError:
    """The error of a call of our session, which must have this code."""
    with pytest.raises(AwsError) as caught:
        await call
    assert caught.value.code == code
    return caught.value
