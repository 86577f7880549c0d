"""Dependents of a deleted owner, for each of the three propagation policies.

On a real cluster a controller handles them a moment later, so tests wait for each result.
"""

from __future__ import annotations

from typing import Any

import pytest

from karpenter.api.kinds import CONFIG_MAP
from support.contract_builders import MERGE, Web, eventually

_HOLD = "example.com/hold"
_Places = dict[str, str]


class _Family:
    """Owners and dependents in one namespace, all of them ConfigMaps."""

    def __init__(self, web: Web, namespace: str) -> None:
        self._web = web
        self._namespace = namespace

    async def make(self, name: str, *owners: Any, blocking: bool = False, held: bool = False) -> Any:
        """Create an object; ``blocking`` owners block its owner, ``held`` objects have a finalizer."""
        references = [_reference(owner, blocking=blocking) for owner in owners]
        finalizers = [_HOLD] if held else []
        body = {"metadata": {"name": name, "ownerReferences": references, "finalizers": finalizers}}
        return await self._web.made(CONFIG_MAP, body, self._namespace)

    async def delete(self, name: str, policy: str = "Background") -> Any:
        options = {"propagationPolicy": policy}
        answer = await self._web.ask("DELETE", CONFIG_MAP.path(self._namespace, name), options)
        assert answer.status == 200
        return answer.body

    async def patch(self, name: str, metadata: dict[str, Any]) -> None:
        path = CONFIG_MAP.path(self._namespace, name)
        assert (await self._web.ask("PATCH", path, {"metadata": metadata}, MERGE)).status == 200

    async def let_go(self, name: str) -> None:
        await self.patch(name, {"finalizers": None})

    async def becomes(self, **expected: str) -> None:
        """Wait until each of these objects is ``gone``, ``leaving``, or ``here`` (with its owners, if any)."""

        async def look() -> _Places:
            return {name: await self._state(name) for name in expected}

        try:
            await eventually(look, lambda answer: answer == expected)
        except TimeoutError:
            raise AssertionError(f"{await look()} instead of {expected}") from None

    async def _state(self, name: str) -> str:
        answer = await self._web.ask("GET", CONFIG_MAP.path(self._namespace, name))
        if answer.status == 404:
            return "gone"
        metadata = answer.body["metadata"]
        if "deletionTimestamp" in metadata:
            return "leaving"
        return " ".join(["here", *(owner["name"] for owner in metadata.get("ownerReferences", ()))])


def _reference(owner: Any, *, blocking: bool) -> dict[str, Any]:
    metadata = owner["metadata"]
    defaults = {"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"]}
    return {**defaults, "blockOwnerDeletion": blocking}


@pytest.fixture
def family(web: Web, web_namespace: str) -> _Family:
    return _Family(web, web_namespace)


async def test_in_background_deletion_the_owner_is_deleted_first(family: _Family) -> None:
    owner = await family.make("owner")
    await family.make("child", owner, blocking=True, held=True)
    assert (await family.delete("owner"))["kind"] == "Status"
    await family.becomes(owner="gone", child="leaving")
    await family.let_go("child")
    await family.becomes(child="gone")


async def test_in_foreground_deletion_the_owner_waits_for_blocking_dependents(family: _Family) -> None:
    owner = await family.make("owner")
    await family.make("child", owner, blocking=True, held=True)
    await family.make("free", owner)
    deleted = await family.delete("owner", "Foreground")
    assert (deleted["kind"], deleted["metadata"]["finalizers"]) == ("ConfigMap", ["foregroundDeletion"])
    await family.becomes(owner="leaving", child="leaving", free="gone")
    await family.let_go("child")
    await family.becomes(owner="gone", child="gone")


async def test_in_foreground_deletion_the_owner_does_not_wait_for_other_dependents(family: _Family) -> None:
    owner = await family.make("owner")
    await family.make("child", owner, held=True)
    await family.delete("owner", "Foreground")
    await family.becomes(owner="gone", child="leaving")
    await family.let_go("child")


