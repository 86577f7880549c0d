"""AWS sessions of the product that call a double."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from karpenter.metrics import Metrics
from karpenter.providers.aws.aws_metrics import SdkMetrics
from karpenter.providers.aws.sdk.aws_session import AwsSession
from support.aws.double import Double


@contextmanager
def session_of(double: Double) -> Iterator[AwsSession]:
    """An ``AwsSession`` whose services are the double's; not opened yet, and closed at the end."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in (
            ("AWS_ENDPOINT_URL", double.url),
            ("AWS_REGION", double.region_name),
            ("AWS_ACCESS_KEY_ID", "AKIADOUBLE"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ):
            environment.setenv(name, value)
        account = AwsSession(SdkMetrics(Metrics()))
        yield account
        account.close()
