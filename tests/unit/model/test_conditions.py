from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from karpenter.api.meta import Condition, ObjectMeta
from karpenter.model import conditions as c

CREATED = datetime(2025, 1, 1, tzinfo=UTC)
OWNER = c.ConditionedObject(c.NODE_CLAIM, generation=1, created=CREATED, now=CREATED + timedelta(seconds=10))


def later(seconds: float, owner: c.ConditionedObject = OWNER) -> c.ConditionedObject:
    return replace(owner, now=CREATED + timedelta(seconds=seconds))


def wish(type_: str, status: str, reason: str = "", message: str = "") -> Condition:
    return Condition(type=type_, status=status, reason=reason, message=message)


def set_true(conditions: c.Conditions, type_: str, owner: c.ConditionedObject) -> c.Conditions:
    return c.set_condition(conditions, wish(type_, "True"), owner)


def all_true() -> c.Conditions:
    conditions: c.Conditions = ()
    for seconds, type_ in enumerate(c.NODE_CLAIM.dependents, start=20):
        conditions = set_true(conditions, type_, later(seconds))
    return conditions


def test_untouched_conditions_await_reconciliation_since_creation() -> None:
    """API-600, OPS-100, API-S080"""
    conditions = c.with_missing_conditions((), OWNER)
    assert [listed_condition.type for listed_condition in conditions] == [
        "Launched",
        "Registered",
        "Initialized",
        "Ready",
    ]
    for condition in conditions:
        assert (condition.status, condition.reason) == ("Unknown", "AwaitingReconciliation")
        assert condition.message == "object is awaiting reconciliation"
        assert (condition.last_transition_time, condition.observed_generation) == (CREATED, 1)
    assert c.with_missing_conditions(conditions, later(99)) == conditions


def test_an_independent_condition_starts_at_the_moment_it_is_set() -> None:
    """OPS-100"""
    condition = c.find_condition(set_true((), "Drifted", OWNER), "Drifted")
    assert condition is not None
    assert condition.last_transition_time == OWNER.now


def test_a_root_without_dependents_is_true_at_once() -> None:
    """OPS-250"""
    conditions = c.with_missing_conditions((), replace(OWNER, types=c.KWOK_NODE_CLASS))
    assert [(condition.type, condition.status, condition.reason) for condition in conditions] == [
        ("Ready", "True", "Ready")
    ]


def test_true_without_a_reason_takes_the_type_as_reason() -> None:
    """API-601"""
    condition = c.find_condition(set_true((), "Launched", OWNER), "Launched")
    assert condition is not None
    assert (condition.status, condition.reason, condition.message) == ("True", "Launched", "")


def test_a_new_message_does_not_move_the_transition_time() -> None:
    """API-602, API-S255"""
    first = c.set_condition((), wish("Launched", "Unknown", "LaunchFailed", "no instance"), OWNER)
    second = c.set_condition(first, wish("Launched", "Unknown", "LaunchFailed", "still none"), later(50))
    condition = c.find_condition(second, "Launched")
    assert condition is not None
    assert (condition.message, condition.last_transition_time) == ("still none", CREATED)
    third = c.find_condition(set_true(second, "Launched", later(60)), "Launched")
    assert third is not None
    assert third.last_transition_time == CREATED + timedelta(seconds=60)


def test_setting_what_is_already_so_changes_nothing() -> None:
    """OPS-101"""
    conditions = all_true()
    assert set_true(conditions, "Launched", later(500)) == conditions


def test_the_root_is_true_when_all_dependents_are_and_takes_its_place_last() -> None:
    """API-603, API-604"""
    conditions = all_true()
    assert [condition.type for condition in conditions] == ["Launched", "Registered", "Initialized", "Ready"]
    assert c.is_true(conditions, "Ready")
    root = c.find_condition(conditions, "Ready")
    assert root is not None
    assert (root.reason, root.message) == ("Ready", "")


