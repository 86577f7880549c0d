"""Freezes: where they are stored, when they apply, and that a freeze that cannot be parsed still applies."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from karpenter.api.core import ConfigMap
from karpenter.api.karpenter import NodePool
from karpenter.model import freezes, labels, nodepool_budgets
from karpenter.model.budget_windows import TimeSpan
from karpenter.model.disruption_rules import disruption_rules, unparseable_settings
from karpenter.model.freezes import CLUSTER_SOURCE, Freeze
from karpenter.model.nodepool_budgets import DisruptionAllowance
from support.builders import annotated, node_pool

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)
ON_POOL = f"metadata.annotations[{labels.FREEZE}]"
UNTIL = f"metadata.annotations[{labels.FREEZE_UNTIL}]"


def pool(**notes: str) -> NodePool:
    """A pool with a freeze: ``freeze`` and ``until`` are its two annotations."""
    keys = {"freeze": labels.FREEZE, "until": labels.FREEZE_UNTIL}
    return annotated(node_pool(), {keys[name]: text for name, text in notes.items()})


def cluster(**data: str) -> Freeze:
    return freezes.cluster_freeze(ConfigMap(data=data))


@pytest.mark.parametrize(
    ("notes", "reason", "until"),
    [
        ({"freeze": "release week"}, "release week", None),
        ({"freeze": "true"}, "", None),
        ({"freeze": ""}, "", None),
        ({"freeze": "False"}, "False", None),
        ({"freeze": "audit", "until": "2026-01-02T01:00:00+01:00"}, "audit", LATER),
        ({"until": "2026-01-02T00:00:00Z"}, "", LATER),
    ],
)
def test_a_pool_is_frozen_by_its_annotations(notes: Mapping[str, str], reason: str, until: datetime | None) -> None:
    freeze = freezes.active_freeze(pool(**notes), None, NOW)
    assert freeze is not None
    assert (freeze.reason, freeze.until, freeze.findings) == (reason, until, ())


def test_a_reason_is_shown_on_one_line() -> None:
    freeze = freezes.nodepool_freeze(pool(freeze="a\n\x1b[31mb\t" + "c" * 500))
    assert freeze is not None
    assert freeze.reason.startswith("a [31mb ccc")
    assert len(freeze.reason) == 200


@pytest.mark.parametrize("notes", [{}, {"freeze": "false"}, {"freeze": "false", "until": "2026-01-02T00:00:00Z"}])
def test_a_pool_without_a_freeze_is_not_frozen(notes: Mapping[str, str]) -> None:
    assert freezes.active_freeze(pool(**notes), None, NOW) is None


def test_a_freeze_is_over_at_its_very_end() -> None:
    frozen = pool(freeze="x", until="2026-01-02T00:00:00Z")
    assert freezes.active_freeze(frozen, None, LATER - timedelta(microseconds=1)) is not None
    assert freezes.active_freeze(frozen, None, LATER) is None


@pytest.mark.parametrize("until", ["", "tomorrow", "2026-01-02", "2026-01-02T00:00:00", "2h", "2026-13-02T00:00:00Z"])
def test_an_end_that_cannot_be_read_freezes_without_an_end(until: str) -> None:
    freeze = freezes.active_freeze(pool(freeze="x", until=until), None, datetime(2999, 1, 1, tzinfo=UTC))
    assert freeze is not None
    (finding,) = freeze.findings
    assert finding.path == UNTIL
    assert "2026-12-24T18:00:00+01:00" in finding.message
    assert "frozen until that is corrected" in str(freeze)
    over_all = cluster(until=until)
    assert over_all.is_active(datetime(2999, 1, 1, tzinfo=UTC))
    assert [finding.path for finding in over_all.findings] == ["data.until"]


def test_a_config_map_freezes_every_pool() -> None:
    freeze = freezes.active_freeze(node_pool(), cluster(reason="audit", until="2026-01-02T00:00:00Z"), NOW)
    assert str(freeze) == "frozen by ConfigMap kube-system/karpenter-freeze until 2026-01-02T00:00:00Z: audit"
    assert freezes.active_freeze(node_pool(), cluster(until="2026-01-01T00:00:00Z"), NOW) is None
    assert freezes.active_freeze(node_pool(), cluster(), NOW) == Freeze(CLUSTER_SOURCE)


def test_an_unknown_member_freezes_without_an_end() -> None:
    """It may be a misspelt one: ``untill`` would else freeze for ever in silence."""
    freeze = cluster(reason="audit", untill="2026-01-01T00:00:00Z")
    assert (freeze.reason, freeze.until) == ("audit", None)
    assert [finding.path for finding in freeze.findings] == ["data.untill"]


def test_of_two_freezes_the_one_that_lasts_longer_is_named() -> None:
    short, long = "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"
    by_cluster = freezes.active_freeze(pool(freeze="a", until=short), cluster(until=long), NOW)
    by_pool = freezes.active_freeze(pool(freeze="a", until=long), cluster(until=short), NOW)
    for_ever = freezes.active_freeze(pool(freeze="a"), cluster(until=long), NOW)
    assert [freeze.source for freeze in (by_cluster, by_pool, for_ever) if freeze] == [CLUSTER_SOURCE, ON_POOL, ON_POOL]


def test_nothing_may_go_while_a_freeze_is_on_and_what_budgets_allow_afterwards() -> None:
    rules = disruption_rules(pool(freeze="x", until="2026-01-02T00:00:00Z"), None)
    assert rules.allowance(50, "Empty", NOW) == DisruptionAllowance(0, ON_POOL)
    assert rules.allowance(50, "Empty", LATER) == DisruptionAllowance(5, "spec.disruption.budgets[0]")
    assert rules.transitions(TimeSpan(NOW, LATER + timedelta(hours=1))) == {LATER}


def test_what_cannot_be_read_is_found_in_every_setting_about_disruption() -> None:
    notes = {
        labels.BUDGET_WINDOWS: "{}",
        labels.FREEZE_UNTIL: "soon",
        labels.MINIMUM_NODE_AGE: "old",
        labels.MINIMUM_SAVING_RATIO: "much",
    }
    paths = [f"metadata.annotations[{key}]" for key in (labels.BUDGET_WINDOWS, labels.FREEZE_UNTIL)]
    thresholds = [f"metadata.annotations[{key}]" for key in (labels.MINIMUM_SAVING_RATIO, labels.MINIMUM_NODE_AGE)]
    assert [finding.path for finding in unparseable_settings(annotated(node_pool(), notes))] == [*paths, *thresholds]
    assert unparseable_settings(node_pool()) == ()
    assert nodepool_budgets.nodepool_budgets(annotated(node_pool(), notes)).parsed == ()
