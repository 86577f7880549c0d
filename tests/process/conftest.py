"""One double of AWS for all tests of a file; each test resets it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.aws.controller_cluster import ControllerCluster, controller_cluster, double_with_slow_clock
from support.aws.double import Double


@pytest.fixture(scope="module")
def aws() -> Iterator[Double]:
    with double_with_slow_clock() as running:
        yield running


@pytest.fixture
async def cluster(aws: Double, tmp_path: Path) -> AsyncIterator[ControllerCluster]:
    async with controller_cluster(aws, tmp_path) as ready:
        yield ready
