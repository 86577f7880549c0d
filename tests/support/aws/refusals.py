"""Asserting on refusals of boto3 calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError


@contextmanager
def refused(code: str) -> Iterator[dict[str, Any]]:
    """The call within is refused with a code; what is yielded has the ``Message`` afterwards."""
    error: dict[str, Any] = {}
    with pytest.raises(ClientError) as caught:
        yield error
    error.update(caught.value.response["Error"])
    assert error["Code"] == code
