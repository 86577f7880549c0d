"""The product's own connection to a double, for tests that go through it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from karpenter.providers.aws.boto import Account
from karpenter.telemetry import Metrics
from karpenter.telemetry.aws import SdkMetrics
from support.aws.double import Double


@contextmanager
def account_of(double: Double) -> Iterator[Account]:
    """An account whose services are the double's; not opened yet, and closed at the end."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in (
            ("AWS_ENDPOINT_URL", double.url),
            ("AWS_REGION", double.region_name),
            ("AWS_ACCESS_KEY_ID", "AKIADOUBLE"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ):
            environment.setenv(name, value)
        account = Account(SdkMetrics(Metrics()))
        yield account
        account.close()
