"""Advice: fields of an object that are valid but probably not intended."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from karpenter.api.capacity_buffer import CapacityBuffer, CapacityBufferSpec, ScalableReference
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.model import labels, runtime_validation
from karpenter.model.feature_gates import DEFAULT_FEATURE_GATES, FeatureGate, FeatureGates
from support.admission_rows import CAPACITY, REQUIREMENTS, D, T, built, req

NO_GATES: FeatureGates = frozenset()
RESERVATION = "karpenter.k8s.aws/capacity-reservation-id"
BLOCKED = "no node of the pool may be disrupted"
WORKDAYS = {"schedule": "0 9 * * mon-fri", "duration": "8h"}


def pool(change: Mapping[str, object]) -> NodePool:
    return msgspec.convert(built("NodePool", change), NodePool)


def advice(change: Mapping[str, object], enabled: FeatureGates = DEFAULT_FEATURE_GATES) -> dict[str, str]:
    """Path to sentence; none of it keeps the pool from being used."""
    subject = pool(change)
    assert runtime_validation.validate_node_pool(subject) == ()
    return {finding.path: finding.message for finding in runtime_validation.advise_object(subject, enabled)}


def on_budgets(*budgets: Mapping[str, object]) -> dict[str, str]:
    return advice({f"{D}.budgets": list(budgets)})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {REQUIREMENTS: [req("In", "spot", key=CAPACITY), req("NotIn", "sopt", key=CAPACITY)]},
        {"spec.limits": {"cpu": 1, "memory": "0"}},
        {f"{T}.expireAfter": "Never", f"{D}.consolidateAfter": "Never"},
        {f"{D}.budgets": []},
        {f"{D}.budgets": [{"nodes": "9%"}, {"nodes": "0", **WORKDAYS}]},
        {f"{D}.budgets": [{"nodes": "9%", "schedule": "@daily", "duration": "24h"}, {"nodes": "0", **WORKDAYS}]},
        {f"{D}.budgets": [{"nodes": "1"}, {"nodes": "0", "schedule": "0 8,9,10 * * *", "duration": "1h"}]},
    ],
)
def test_a_sound_pool_gets_no_advice(change: Mapping[str, object]) -> None:
    assert advice(change) == {}


def test_ignored_values_are_named_beside_those_that_exist() -> None:
    """API-078, API-S053 (Beyond)"""
    change = {REQUIREMENTS: [req("In", "spot", "sopt", key=CAPACITY)]}
    text = "ignores the values sopt; use on-demand, reserved, spot"
    assert advice(change) == {f"{REQUIREMENTS}[0].values": text}


def test_values_none_of_which_exists_are_no_matter_for_advice() -> None:
    """The pool is not used, and runtime validation says why."""
    assert runtime_validation.advise_object(pool({REQUIREMENTS: [req("In", "sopt", key=CAPACITY)]})) == ()


def test_a_limit_below_zero_is_reported() -> None:
    """API-027 (Beyond)"""
    actual = advice({"spec.limits": {"cpu": "-1", "memory": -5, "nodes": 3}})
    assert set(actual) == {"spec.limits.cpu", "spec.limits.memory"}
    assert "never launches anything" in actual["spec.limits.cpu"]


def test_an_empty_list_of_reasons_counts_as_all_and_is_reported() -> None:
    """API-049 (Beyond)"""
    assert "all reasons" in on_budgets({"nodes": "1", "reasons": []})[f"{D}.budgets[0].reasons"]


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("99 99 99 99 99", "minute '99' is not a number"),
        ("@dailyXYZ", "use one of @annually"),
        ("TZ=Asia/Seoul 0 9 * * mon-fri", "take no time zone"),
        ("0 0 30 2 *", "names a day that never comes"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_reported_with_its_consequence(schedule: str, words: str) -> None:
    """API-082a, API-083, API-086, API-088 (Beyond)"""
    actual = on_budgets({"nodes": "10%"}, {"nodes": "0", "schedule": schedule, "duration": "1h"})
    assert list(actual) == [f"{D}.budgets[1].schedule"]
    assert words in actual[f"{D}.budgets[1].schedule"]
    assert BLOCKED in actual[f"{D}.budgets[1].schedule"]


def test_a_leap_day_is_a_schedule_like_others() -> None:
    assert on_budgets({"nodes": "10%"}, {"nodes": "0", "schedule": "0 0 29 2 *", "duration": "24h"}) == {}


def test_a_count_that_cannot_be_read_is_reported() -> None:
    """API-086: the pattern lets numbers of any length through."""
    assert BLOCKED in on_budgets({"nodes": "9" * 12})[f"{D}.budgets[0].nodes"]


@pytest.mark.parametrize(
    ("always", "scheduled"),
    [
        ({"nodes": "10%"}, {"nodes": "100%"}),
        ({"nodes": "10%"}, {"nodes": "10%"}),
        ({"nodes": "5"}, {"nodes": "6"}),
        ({"nodes": "0"}, {"nodes": "1%"}),
        ({"nodes": "0%"}, {"nodes": "1"}),
        ({"nodes": "1"}, {"nodes": "1%"}),
        ({"nodes": "5"}, {"nodes": "5", "reasons": ["Drifted"]}),
        ({"nodes": "5", "reasons": ["Drifted", "Empty"]}, {"nodes": "5", "reasons": ["Drifted"]}),
    ],
)
def test_a_scheduled_budget_under_a_stricter_one_is_reported_as_without_effect(
    always: Mapping[str, object], scheduled: Mapping[str, object]
) -> None:
    """API-089 (Beyond)"""
    actual = on_budgets({**scheduled, **WORKDAYS}, always)
    assert f"{D}.budgets[0]" in actual
    assert f"{D}.budgets[1]" not in actual
    assert f"{D}.budgets[1] always allows as little ({always['nodes']})" in actual[f"{D}.budgets[0]"]


@pytest.mark.parametrize(
    ("other", "scheduled"),
    [
        ({"nodes": "10%"}, {"nodes": "9%"}),
        ({"nodes": "10%"}, {"nodes": "1"}),  # stricter from 11 nodes on
        ({"nodes": "1%"}, {"nodes": "1000"}),  # stricter from 100 001 nodes on
        ({"nodes": "2"}, {"nodes": "10%"}),  # stricter up to 10 nodes
        ({"nodes": "1"}, {"nodes": "0%"}),
        ({"nodes": "1", "reasons": ["Empty"]}, {"nodes": "5"}),
        ({"nodes": "1", "reasons": ["Empty"]}, {"nodes": "5", "reasons": ["Drifted"]}),
        ({"nodes": "1", **WORKDAYS}, {"nodes": "5"}),
    ],
)
def test_a_scheduled_budget_that_can_be_the_strictest_is_fine(
    other: Mapping[str, object], scheduled: Mapping[str, object]
) -> None:
    """API-089"""
    assert not {f"{D}.budgets[0]", f"{D}.budgets[1]"} & set(on_budgets(other, {**scheduled, **WORKDAYS}))


@pytest.mark.parametrize(
    ("given", "without_effect"),
    [
        ([{"nodes": "10%"}, {"nodes": "1"}], [0]),  # the least of them, not "at least 1"
        ([{"nodes": "2"}, {"nodes": "2"}], [1]),
        ([{"nodes": "2"}, {"nodes": "2"}, {"nodes": "2"}], [1, 2]),
        ([{"nodes": "2"}, {"nodes": "2", "reasons": ["Empty"]}], [1]),
        ([{"nodes": "2", "reasons": ["Drifted"]}, {"nodes": "2", "reasons": ["Empty"]}], []),
        ([{"nodes": "10%"}, {"nodes": "5"}], []),
        ([{"nodes": "10"}, {"nodes": "1", "reasons": ["Empty"]}], []),
    ],
)
def test_of_two_budgets_that_are_always_active_the_looser_has_no_effect(
    given: list[Mapping[str, object]], without_effect: list[int]
) -> None:
    """API-089, DIS §6 (Beyond)"""
    actual = on_budgets(*given)
    assert list(actual) == [f"{D}.budgets[{index}]" for index in without_effect]
    assert all("leave one of them out" in text for text in actual.values())


@pytest.mark.parametrize(
    ("schedule", "duration", "words"),
    [
        (
            "0 9-17 * * mon-fri",
            "8h",
            "every hit opens 8h0m0s of its own, which makes one window from 09:00 to 01:00 (next day)",
        ),
        ("0,30 22 * * *", "1h", "one window from 22:00 to 23:30"),
        ("0 0,12 * * mon", "60h", "one window from 00:00 to 00:00 (3 days later)"),
    ],
)
def test_hits_that_come_before_a_window_is_over_are_reported(schedule: str, duration: str, words: str) -> None:
    """DIS §6 (Beyond)"""
    actual = on_budgets({"nodes": "10%"}, {"nodes": "0", "schedule": schedule, "duration": duration})
    assert list(actual) == [f"{D}.budgets[1].schedule"]
    assert words in actual[f"{D}.budgets[1].schedule"]


@pytest.mark.parametrize(
    ("given", "reasons"),
    [
        ([{"nodes": "0", **WORKDAYS}], "Empty, Drifted, Underutilized, Unhealthy"),
        ([{"nodes": "0", **WORKDAYS}, {"nodes": "1", "reasons": ["Empty"]}], "Drifted, Underutilized, Unhealthy"),
        ([{"nodes": "0", "reasons": ["Drifted"], **WORKDAYS}], "Drifted"),
        ([{"nodes": "0", "schedule": "0 0 * * *", "duration": "23h59m"}], "Empty, Drifted, Underutilized, Unhealthy"),
    ],
)
def test_times_at_which_nothing_limits_disruption_are_reported(given: list[Mapping[str, object]], reasons: str) -> None:
    """DIS §6 (Beyond)"""
    actual = on_budgets(*given)
    assert list(actual) == [f"{D}.budgets"]
    assert f"nothing limits disruption for {reasons}; add" in actual[f"{D}.budgets"]


def test_windows_that_follow_each_other_leave_no_gap() -> None:
    night = {"nodes": "5", "schedule": "0 18 * * *", "duration": "14h"}
    assert on_budgets({"nodes": "0", "schedule": "0 8 * * *", "duration": "10h"}, night) == {}


def dated(windows: str, *given: Mapping[str, object]) -> dict[str, str]:
    return advice({f"{D}.budgets": list(given), "metadata.annotations": {labels.BUDGET_WINDOWS: windows}})


def test_a_budget_between_dates_does_not_always_allow_as_little() -> None:
    """API-089"""
    actual = dated('[{"until": "2026-01-01T00:00:00Z"}, null]', {"nodes": "0"}, {"nodes": "5", **WORKDAYS})
    assert list(actual) == [f"{D}.budgets"]


def test_a_budget_between_dates_under_a_stricter_one_is_reported_as_without_effect() -> None:
    """API-089 (Beyond)"""
    actual = dated('[null, {"until": "2026-01-01T00:00:00Z"}]', {"nodes": "1"}, {"nodes": "5"})
    assert list(actual) == [f"{D}.budgets[1]"]


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        (labels.BUDGET_WINDOWS, "[]", "has 0 members for 1 budgets"),
        (labels.FREEZE_UNTIL, "soon", "is not a date and time"),
        (labels.MINIMUM_SAVING_RATIO, "10%", "is not a ratio"),
        (labels.MINIMUM_NODE_AGE, "old", "is not a duration"),
    ],
)
def test_an_annotation_about_disruption_that_cannot_be_read_is_reported(key: str, text: str, words: str) -> None:
    actual = advice({"metadata.annotations": {key: text}})
    assert list(actual) == [f"metadata.annotations[{key}]"]
    assert words in actual[f"metadata.annotations[{key}]"]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("karpenter.sh/freeze-untill", labels.FREEZE_UNTIL),
        ("karpenter.sh/frieze", labels.FREEZE),
        ("karpenter.sh/budget-window", labels.BUDGET_WINDOWS),
        ("karpenter.sh/min-saving-ratio", labels.MINIMUM_SAVING_RATIO),
        ("karpenter.sh/minimum-node-ages", labels.MINIMUM_NODE_AGE),
    ],
)
def test_an_annotation_that_is_misspelt_is_reported(key: str, meant: str) -> None:
    actual = advice({"metadata.annotations": {key: "x"}})
    assert list(actual) == [f"metadata.annotations[{key}]"]
    assert f"did you mean {meant!r}?" in actual[f"metadata.annotations[{key}]"]


@pytest.mark.parametrize(
    "key",
    [
        labels.NODE_POOL_HASH,
        labels.NODE_POOL_HASH_VERSION,
        labels.DO_NOT_DISRUPT,
        "example.com/freeze",
        "karpenter.sh/stored-version-migrated",
        "compatibility.karpenter.sh/v1beta1-nodeclass-reference",
    ],
)
def test_annotations_of_other_domains_get_no_advice(key: str) -> None:
    assert advice({"metadata.annotations": {key: "x"}}) == {}


def test_a_field_without_effect_names_the_gate_that_is_off() -> None:
    """API-032 (Beyond)"""
    change = {"spec.replicas": 3}
    assert "the feature gate StaticCapacity is off" in advice(change)["spec.replicas"]
    assert advice(change, frozenset({FeatureGate.STATIC_CAPACITY})) == {}


@pytest.mark.parametrize(
    "obj",
    [req("In", "reserved", "spot", key=CAPACITY), req("Exists", key=RESERVATION), req("In", "cr-1", key=RESERVATION)],
)
def test_reserved_capacity_is_reported_as_off(obj: object) -> None:
    """API-032 (Beyond)"""
    actual = advice({REQUIREMENTS: [obj]}, NO_GATES)
    assert "the feature gate ReservedCapacity is off" in actual[f"{REQUIREMENTS}[0]"]
    assert advice({REQUIREMENTS: [obj]}) == {}


@pytest.mark.parametrize("obj", [req("NotIn", "reserved", key=CAPACITY), req("DoesNotExist", key=RESERVATION)])
def test_shunning_reserved_capacity_needs_no_gate(obj: object) -> None:
    assert advice({REQUIREMENTS: [obj]}, NO_GATES) == {}


def test_a_claim_by_hand_gets_advice_about_fields_that_cannot_be_parsed() -> None:
    """API-028 (Beyond)"""
    change = {"spec.expireAfter": "2562048h", "spec.terminationGracePeriod": "9" * 300 + "s"}
    claim = msgspec.convert(built("NodeClaim", {**change, "spec.resources": {"requests": {"cpu": "1e1.5"}}}), NodeClaim)
    actual = {finding.path: finding.message for finding in runtime_validation.advise_object(claim)}
    assert set(actual) == {"spec.expireAfter", "spec.terminationGracePeriod", "spec.resources.requests.cpu"}
    assert "292 years" in actual["spec.expireAfter"]
    assert all(len(message) < 500 for message in actual.values())


def test_a_node_class_with_an_endless_delay_gets_advice() -> None:
    """API-028 (Beyond)"""
    slow = msgspec.convert(built("KWOKNodeClass", {"spec.nodeRegistrationDelay": "2562048h"}), KWOKNodeClass)
    assert [finding.path for finding in runtime_validation.advise_object(slow)] == ["spec.nodeRegistrationDelay"]
    assert runtime_validation.advise_object(KWOKNodeClass()) == ()


def test_a_share_of_no_workload_is_advised_against() -> None:
    """API-184"""
    lone = CapacityBuffer(spec=CapacityBufferSpec(percentage=20, replicas=1))
    shared = CapacityBuffer(spec=CapacityBufferSpec(percentage=20, scalable_ref=ScalableReference(kind="a", name="b")))
    assert [finding.path for finding in runtime_validation.advise_object(lone)] == ["spec.percentage"]
    assert runtime_validation.advise_object(shared) == ()


def test_a_spread_that_cannot_be_is_advised_against() -> None:
    """SCH §24 Beyond"""
    over = {"metadata.annotations": {labels.SPREAD_REPLICAS: labels.ZONE}}
    wrong = {"metadata.annotations": {labels.SPREAD_REPLICAS: "rack"}, "spec.replicas": 3}
    static = {FeatureGate.STATIC_CAPACITY}
    assert [
        finding.code for finding in runtime_validation.advise_object(pool(over), DEFAULT_FEATURE_GATES | static)
    ] == ["static"]
    assert [
        finding.code for finding in runtime_validation.advise_object(pool(wrong), DEFAULT_FEATURE_GATES | static)
    ] == ["value"]
    assert runtime_validation.advise_object(pool({**over, "spec.replicas": 3}), DEFAULT_FEATURE_GATES | static) == ()


def test_an_exposure_that_cannot_be_parsed_gets_advice() -> None:
    """Issue of price, point 3: the default holds, and somebody has to be told."""
    wrong, right = ({"metadata.annotations": {labels.EXPOSURE: text}} for text in ("half", "0.25"))
    (finding,) = runtime_validation.advise_object(pool(wrong))
    assert "'half'" in finding.message
    assert "default" in finding.message
    assert runtime_validation.advise_object(pool(right)) == ()


def test_the_annotation_for_daemon_set_room_is_true_or_false() -> None:
    """DIS-482"""
    wrong, *right = (
        {"metadata.annotations": {labels.REPLACE_FOR_DAEMON_SETS: text}} for text in ("yes", "true", "false")
    )
    (finding,) = runtime_validation.advise_object(pool(wrong))
    assert "no effect" in finding.message
    assert [runtime_validation.advise_object(pool(changes)) for changes in right] == [(), ()]
