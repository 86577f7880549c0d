"""When the number of nodes of a Provisioner changed last (API-856)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from karpenter.api.older_kinds import OlderStatus
from karpenter.olderversions.twin_reconciler import with_pool_resources

BEFORE = datetime(2026, 1, 1, tzinfo=UTC)
NOW = BEFORE + timedelta(hours=1)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param({}, {"nodes": "1", "cpu": "4"}, NOW, id="first node"),
        pytest.param({"nodes": "3"}, {"nodes": "2"}, NOW, id="one node less"),
        pytest.param({"nodes": "2", "cpu": "4"}, {"nodes": "2", "cpu": "8"}, BEFORE, id="as many nodes, others"),
        pytest.param({}, {"nodes": "0", "cpu": "0"}, BEFORE, id="none yet"),
    ],
)
def test_a_change_of_the_number_of_nodes_is_a_scaling(
    before: dict[str, str], after: dict[str, str], expected: datetime
) -> None:
    """API-856: the resources are those of the pool in any case."""
    status = with_pool_resources(OlderStatus(resources=before, last_scale_time=BEFORE), after, NOW)
    assert (status.last_scale_time, status.resources) == (expected, after)
