"""One double of AWS per module, which every test resets, and an open AWS session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from karpenter.metrics import Metrics
from karpenter.providers.aws.aws_metrics import SdkMetrics
from karpenter.providers.aws.sdk.aws_session import AwsSession
from support.aws.double import Double
from support.aws.seeds import Seeds, seed


@pytest.fixture(scope="module")
def running() -> Iterator[Double]:
    with Double() as double:
        yield double


@pytest.fixture
def aws(running: Double, monkeypatch: pytest.MonkeyPatch) -> Double:
    """The double, as the endpoint in the environment of the AWS SDK."""
    running.reset()
    monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
    monkeypatch.setenv("AWS_REGION", running.region_name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIADOUBLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    return running


@pytest.fixture
def seeds(aws: Double) -> Seeds:
    made = seed(aws)
    aws.calls.clear()
    return made


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def account(aws: Double, metrics: Metrics) -> AsyncIterator[AwsSession]:
    opened = AwsSession(SdkMetrics(metrics))
    await opened.open()
    yield opened
    opened.close()
