"""A process on the double: one double and one account a module, as in the beginning for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from karpenter.providers.aws.boto import Account
from karpenter.telemetry import Metrics
from karpenter.telemetry.aws import SdkMetrics
from support.aws.double import Double
from support.aws.seeds import Seeds, seed


@pytest.fixture(scope="module")
def running() -> Iterator[Double]:
    with Double() as double:
        yield double


@pytest.fixture(scope="module")
def account(running: Double) -> Iterator[Account]:
    with pytest.MonkeyPatch.context() as environment:
        for name, value in (
            ("AWS_ENDPOINT_URL", running.url),
            ("AWS_REGION", running.region_name),
            ("AWS_ACCESS_KEY_ID", "AKIADOUBLE"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ):
            environment.setenv(name, value)
        opened = Account(SdkMetrics(Metrics()))
        yield opened
        opened.close()


@pytest.fixture
def aws(running: Double) -> Double:
    running.reset()
    return running


@pytest.fixture
def seeds(aws: Double) -> Seeds:
    made = seed(aws)
    aws.calls.clear()
    return made
