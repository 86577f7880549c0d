"""Lists over HTTP: pages, tokens, and lists as of a version."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
import pytest_asyncio

from karpenter.api.kinds import CONFIG_MAP, NODE_POOL
from support.contract_builders import Answer, Web, eventually

#: What every namespace has on a real cluster is not meant.
_OWN = "metadata.name!=kube-root-ca.crt"


@pytest_asyncio.fixture(loop_scope="session")
async def maps(web: Web, web_namespace: str) -> str:
    """The path of a collection of five objects, ``a`` to ``e``."""

    async def content() -> Answer:
        return await web.ask("GET", CONFIG_MAP.path(web_namespace))

    for name in "abcde":
        await web.made(CONFIG_MAP, {"metadata": {"name": name, "labels": {"all": "yes"}}}, web_namespace)
    await eventually(content, lambda seen: seen.names == list("abcde"))
    return CONFIG_MAP.path(web_namespace)


async def _pages(web: Web, path: str, **query: str | int) -> list[Answer]:
    pages = [await web.ask("GET", path, **query)]
    while pages[-1].body["metadata"].get("continue"):
        pages.append(await web.ask("GET", path, **query, continue_=pages[-1].body["metadata"]["continue"]))
    return pages


def _names(pages: Sequence[Answer]) -> list[list[str]]:
    return [page.names for page in pages]


async def test_a_limited_list_comes_in_pages(web: Web, maps: str) -> None:
    pages = await _pages(web, maps, limit=2, labelSelector="all")
    assert _names(pages) == [["a", "b"], ["c", "d"], ["e"]]
    assert len({page.body["metadata"]["resourceVersion"] for page in pages}) == 1


async def test_a_page_has_the_remaining_count_unless_there_is_a_selector(web: Web, maps: str) -> None:
    total = len((await web.ask("GET", maps)).body["items"])
    first = (await web.ask("GET", maps, limit=2)).body["metadata"]
    assert first["remainingItemCount"] == total - 2
    selected = (await web.ask("GET", maps, limit=2, labelSelector="all")).body["metadata"]
    assert "remainingItemCount" not in selected
    assert selected["continue"]
    whole = (await web.ask("GET", maps, limit=100)).body["metadata"]
    assert "continue" not in whole
    assert "remainingItemCount" not in whole


async def test_all_pages_have_the_version_of_the_first_one(web: Web, maps: str) -> None:
    first = await web.ask("GET", maps, limit=2, labelSelector="all")
    await web.ask("DELETE", f"{maps}/d")
    await web.ask("POST", maps, {"metadata": {"name": "cc", "labels": {"all": "yes"}}})
    token = first.body["metadata"]["continue"]
    rest = await web.ask("GET", maps, limit=10, labelSelector="all", continue_=token)
    assert rest.names == ["c", "d", "e"]
    assert rest.body["metadata"]["resourceVersion"] == first.body["metadata"]["resourceVersion"]
    assert (await web.ask("GET", maps, labelSelector="all")).names == ["a", "b", "c", "cc", "e"]


async def test_a_token_can_be_used_again_and_with_another_limit(web: Web, maps: str) -> None:
    token = (await web.ask("GET", maps, limit=2, labelSelector="all")).body["metadata"]["continue"]

    async def continued(**query: str | int) -> list[str]:
        return (await web.ask("GET", maps, labelSelector="all", continue_=token, **query)).names

    assert await continued(limit=2) == await continued(limit=2) == ["c", "d"]
    assert await continued(limit=1) == ["c"]
    assert await continued() == ["c", "d", "e"]


async def test_pages_of_all_namespaces_are_in_the_order_of_namespaces_and_names(web: Web, maps: str) -> None:
    await web.made(CONFIG_MAP, {"metadata": {"name": "a", "labels": {"all": "yes"}}}, "default")
    try:
        pages = await _pages(web, CONFIG_MAP.path(), limit=2, labelSelector="all")
        actual = [
            (obj["metadata"]["namespace"], obj["metadata"]["name"]) for page in pages for obj in page.body["items"]
        ]
        assert actual == sorted(actual)
        assert ("default", "a") in actual
    finally:
        await web.ask("DELETE", CONFIG_MAP.path("default", "a"))


async def test_custom_resources_are_paged_too(web: Web, unique: str) -> None:
    for number in range(3):
        await web.made(NODE_POOL, _pool(f"{unique}-{number}", unique))
    pages = await _pages(web, NODE_POOL.path(), limit=2, labelSelector=f"test={unique}")
    assert _names(pages) == [[f"{unique}-0", f"{unique}-1"], [f"{unique}-2"]]


def _pool(name: str, label: str) -> dict[str, Any]:
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    spec = {"nodeClassRef": reference, "requirements": []}
    return {"metadata": {"name": name, "labels": {"test": label}}, "spec": {"template": {"spec": spec}}}


async def test_a_token_older_than_the_history_is_expired(web: Web, unique: str) -> None:
    """For a kind that was added later: a server may keep the history of other kinds from its start."""
    for number in range(2):
        await web.made(NODE_POOL, _pool(f"{unique}-{number}", unique))
    first = await web.ask("GET", NODE_POOL.path(), limit=1)
    web.forget()
    answer = await web.ask("GET", NODE_POOL.path(), limit=1, continue_=_aged(first.body["metadata"]["continue"]))
    assert answer.refusal == (410, "Expired")


def _aged(token: str) -> str:
    """The token of a list that was started long ago."""
    loads = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    return base64.urlsafe_b64encode(json.dumps({**loads, "rv": 1}).encode()).decode().rstrip("=")


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_of_zero_is_no_limit(web: Web, maps: str, limit: int) -> None:
    assert (await web.ask("GET", maps, limit=limit)).names == list("abcde")


@pytest.mark.parametrize(
    ("query", "refusal"),
    [
        pytest.param({"limit": "many"}, (400, "BadRequest"), id="a limit that is no number"),
        pytest.param({"continue_": "garbage", "limit": 2}, (400, "BadRequest"), id="a token nobody gave out"),
        pytest.param({"resourceVersion": "first"}, (400, "BadRequest"), id="a version that is no number"),
        pytest.param({"resourceVersionMatch": "Exact"}, (422, "Invalid"), id="a match without a version"),
        pytest.param(
            {"resourceVersionMatch": "Exact", "resourceVersion": "0"}, (422, "Invalid"), id="exactly any version"
        ),
        pytest.param(
            {"resourceVersionMatch": "Nearly", "resourceVersion": "1"}, (422, "Invalid"), id="an unknown match"
        ),
    ],
)
async def test_an_invalid_list_request_is_refused(
    web: Web, maps: str, query: dict[str, str | int], refusal: tuple[int, str]
) -> None:
    assert (await web.ask("GET", maps, **query)).refusal == refusal


async def test_a_token_cannot_be_combined_with_a_version(web: Web, maps: str) -> None:
    token = (await web.ask("GET", maps, limit=2)).body["metadata"]["continue"]
    assert (await web.ask("GET", maps, limit=2, continue_=token, resourceVersion="1")).refusal == (400, "BadRequest")
    assert (await web.ask("GET", maps, limit=2, continue_=token, resourceVersion="0")).status == 200


async def test_a_list_at_a_version_has_that_state_only_with_an_exact_match(web: Web, maps: str) -> None:
    then = (await web.ask("GET", maps)).body["metadata"]["resourceVersion"]
    await web.ask("DELETE", f"{maps}/c")
    exactly = await web.ask("GET", maps, resourceVersion=then, resourceVersionMatch="Exact", fieldSelector=_OWN)
    assert exactly.names == list("abcde")
    assert exactly.body["metadata"]["resourceVersion"] == then
    limited = await web.ask("GET", maps, resourceVersion=then, limit=3, fieldSelector=_OWN)
    assert limited.names == list("abc")
    for query in ({}, {"resourceVersionMatch": "NotOlderThan"}):
        assert (await web.ask("GET", maps, resourceVersion=then, **query)).names == list("abde")


async def test_a_list_at_version_zero_ignores_the_limit(web: Web, maps: str) -> None:
    ask = await web.ask("GET", maps, resourceVersion="0", limit=2)
    assert ask.names == list("abcde")


async def test_a_list_at_a_future_version_is_refused_with_a_retry_time(web: Web, maps: str) -> None:
    now = int((await web.ask("GET", maps)).body["metadata"]["resourceVersion"])
    answer = await web.ask("GET", maps, resourceVersion=now + 1_000_000)
    assert answer.refusal == (504, "Timeout")
    assert answer.headers["Retry-After"] == "1"
    assert [cause["reason"] for cause in answer.body["details"]["causes"]] == ["ResourceVersionTooLarge"]


async def test_a_list_of_a_namespace_that_does_not_exist_is_empty(web: Web, unique: str) -> None:
    assert (await web.ask("GET", CONFIG_MAP.path(unique))).body["items"] == []
