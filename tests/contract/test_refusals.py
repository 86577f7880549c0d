"""Errors of an API server: their type, message, object and fields."""

from __future__ import annotations

import msgspec
import pytest

from karpenter.api import core
from karpenter.api.kinds import CONFIG_MAP, NAMESPACE, NODE_CLAIM, NODE_POOL, Kind
from karpenter.kube.errors import (
    KIND_NOT_SERVED,
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ServerUnavailable,
    StatusDetails,
)
from karpenter.kube.protocol import Kube
from support.contract_builders import Web, claim, config_map, pool, refused


def _about(details: StatusDetails) -> tuple[str, str, str]:
    return details.group, details.kind, details.name


async def test_a_missing_object_is_named(kube: Kube, namespace: str) -> None:
    error = await refused(kube.get(CONFIG_MAP, "none", namespace))
    assert (type(error), error.status, error.reason) == (NotFound, 404, "NotFound")
    assert str(error) == 'configmaps "none" not found'
    assert _about(error.details) == ("", "configmaps", "none")


async def test_a_missing_custom_resource_is_named_with_its_group(kube: Kube, unique: str) -> None:
    error = await refused(kube.delete(NODE_POOL, unique))
    assert str(error) == f'nodepools.karpenter.sh "{unique}" not found'
    assert _about(error.details) == ("karpenter.sh", "nodepools", unique)


async def test_a_missing_namespace_is_named_instead_of_the_object(kube: Kube, unique: str) -> None:
    error = await refused(kube.create(CONFIG_MAP, config_map("one", unique)))
    assert (type(error), str(error)) == (NotFound, f'namespaces "{unique}" not found')
    assert _about(error.details) == ("", "namespaces", unique)


async def test_an_unserved_kind_differs_from_a_missing_object(kube: Kube, unique: str) -> None:
    teapots = Kind("karpenter.sh", "v1", "teapots", "Teapot", False, core.ConfigMap)
    for call in (kube.get(teapots, unique), kube.list(teapots)):
        error = await refused(call)
        assert isinstance(error, NotFound)
        assert (error.reason, error.api_version) == (KIND_NOT_SERVED, "karpenter.sh/v1")


async def test_an_existing_name_is_named(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAP, config_map("one", namespace))
    error = await refused(kube.create(CONFIG_MAP, config_map("one", namespace)))
    assert (type(error), error.status, error.reason) == (AlreadyExists, 409, "AlreadyExists")
    assert str(error) == 'configmaps "one" already exists'
    assert _about(error.details) == ("", "configmaps", "one")


async def test_an_existing_name_of_an_object_being_deleted_is_reported_as_such(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAP, config_map("one", namespace, finalizers=("example.com/hold",)))
    await kube.delete(CONFIG_MAP, "one", namespace)
    error = await refused(kube.create(CONFIG_MAP, config_map("one", namespace)))
    assert isinstance(error, AlreadyExists)
    assert str(error) == 'object is being deleted: configmaps "one" already exists'
    await kube.patch(CONFIG_MAP, "one", {"metadata": {"finalizers": None}}, namespace)


async def test_a_conflict_names_the_object(kube: Kube, unique: str) -> None:
    await kube.create(NODE_POOL, pool(unique))
    error = await refused(kube.patch(NODE_POOL, unique, {"spec": {"weight": 5}}, resource_version="1"))
    assert (type(error), error.status, error.reason) == (Conflict, 409, "Conflict")
    assert str(error) == (
        f'Operation cannot be fulfilled on nodepools.karpenter.sh "{unique}": the object has been modified; please apply your '
        "changes to the latest version and try again"
    )
    assert _about(error.details) == ("karpenter.sh", "nodepools", unique)


async def test_a_failed_precondition_is_named(kube: Kube, namespace: str) -> None:
    made = await kube.create(CONFIG_MAP, config_map("one", namespace))
    error = await refused(kube.delete(CONFIG_MAP, "one", namespace, uid="another"))
    assert (type(error), error.reason) == (Conflict, "Conflict")
    assert str(error) == (
        'Operation cannot be fulfilled on ConfigMap "one": the UID in the precondition (another) does not match the UID in '
        f"record ({made.metadata.uid}). The object might have been deleted and then recreated"
    )


