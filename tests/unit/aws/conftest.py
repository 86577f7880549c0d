"""Commands in the test process configure its logging, so each test resets it.

botocore reads the service definitions once for all tests: reading those of EC2 takes 0.2 s per session.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import botocore.session
import pytest
import structlog


@pytest.fixture(autouse=True, scope="session")
def _definitions_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(botocore.session.create_loader))
        yield


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    yield
    structlog.reset_defaults()
