"""One double per module, which every test resets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.aws.clients import client
from support.aws.double import Double
from support.aws.seeds import Seeds, seed, template


@pytest.fixture(scope="module")
def running() -> Iterator[Double]:
    with Double() as double:
        yield double


@pytest.fixture
def aws(running: Double) -> Double:
    running.reset()
    return running


@pytest.fixture
def ec2(aws: Double) -> Any:
    return client(aws, "ec2")


@pytest.fixture
def seeds(aws: Double, ec2: Any) -> Seeds:
    """A network and the launch template ``nodes``."""
    made = seed(aws)
    ec2.create_launch_template(LaunchTemplateName="nodes", LaunchTemplateData=template(made, b"hello"))
    aws.calls.clear()
    return made