async def test_invalid_content_is_reported_by_field(kube: Kube, namespace: str) -> None:
    wrong = config_map("Upper_case", namespace, labels={"key": "v" * 64})
    error = await refused(kube.create(CONFIG_MAP, wrong))
    assert (type(error), error.status, error.reason) == (Invalid, 422, "Invalid")
    assert str(error).startswith('ConfigMap "Upper_case" is invalid: [metadata.name: ')
    assert _about(error.details) == ("", "ConfigMap", "Upper_case")
    assert {(cause.reason, cause.field) for cause in error.details.causes} == {
        ("FieldValueInvalid", "metadata.name"),
        ("FieldValueInvalid", "metadata.labels"),
    }
    assert all(cause.message for cause in error.details.causes)


async def test_an_object_without_a_name_is_refused(kube: Kube, namespace: str) -> None:
    error = await refused(kube.create(CONFIG_MAP, config_map("", namespace)))
    assert isinstance(error, Invalid)
    assert str(error) == 'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required'
    assert [(cause.reason, cause.field) for cause in error.details.causes] == [("FieldValueRequired", "metadata.name")]


async def test_an_invalid_custom_resource_is_reported_by_field(kube: Kube, unique: str) -> None:
    await kube.create(NODE_POOL, pool(unique))
    error = await refused(kube.patch(NODE_POOL, unique, {"spec": {"weight": 101}}))
    assert isinstance(error, Invalid)
    assert str(error).startswith(f'NodePool.karpenter.sh "{unique}" is invalid: spec.weight: ')
    assert _about(error.details) == ("karpenter.sh", "NodePool", unique)
    assert [cause.field for cause in error.details.causes] == ["spec.weight"]


async def test_a_finalizer_added_during_deletion_is_reported_by_field(kube: Kube, unique: str) -> None:
    made = await kube.create(NODE_CLAIM, _with_finalizer(claim(unique)))
    await kube.delete(NODE_CLAIM, unique)
    late = {"metadata": {"finalizers": [*made.metadata.finalizers, "example.com/late"]}}
    error = await refused(kube.patch(NODE_CLAIM, unique, late))
    assert isinstance(error, Invalid)
    assert {(cause.reason, cause.field) for cause in error.details.causes} == {
        ("FieldValueForbidden", "metadata.finalizers")
    }
    await kube.patch(NODE_CLAIM, unique, {"metadata": {"finalizers": None}})


def _with_finalizer(obj):
    metadata = msgspec.structs.replace(obj.metadata, finalizers=("example.com/hold",))
    return msgspec.structs.replace(obj, metadata=metadata)


async def test_a_terminating_namespace_accepts_no_new_objects(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAP, config_map("one", namespace, finalizers=("example.com/hold",)))
    await kube.delete(NAMESPACE, namespace)
    error = await refused(kube.create(CONFIG_MAP, config_map("late", namespace)))
    assert (type(error), error.status, error.reason) == (Forbidden, 403, "Forbidden")
    assert str(error) == (
        f'configmaps "late" is forbidden: unable to create new content in namespace {namespace} because it is being terminated'
    )
    assert [cause.reason for cause in error.details.causes] == ["NamespaceTerminating"]
    await kube.patch(CONFIG_MAP, "one", {"metadata": {"finalizers": None}}, namespace)


async def test_an_object_with_a_resource_version_cannot_be_created(kube: Kube, namespace: str) -> None:
    error = await refused(kube.create(CONFIG_MAP, config_map("one", namespace, resource_version="5")))
    assert isinstance(error, ServerUnavailable)
    assert (error.status, str(error)) == (500, "resourceVersion should not be set on objects to be created")


@pytest.mark.parametrize(
    ("method", "tail", "refusal"),
    [
        ("PUT", "", (405, "MethodNotAllowed")),
        ("POST", "/one", (405, "MethodNotAllowed")),
        ("GET", "/one/status", (404, "NotFound")),
        ("GET", "/one/teapot", (404, "NotFound")),
    ],
)
async def test_a_call_of_an_unknown_path_is_refused(
    web: Web, web_namespace: str, method: str, tail: str, refusal: tuple[int, str]
) -> None:
    await web.made(CONFIG_MAP, {"metadata": {"name": "one"}}, web_namespace)
    assert (
        await web.ask(method, CONFIG_MAP.path(web_namespace) + tail, {} if method != "GET" else None)
    ).refusal == refusal


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{broken", id="no JSON"),
        pytest.param({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}, id="another kind"),
        pytest.param(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "other"}},
            id="another namespace",
        ),
        pytest.param({"metadata": {"name": "x"}, "data": 5}, id="a number for a map"),
    ],
)
async def test_an_object_that_does_not_match_its_path_is_refused(
    web: Web, web_namespace: str, body: bytes | dict[str, object]
) -> None:
    assert (await web.ask("POST", CONFIG_MAP.path(web_namespace), body)).refusal == (400, "BadRequest")
