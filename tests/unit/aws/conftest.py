"""Commands run in the tests' own process set up its logging; no test is to find what another one left there.

botocore reads the definitions of AWS's services once for all tests: each session would read them anew, EC2's in 0.2 s.
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