def test_conditions_are_stored_by_transition_time() -> None:
    """API-604"""
    conditions = set_true(set_true((), "Initialized", later(5)), "Launched", later(3))
    assert [condition.type for condition in conditions] == ["Registered", "Launched", "Initialized", "Ready"]


def test_an_unready_root_lists_its_unhealthy_dependents_newest_first() -> None:
    """API-603, OPS-102"""
    conditions = set_true(all_true(), "Drifted", later(25))
    conditions = c.set_condition(conditions, wish("Launched", "Unknown", "X"), later(30))
    conditions = c.set_condition(conditions, wish("Registered", "Unknown", "X"), later(31))
    root = c.find_condition(conditions, "Ready")
    assert root is not None
    assert (root.status, root.reason) == ("Unknown", "ReconcilingDependents")
    assert root.message == "Registered=Unknown, Launched=Unknown"
    conditions = c.set_condition(conditions, wish("Registered", "False", "MultipleNodesFound"), later(40))
    root = c.find_condition(conditions, "Ready")
    assert root is not None
    assert (root.status, root.reason) == ("False", "UnhealthyDependents")
    assert root.message == "Registered=False, Launched=Unknown"


def test_a_dependent_seen_at_an_old_generation_is_unhealthy_but_not_false() -> None:
    """API-603, OPS-102"""
    conditions = c.set_condition(all_true(), wish("Registered", "False", "MultipleNodesFound"), later(40))
    edited = replace(later(50), generation=2)
    conditions = set_true(conditions, "Drifted", edited)
    root = c.find_condition(conditions, "Ready")
    assert root is not None
    assert (root.status, root.observed_generation) == ("Unknown", 2)
    assert root.message == "Registered=False, Initialized=True, Launched=True"


def test_a_pass_after_an_edit_brings_every_condition_to_the_new_generation() -> None:
    """OPS-L28"""
    conditions = all_true()
    edited = replace(later(90), generation=2)
    for type_ in c.NODE_CLAIM.dependents:
        conditions = set_true(conditions, type_, edited)
    assert {condition.observed_generation for condition in conditions} == {2}
    assert c.is_true(conditions, "Ready")
    times = [condition.last_transition_time for condition in conditions if condition.type != "Ready"]
    assert times == [CREATED + timedelta(seconds=seconds) for seconds in (20, 21, 22)]


def test_an_object_being_deleted_has_all_its_conditions_lifted() -> None:
    """API-605"""
    conditions = c.with_missing_conditions(all_true(), replace(later(90), generation=3, deleting=True))
    assert {condition.observed_generation for condition in conditions} == {3}


def test_only_independent_conditions_can_be_removed() -> None:
    """API-606"""
    conditions = set_true(all_true(), "Drifted", OWNER)
    assert c.clear(conditions, "Drifted", OWNER) == all_true()
    for type_ in c.NODE_CLAIM.all_types:
        with pytest.raises(ValueError, match=type_):
            c.clear(conditions, type_, OWNER)


def test_a_message_too_long_for_the_schema_is_cut() -> None:
    """API-607"""
    condition = c.find_condition(
        c.set_condition((), wish("Launched", "False", "LaunchFailed", "x" * 40000), OWNER), "Launched"
    )
    assert condition is not None
    assert len(condition.message) == 32768
    assert condition.message.endswith("…")


def test_absent_conditions_are_unknown() -> None:
    assert c.condition_status((), "Ready") == "Unknown"
    assert not c.is_true((), "Ready")
    assert not c.is_false((), "Ready")


def test_an_owner_is_read_from_metadata() -> None:
    meta = ObjectMeta(generation=4, creation_timestamp=CREATED, deletion_timestamp=OWNER.now)
    assert c.conditioned_object(c.NODE_POOL, meta, OWNER.now) == c.ConditionedObject(
        c.NODE_POOL, 4, CREATED, OWNER.now, deleting=True
    )
    assert c.conditioned_object(c.NODE_POOL, ObjectMeta(), OWNER.now).created == OWNER.now
