"""Commands run in the tests' own process set up its logging; no test is to find what another one left there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    yield
    structlog.reset_defaults()
