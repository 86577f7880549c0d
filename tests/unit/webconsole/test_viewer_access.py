"""Who sees what of the console that the controller serves: anonymous, without rights, one namespace, nodes only, everything."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from karpenter.kube.errors import ServerUnavailable
from karpenter.webconsole.console_app import ACTION_HEADER, ConsoleParts, _Pages, console_app
from karpenter.webconsole.viewer_access import ANSWER_SECONDS, MAX_NAMESPACES, Viewer
from support.reviewing_server import EVERYTHING, Clock, ReviewingServer, reviewed_parts

PATHS = (
    "/api/session",
    "/api/view",
    "/api/stream",
    "/api/explanation?subject=node/n",
    "/api/history",
    "/api/decision?id=x",
    "/api/ledger",
    "/api/budgets",
    "/api/what-if?drain=n",
)


@asynccontextmanager
async def browser(shown: ConsoleParts, token: str) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    transport = httpx2.ASGITransport(app=console_app(shown))
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://console", headers=headers) as client:
            yield client
    finally:
        await shown.feeds.close()


async def document(shown: ConsoleParts, client: httpx2.AsyncClient) -> dict[str, Any]:
    """The view, once it is made."""
    seen = await shown.access.viewer(client.build_request("GET", "/"))
    assert isinstance(seen, Viewer), seen
    await shown.feeds.feed(seen.visibility).refresh()
    answer = await client.get("/api/view")
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("token", "status"), [("", 401), ("stranger", 401), ("nobody", 403)])
async def test_without_a_token_or_rights_nothing_is_shown(path: str, token: str, status: int) -> None:
    async with browser(reviewed_parts(ReviewingServer()), token) as client:
        answer = await client.get(path)
        assert answer.status_code == status
        assert "hidden" not in answer.text
        assert (await client.get("/")).status_code == 200, "the page itself tells nothing"


async def test_other_kinds_of_credentials_are_none() -> None:
    async with browser(reviewed_parts(ReviewingServer()), "") as client:
        for header in ("Basic YWRtaW46YWRtaW4=", "Bearer", "Bearer ", f"Bearer {'x' * 20_000}", "admin"):
            assert (await client.get("/api/view", headers={"Authorization": header})).status_code == 401
        assert (await client.get("/api/view", headers={"Cookie": "token=admin"})).status_code == 401


async def test_a_viewer_who_may_list_everything_sees_everything() -> None:
    shown = reviewed_parts(ReviewingServer())
    async with browser(shown, "admin") as client:
        seen = await document(shown, client)
        assert [row["name"] for row in seen["nodes"]] == ["n-hidden"]
        assert seen["price"] == 2.0
        assert {row["pod"] for row in seen["pending"]} == {"shop/p-shop", "secret/p-secret"}
        session = (await client.get("/api/session")).json()
        assert (session["user"], session["hidden"]) == ("admin", [])


async def test_a_viewer_who_may_list_the_pods_of_one_namespace_sees_these_only() -> None:
    """Nothing a user may not `kubectl get` is shown."""
    shown = reviewed_parts(ReviewingServer())
    async with browser(shown, "shopkeeper") as client:
        seen = await document(shown, client)
        assert [row["pod"] for row in seen["pending"]] == ["shop/p-shop"]
        assert (seen["price"], seen["nodes"], seen["pools"], seen["pods"]["total"]) == (0.0, [], [], 1)
        answers = [json.dumps(seen)]
        explained = ("/api/explanation?subject=pod/shop/p-shop", "/api/explanation?subject=pod/secret/p-secret")
        answers += [(await client.get(path)).text for path in (*PATHS[3:], *explained)]
        for text in answers:
            assert "hidden" not in text
            assert "p-secret" not in text.replace("pod secret/p-secret is gone", "")
        assert (await client.get("/api/history")).status_code == 403
        assert (await client.get("/api/session")).json()["hidden"][:3] == ["nodes", "nodeclaims", "nodepools"]


async def test_a_viewer_who_may_list_nodes_alone_sees_nodes_without_pods_claims_and_pools() -> None:
    shown = reviewed_parts(ReviewingServer())
    async with browser(shown, "operator") as client:
        seen = await document(shown, client)
        assert [row["name"] for row in seen["nodes"]] == ["n-hidden"]
        assert seen["nodes"][0]["pods"] == 0
        assert (seen["pools"], seen["pending"], seen["decisions"]) == ([], [], [])
        assert "claim-n-hidden" not in json.dumps(seen)


async def test_the_history_needs_the_right_to_list_all_its_kinds() -> None:
    shown = reviewed_parts(ReviewingServer())
    async with browser(shown, "almost") as client:
        assert [row["name"] for row in (await document(shown, client))["nodes"]] == ["n-hidden"]
        for path in ("/api/history", "/api/decision?id=x", "/api/ledger"):
            assert (await client.get(path)).status_code == 403


async def test_a_right_that_is_withdrawn_ends_the_stream_within_half_a_minute() -> None:
    server, clock = ReviewingServer(), Clock()
    shown = reviewed_parts(server, clock)
    async with browser(shown, "admin") as client:
        await document(shown, client)
        server.rights["admin"] = frozenset()
        assert (await client.get("/api/view")).status_code == 200
        clock.now += ANSWER_SECONDS + 1
        assert (await client.get("/api/view")).status_code == 403
        del server.rights["admin"]
        clock.now += ANSWER_SECONDS + 1
        assert (await client.get("/api/view")).status_code == 401


async def test_a_stream_ends_when_the_rights_of_its_viewer_change() -> None:
    server, clock = ReviewingServer(), Clock()
    shown = reviewed_parts(server, clock)
    async with browser(shown, "admin") as client:
        request = client.build_request("GET", "/")
        viewer = await shown.access.viewer(request)
        assert isinstance(viewer, Viewer)
        await shown.feeds.feed(viewer.visibility).refresh()
        feed = shown.feeds.feed(viewer.visibility)
        events = _Pages(shown)._events(request, viewer, feed)
        assert (await anext(events)).startswith(b"data: ")
        server.rights["admin"] = frozenset({("nodes", "")})
        clock.now += ANSWER_SECONDS + 1
        feed.document = b"{}"
        assert [event async for event in events] == []


async def test_questions_to_the_api_server_are_remembered_and_shared() -> None:
    server = ReviewingServer()
    async with browser(reviewed_parts(server), "admin") as client:
        for _ in range(5):
            await client.get("/api/session")
        assert server.asked.count("TokenReview") == 1
        assert server.asked.count("SubjectAccessReview") == len(EVERYTHING)


async def _may_see(shown: ConsoleParts, client: httpx2.AsyncClient) -> frozenset[str] | None:
    viewer = await shown.access.viewer(client.build_request("GET", "/"))
    return viewer.visibility.pod_namespaces if isinstance(viewer, Viewer) else frozenset()


async def test_more_namespaces_than_are_asked_about_at_once_are_asked_about_one_part_after_another() -> None:
    server, clock = ReviewingServer(), Clock()
    others = tuple(f"team-{number}" for number in range(2 * MAX_NAMESPACES))
    shown = reviewed_parts(server, clock, (*others, "shop"))
    server.rights["shopkeeper"] = frozenset({("pods", "shop"), ("pods", others[0])})
    async with browser(shown, "shopkeeper") as client:
        asked = []
        seen = []
        for _ in range(4):
            server.asked.clear()
            seen.append(await _may_see(shown, client))
            asked.append(len(server.asked) - 1 - len(EVERYTHING))
            clock.now += ANSWER_SECONDS + 1
    assert seen == [{others[0]}, {others[0]}, {others[0], "shop"}, {others[0], "shop"}]
    assert asked == [MAX_NAMESPACES, MAX_NAMESPACES + 1, MAX_NAMESPACES + 1, MAX_NAMESPACES + 2]


async def test_a_viewer_who_may_list_pods_of_many_namespaces_sees_the_first_hundred() -> None:
    server, clock = ReviewingServer(), Clock()
    names = tuple(f"team-{number:03}" for number in range(MAX_NAMESPACES + 50))
    server.rights["shopkeeper"] = frozenset(("pods", name) for name in names)
    shown = reviewed_parts(server, clock, names)
    async with browser(shown, "shopkeeper") as client:
        for _ in range(3):
            assert await _may_see(shown, client) == set(names[:MAX_NAMESPACES])
            clock.now += ANSWER_SECONDS + 1


async def test_a_deleted_namespace_is_seen_no_more() -> None:
    clock, names = Clock(), ["shop", "default"]
    shown = reviewed_parts(ReviewingServer(), clock, names)
    async with browser(shown, "shopkeeper") as client:
        assert await _may_see(shown, client) == {"shop"}
        names.remove("shop")
        clock.now += ANSWER_SECONDS + 1
        assert await _may_see(shown, client) == frozenset()


async def test_a_fault_in_the_middle_of_the_reviews_teaches_nothing() -> None:
    class Failing(ReviewingServer):
        fails = True

        async def create(self, kind: Any, obj: Any) -> Any:
            if self.fails and kind.name == "SubjectAccessReview" and obj.spec.resource_attributes.namespace == "shop":
                raise ServerUnavailable("no route to host")
            return await super().create(kind, obj)

    server = Failing()
    shown = reviewed_parts(server)
    async with browser(shown, "shopkeeper") as client:
        assert (await client.get("/api/session")).status_code == 503
        server.fails = False
        assert await _may_see(shown, client) == {"shop"}


async def test_the_page_says_that_namespaces_have_not_been_checked_yet() -> None:
    clock, said = Clock(), "pods of namespaces that have not been checked yet: load the page again in 30 seconds"
    others = tuple(f"team-{number}" for number in range(MAX_NAMESPACES))
    async with browser(reviewed_parts(ReviewingServer(), clock, ("shop", *others)), "shopkeeper") as client:
        assert said in (await client.get("/api/session")).json()["hidden"]
        clock.now += ANSWER_SECONDS + 1
        assert said not in (await client.get("/api/session")).json()["hidden"]


async def test_a_viewer_of_a_namespace_that_is_not_checked_yet_gets_an_answer_to_try_again() -> None:
    clock = Clock()
    others = tuple(f"team-{number}" for number in range(MAX_NAMESPACES))
    async with browser(reviewed_parts(ReviewingServer(), clock, (*others, "shop")), "shopkeeper") as client:
        refused = await client.get("/api/session")
        assert refused.status_code == 403
        assert refused.text.count("not all namespaces have been checked yet: try again in 30 seconds") == 1
        clock.now += ANSWER_SECONDS + 1
        assert (await client.get("/api/session")).status_code == 200
    async with browser(reviewed_parts(ReviewingServer(), clock), "nobody") as client:
        assert "try again" not in (await client.get("/api/session")).text


async def test_rights_in_namespaces_are_found_when_given_and_lost_when_withdrawn() -> None:
    server, clock = ReviewingServer(), Clock()
    shown = reviewed_parts(server, clock)
    async with browser(shown, "shopkeeper") as client:
        assert await _may_see(shown, client) == {"shop"}
        server.rights["shopkeeper"] = frozenset({("pods", "default")})
        clock.now += ANSWER_SECONDS + 1
        assert await _may_see(shown, client) == {"default"}


async def test_made_up_tokens_are_asked_about_a_few_at_a_time() -> None:
    """Anyone who reaches the port may send any token; each unknown one is a question to the API server."""
    answered = asyncio.Event()

    class SlowServer(ReviewingServer):
        async def create(self, kind: Any, obj: Any) -> Any:
            await answered.wait()
            return await super().create(kind, obj)

    server = SlowServer()
    async with browser(reviewed_parts(server), "admin") as client:
        asked = [
            asyncio.create_task(client.get("/api/session", headers={"Authorization": f"Bearer made-up-{number}"}))
            for number in range(40)
        ]
        first, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert {done.result().status_code for done in first} == {429}
        answered.set()
        statuses = Counter(response.status_code for response in await asyncio.gather(*asked))
    assert statuses == {401: 32, 429: 8}
    assert server.asked.count("TokenReview") == 32


async def test_while_the_api_server_is_down_no_viewer_is_let_in_and_checks_are_retried() -> None:
    server = ReviewingServer(is_down=True)
    async with browser(reviewed_parts(server), "admin") as client:
        refused = await client.get("/api/session")
        assert refused.status_code == 503
        assert "no route to host" in refused.text
        server.is_down = False
        assert (await client.get("/api/session")).status_code == 200


async def test_an_action_uses_the_token_of_the_viewer() -> None:
    done: list[tuple[str, str, object]] = []

    class Acting:
        def __init__(self, viewer: Viewer) -> None:
            self.viewer = viewer

        async def __aenter__(self) -> Acting:
            return self

        async def __aexit__(self, *_: object) -> None:
            return None

        async def patch(self, kind: Any, name: str, patch: object) -> None:
            done.append((self.viewer.token, f"{kind.plural}/{name}", patch))

    act_as: Callable[[Viewer], Any] = Acting
    async with browser(reviewed_parts(ReviewingServer(), act_as=act_as), "operator") as client:
        body = {"action": "keep-node", "target": "n", "confirmed": True}
        answer = await client.post("/api/actions", json=body, headers={ACTION_HEADER: "1"})
        assert answer.json()["done"] is True
    ((token, about, patch),) = done
    assert (token, about) == ("operator", "nodes/n")
    assert patch == {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}
