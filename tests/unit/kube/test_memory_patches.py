"""The three patch formats."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpenter.simulation.apiserver.patch_formats import PatchError, json_patch, merge_patch, strategic_merge_patch

_LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2)
_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)
_OBJECTS = st.dictionaries(st.sampled_from("abcd"), _JSON, max_size=4)


@given(_OBJECTS, _OBJECTS)
def test_a_merge_patch_applied_twice_is_applied_once(target: object, patch: object) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@given(_OBJECTS, _OBJECTS)
def test_a_merge_patch_changes_neither_argument(target: object, patch: object) -> None:
    before = copy.deepcopy((target, patch))
    merge_patch(target, patch)
    assert (target, patch) == before


@given(_OBJECTS)
def test_an_empty_merge_patch_changes_nothing(target: object) -> None:
    assert merge_patch(target, {}) == target


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        (["a"], {"a": 1}, {"a": 1}),
        ({"a": "foo"}, "bar", "bar"),
    ],
)
def test_merge_patches_follow_rfc_7396(target: object, patch: object, expected: object) -> None:
    assert merge_patch(target, patch) == expected


_CONTAINERS = {"containers": [{"name": "a", "image": "1", "cpu": 1}, {"name": "b", "image": "1"}]}


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        pytest.param(
            _CONTAINERS,
            {"containers": [{"name": "a", "image": "2"}]},
            {"containers": [{"name": "a", "image": "2", "cpu": 1}, {"name": "b", "image": "1"}]},
            id="an element is merged by its key",
        ),
        pytest.param(
            _CONTAINERS,
            {"containers": [{"name": "a", "$patch": "delete"}]},
            {"containers": [{"name": "b", "image": "1"}]},
            id="an element is deleted by its key",
        ),
        pytest.param(
            _CONTAINERS,
            {"containers": [{"$patch": "replace"}, {"name": "c"}]},
            {"containers": [{"name": "c"}]},
            id="a list is replaced on request",
        ),
        pytest.param(
            _CONTAINERS,
            {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]},
            {"containers": list(reversed(_CONTAINERS["containers"]))},
            id="an order is kept",
        ),
        pytest.param(
            {"finalizers": ["a", "b"]},
            {"$deleteFromPrimitiveList/finalizers": ["a"]},
            {"finalizers": ["b"]},
            id="a value leaves a set",
        ),
        pytest.param({"finalizers": ["a"]}, {"finalizers": ["b", "a"]}, {"finalizers": ["a", "b"]}, id="a set grows"),
        pytest.param({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}, id="any other list is replaced"),
        pytest.param(
            {"a": {"x": 1, "y": 2}}, {"a": {"$retainKeys": ["x"], "x": 3}}, {"a": {"x": 3}}, id="retained keys"
        ),
        pytest.param(
            {"a": {"x": 1}}, {"a": {"$patch": "replace", "y": 1}}, {"a": {"y": 1}}, id="an object is replaced"
        ),
        pytest.param({"a": 1, "b": 2}, {"a": None}, {"b": 2}, id="a member is removed"),
    ],
)
def test_strategic_merge_patches(target: object, patch: object, expected: object) -> None:
    before = copy.deepcopy(target)
    assert strategic_merge_patch(target, patch) == expected
    assert target == before


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "add", "path": "/b", "value": 1}], {"a": ["x", "y"], "b": 1}),
        ([{"op": "add", "path": "/a/1", "value": "z"}], {"a": ["x", "z", "y"]}),
        ([{"op": "add", "path": "/a/-", "value": "z"}], {"a": ["x", "y", "z"]}),
        ([{"op": "replace", "path": "/a/0", "value": "z"}], {"a": ["z", "y"]}),
        ([{"op": "remove", "path": "/a/0"}], {"a": ["y"]}),
        ([{"op": "remove", "path": "/a"}], {}),
        ([{"op": "copy", "from": "/a/0", "path": "/b"}], {"a": ["x", "y"], "b": "x"}),
        ([{"op": "move", "from": "/a/0", "path": "/b~1c"}], {"a": ["y"], "b/c": "x"}),
        ([{"op": "test", "path": "/a/0", "value": "x"}, {"op": "remove", "path": "/a"}], {}),
    ],
)
def test_json_patches_follow_rfc_6902(operations: object, expected: object) -> None:
    target = {"a": ["x", "y"]}
    assert json_patch(target, operations) == expected
    assert target == {"a": ["x", "y"]}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a/0", "value": "other"},
        {"op": "remove", "path": "/none"},
        {"op": "add", "path": "/none/deeper", "value": 1},
        {"op": "add", "path": "/a/7", "value": 1},
        {"op": "add", "path": "a", "value": 1},
        {"op": "dance", "path": "/a"},
        {"path": "/a"},
        {"op": "remove", "path": ""},
    ],
)
def test_a_json_patch_that_does_not_fit_is_refused(operation: object) -> None:
    with pytest.raises(PatchError):
        json_patch({"a": ["x", "y"]}, [operation])
