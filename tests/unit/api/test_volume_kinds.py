"""Volumes in pods."""

from __future__ import annotations

import pytest

from karpenter.api.kinds import POD


@pytest.mark.parametrize(
    ("source", "field"),
    [
        ("ephemeral", "ephemeral"),
        ("awsElasticBlockStore", "aws_elastic_block_store"),
        ("gcePersistentDisk", "gce_persistent_disk"),
        ("azureDisk", "azure_disk"),
        ("cinder", "cinder"),
    ],
)
def test_a_pod_with_a_volume_source_decodes_and_shows_that_it_has_one(source: str, field: str) -> None:
    pod = POD.decode(f'{{"spec":{{"volumes":[{{"name":"data","{source}":{{"x":{{"y":1}}}}}}]}}}}'.encode())
    assert getattr(pod.spec.volumes[0], field) is not None
    assert pod.spec.volumes[0].persistent_volume_claim is None
