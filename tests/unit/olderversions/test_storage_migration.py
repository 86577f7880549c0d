"""Which definitions have objects that are written again (API-851); that it works is shown on a real API server."""

from __future__ import annotations

import msgspec
import pytest

from karpenter.api.control_plane import CustomResourceDefinition, CustomResourceDefinitionStatus
from karpenter.api.kinds import NODE_POOL
from karpenter.olderversions.storage_migration import has_older_objects


@pytest.mark.parametrize(
    ("storage", "stored", "expected"),
    [
        pytest.param("v1", ("v1beta1", "v1"), True, id="after an upgrade"),
        pytest.param("v1", ("v1",), False, id="all are stored as v1"),
        pytest.param("v1beta1", ("v1beta1", "v1"), False, id="v1beta1 is what is stored now"),
        pytest.param("v1", ("v1", "v2"), False, id="a later version is another's"),
    ],
)
def test_objects_are_written_again_where_an_older_version_may_be_stored(
    storage: str, stored: tuple[str, ...], expected: bool
) -> None:
    """API-851"""
    versions = [{"name": name, "storage": name == storage} for name in ("v1beta1", "v1")]
    spec = msgspec.Raw(msgspec.json.encode({"versions": versions}))
    definition = CustomResourceDefinition(spec=spec, status=CustomResourceDefinitionStatus(stored_versions=stored))
    assert has_older_objects(definition, NODE_POOL) is expected
