"""Calls to AWS that are refused: by boto3's own clients, and through our session."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError

from karpenter.providers.aws.aws_errors import AwsError


@contextmanager
def refused(code: str) -> Iterator[dict[str, Any]]:
    """The call of a boto3 client within is refused with a code; what is yielded has the ``Message`` afterwards."""
    error: dict[str, Any] = {}
    with pytest.raises(ClientError) as caught:
        yield error
    error.update(caught.value.response["Error"])
    assert error["Code"] == code


async def refused_call(call: Awaitable[object], code: str) -> AwsError:
    """The error that a call of our session ends with, which has this code."""
    with pytest.raises(AwsError) as caught:
        await call
    assert caught.value.code == code
    return caught.value
