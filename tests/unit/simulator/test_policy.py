"""Policies: packaged ones, files, and what is said of a bad file."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from karpenter.api.karpenter import (
    Budget,
    NodeClaimTemplate,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
)
from karpenter.scheduling.scheduling_options import PackingMode
from karpenter.simulator.policy import read_policy
from karpenter.simulator.workload import WorkloadError

_CLASS = NodeClassReference(group="karpenter.kwok.sh", kind="KWOKNodeClass", name="default")
POOL = NodePool(
    spec=NodePoolSpec(template=NodeClaimTemplate(spec=NodeClaimTemplateSpec(requirements=(), node_class_ref=_CLASS)))
)


def test_the_packaged_policies_are_the_profiles_and_one_that_moves_nothing() -> None:
    assert read_policy("lean").settings.packing is PackingMode.CHEAPEST
    assert read_policy("karpenter").settings.packing is PackingMode.FEWEST_PODS
    assert read_policy("lean").applied_to(POOL) == POOL
    assert read_policy("empty-only").applied_to(POOL).spec.disruption.consolidation_policy == "WhenEmpty"


def test_a_file_changes_settings_and_every_node_pool(tmp_path: Path) -> None:
    file = tmp_path / "calm.yaml"
    file.write_text("settings: {minimum-node-age: 30m}\nconsolidateAfter: 10m\nbudgets: [{nodes: 5%}]\n")
    policy = read_policy(str(file))
    assert (policy.name, policy.settings.minimum_node_age) == ("calm", timedelta(minutes=30))
    disruption = policy.applied_to(POOL).spec.disruption
    assert (disruption.consolidate_after, disruption.budgets) == ("10m", (Budget(nodes="5%"),))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("profile: lean\nconsolidateAftr: 5m\n", "line 2: there is no field 'consolidateAftr'"),
        ("settings:\n  minimum-node-agee: 5m\n", "line 2: there is no setting 'minimum-node-agee'"),
        ("profile: fast\n", "line 1: profile: Invalid enum value 'fast'"),
        ("\nconsolidateAfter: soon\n", "line 2: "),
        ("\nsettings: {packing: tight}\n", "line 2: "),
    ],
)
def test_a_bad_policy_is_refused_with_the_line(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(WorkloadError) as error:
        read_policy(str(file))
    assert str(error.value).startswith(f"{file}: {complaint}")


def test_an_unknown_name_lists_the_packaged_policies() -> None:
    with pytest.raises(WorkloadError, match="there is no policy 'quick'; choose lean, karpenter, empty-only"):
        read_policy("quick")
