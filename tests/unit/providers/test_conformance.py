"""The simulated provider conforms to the provider contract."""

from __future__ import annotations

import pytest

from karpenter.providers import conformance
from support.simulated_provider_cluster import run_in_virtual_time


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_the_simulated_provider_conforms(check: conformance.ConformanceCheck) -> None:
    """OPS-210 ff.; each check names its own rules. OPS-213, 214, 217 to 219: all calls of the contract."""
    run_in_virtual_time(check)