async def test_in_foreground_deletion_dependents_wait_for_their_dependents(family: _Family) -> None:
    owner = await family.make("owner")
    middle = await family.make("middle", owner, blocking=True)
    await family.make("leaf", middle, blocking=True, held=True)
    await family.delete("owner", "Foreground")
    await family.becomes(owner="leaving", middle="leaving", leaf="leaving")
    await family.let_go("leaf")
    await family.becomes(owner="gone", middle="gone", leaf="gone")


async def test_in_foreground_deletion_a_dependent_with_another_owner_loses_the_owner_reference(family: _Family) -> None:
    first, second = await family.make("first"), await family.make("second")
    await family.make("child", first, second, blocking=True)
    await family.delete("first", "Foreground")
    await family.becomes(first="gone", child="here second")


async def test_cyclic_owners_are_deleted(family: _Family) -> None:
    first = await family.make("first")
    second = await family.make("second", first, blocking=True)
    await family.patch("first", {"ownerReferences": [_reference(second, blocking=True)]})
    await family.delete("first", "Foreground")
    await family.becomes(first="gone", second="gone")


async def test_an_owner_deleted_in_the_foreground_keeps_its_own_finalizers(family: _Family) -> None:
    owner = await family.make("owner", held=True)
    await family.make("child", owner, blocking=True)
    await family.delete("owner", "Foreground")
    await family.becomes(owner="leaving", child="gone")
    await family.let_go("owner")
    await family.becomes(owner="gone")


async def test_orphans_stay_without_the_owner_reference(family: _Family) -> None:
    owner = await family.make("owner")
    await family.make("child", owner, blocking=True)
    deleted = await family.delete("owner", "Orphan")
    assert deleted["metadata"]["finalizers"] == ["orphan"]
    await family.becomes(owner="gone", child="here")


async def test_dependents_stay_as_long_as_a_finalizer_keeps_the_owner(family: _Family) -> None:
    owner = await family.make("owner", held=True)
    await family.make("child", owner)
    await family.delete("owner")
    await family.becomes(owner="leaving", child="here owner")
    await family.let_go("owner")
    await family.becomes(owner="gone", child="gone")


async def test_an_object_with_a_missing_owner_is_deleted(family: _Family) -> None:
    owner = await family.make("owner")
    await family.delete("owner")
    await family.becomes(owner="gone")
    await family.make("late", owner)
    await family.becomes(late="gone")


async def test_an_owner_with_the_same_name_and_another_uid_is_another_owner(family: _Family) -> None:
    dead = await family.make("owner")
    await family.delete("owner")
    await family.make("owner")
    await family.make("late", dead)
    await family.becomes(late="gone", owner="here")


async def test_an_object_with_a_missing_and_an_existing_owner_loses_the_missing_reference(family: _Family) -> None:
    dead = await family.make("dead")
    await family.delete("dead")
    living = await family.make("living")
    await family.make("child", dead, living)
    await family.becomes(child="here living")


async def test_an_object_that_gets_a_missing_owner_is_deleted(family: _Family) -> None:
    dead = await family.make("dead")
    await family.delete("dead")
    await family.make("child")
    await family.patch("child", {"ownerReferences": [_reference(dead, blocking=False)]})
    await family.becomes(child="gone")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"propagationPolicy": "Sideways"}, id="unknown"),
        pytest.param({"propagationPolicy": "Orphan", "orphanDependents": True}, id="said twice"),
    ],
)
async def test_a_deletion_with_an_invalid_propagation_policy_is_refused(
    web: Web, web_namespace: str, options: dict[str, Any]
) -> None:
    await web.made(CONFIG_MAP, {"metadata": {"name": "owner"}}, web_namespace)
    path = CONFIG_MAP.path(web_namespace, "owner")
    answer = await web.ask("DELETE", path, options)
    assert answer.refusal == (422, "Invalid")
    assert [cause["field"] for cause in answer.body["details"]["causes"]] == ["propagationPolicy"]
    assert (await web.ask("GET", path)).status == 200
