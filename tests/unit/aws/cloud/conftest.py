"""One double and one AWS session per module; every test resets the double."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from karpenter.providers.aws.sdk.aws_session import AwsSession
from support.aws.double import Double
from support.aws.seeds import Seeds, seed
from support.aws.sessions import session_of


@pytest.fixture(scope="module")
def running() -> Iterator[Double]:
    with Double() as double:
        yield double


@pytest.fixture(scope="module")
def account(running: Double) -> Iterator[AwsSession]:
    with session_of(running) as opened:
        yield opened


@pytest.fixture
def aws(running: Double) -> Double:
    running.reset()
    return running


@pytest.fixture
def seeds(aws: Double) -> Seeds:
    made = seed(aws)
    aws.calls.clear()
    return made
