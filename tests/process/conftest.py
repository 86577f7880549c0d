"""One double for all stories of a file, each of which begins it anew."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.aws.double import Double
from support.aws.process_scene import Scene, scene, slow_double


@pytest.fixture(scope="module")
def aws() -> Iterator[Double]:
    with slow_double() as running:
        yield running


@pytest.fixture
async def cluster(aws: Double, tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene(aws, tmp_path) as ready:
        yield ready
