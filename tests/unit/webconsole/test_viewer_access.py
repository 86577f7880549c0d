"""Who sees what of the console that the controller serves: anonymous, without rights, one namespace, nodes only, everything."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.control_plane import SubjectAccessReviewStatus, TokenReviewStatus, TokenReviewUser
from karpenter.cli import planning_options
from karpenter.cli.top_answers import explain
from karpenter.console.visible_objects import ClusterWires, visible_input
from karpenter.kube.errors import ServerUnavailable
from karpenter.settings import Settings
from karpenter.webconsole.console_app import ACTION_HEADER, ConsoleParts, Viewer, _Pages, console_app
from karpenter.webconsole.console_feed import ConsoleFeeds
from karpenter.webconsole.viewer_access import ANSWER_SECONDS, KubernetesAccess
from support.builders import pod
from support.console_cases import console_input
from support.disruption_cases import pool, running

PATHS = (
    "/api/session",
    "/api/view",
    "/api/stream",
    "/api/explanation?subject=node/n",
    "/api/history",
    "/api/decision?id=x",
    "/api/budgets",
    "/api/what-if?drain=n",
)
NAMESPACES = ("default", "shop", "secret")
Right = tuple[str, str]
EVERYTHING = frozenset(
    (kind.plural, "")
    for kind in (
        kinds.NODE,
        kinds.NODE_CLAIM,
        kinds.NODE_POOL,
        kinds.POD,
        kinds.DAEMON_SET,
        kinds.POD_DISRUPTION_BUDGET,
        kinds.NAMESPACE,
        kinds.PERSISTENT_VOLUME,
        kinds.PERSISTENT_VOLUME_CLAIM,
        kinds.STORAGE_CLASS,
    )
)
#: Plural and namespace (empty: all) of what a token's user may list.
RIGHTS: Mapping[str, frozenset[Right]] = {
    "admin": EVERYTHING,
    "nobody": frozenset(),
    "shopkeeper": frozenset({("pods", "shop")}),
    "operator": frozenset({("nodes", "")}),
    "almost": EVERYTHING - {("poddisruptionbudgets", "")},
}


@dataclass
class ReviewingServer:
    """The two reviews of an API server with these rights; everything else is refused by having no answer."""

    rights: dict[str, frozenset[Right]] = field(default_factory=lambda: dict(RIGHTS))
    asked: list[str] = field(default_factory=list)
    is_down: bool = False

    async def create(self, kind: Any, obj: Any) -> Any:
        if self.is_down:
            raise ServerUnavailable("no route to host")
        self.asked.append(kind.name)
        if kind.name == "TokenReview":
            known = obj.spec.token in self.rights
            user = TokenReviewUser(username=obj.spec.token, uid="1", groups=("team",), extra={"k": ("v",)})
            status = TokenReviewStatus(authenticated=known, user=user if known else TokenReviewUser())
            return msgspec.structs.replace(obj, status=status)
        spec = obj.spec
        assert (spec.uid, spec.groups, spec.extra) == ("1", ("team",), {"k": ("v",)}), "all of the user is asked about"
        right = (spec.resource_attributes.resource, spec.resource_attributes.namespace)
        allowed = spec.resource_attributes.verb == "list" and right in self.rights[spec.user]
        return msgspec.structs.replace(obj, status=SubjectAccessReviewStatus(allowed=allowed))


WAITING = [
    pod(name, {"cpu": "100"}, meta={"namespace": place}) for name, place in (("p-shop", "shop"), ("p-secret", "secret"))
]
CLUSTER = (pool("np-hidden"), running("n-hidden", "m", 1, pool="np-hidden"), WAITING)


class Clock:
    """Monotonic seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0


def parts(server: ReviewingServer, clock: Clock | None = None, **further: object) -> ConsoleParts:
    given = console_input(*CLUSTER)
    (view,) = [view for view in given.snapshot.nodes if view.claim is not None]
    assert view.claim is not None
    wires = ClusterWires(tuple(given.pods), tuple(given.nodes), (view.claim,), given.snapshot.pools)
    options = planning_options.disruption_options(Settings())
    feeds = ConsoleFeeds(lambda seen: visible_input(given, wires, seen), lambda: "a cluster", str, options)
    at = clock or Clock()
    access = KubernetesAccess(server, lambda: NAMESPACES, lambda: at.now)  # type: ignore[arg-type]
    return ConsoleParts(feeds, access, explain, **further)  # type: ignore[arg-type]


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
    seen = await shown.access.viewer(client.build_request("GET", "/"))  # type: ignore[arg-type]
    assert isinstance(seen, Viewer), seen
    await shown.feeds.feed(seen.visibility).refresh()
    answer = await client.get("/api/view")
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("token", "status"), [("", 401), ("stranger", 401), ("nobody", 403)])
async def test_without_a_token_or_rights_nothing_is_shown(path: str, token: str, status: int) -> None:
    async with browser(parts(ReviewingServer()), token) as client:
        answer = await client.get(path)
        assert answer.status_code == status
        assert "hidden" not in answer.text
        assert (await client.get("/")).status_code == 200, "the page itself tells nothing"


async def test_other_kinds_of_credentials_are_none() -> None:
    async with browser(parts(ReviewingServer()), "") as client:
        for header in ("Basic YWRtaW46YWRtaW4=", "Bearer", "Bearer ", f"Bearer {'x' * 20_000}", "admin"):
            assert (await client.get("/api/view", headers={"Authorization": header})).status_code == 401
        assert (await client.get("/api/view", headers={"Cookie": "token=admin"})).status_code == 401


async def test_who_may_list_everything_sees_everything() -> None:
    shown = parts(ReviewingServer())
    async with browser(shown, "admin") as client:
        seen = await document(shown, client)
        assert [row["name"] for row in seen["nodes"]] == ["n-hidden"]
        assert seen["price"] == 2.0
        assert {row["pod"] for row in seen["pending"]} == {"shop/p-shop", "secret/p-secret"}
        session = (await client.get("/api/session")).json()
        assert (session["user"], session["hidden"]) == ("admin", [])


async def test_who_may_list_the_pods_of_one_namespace_sees_these_and_no_trace_of_anything_else() -> None:
    """Nothing a user may not `kubectl get` is shown."""
    shown = parts(ReviewingServer())
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


async def test_who_may_list_nodes_alone_sees_nodes_without_pods_claims_and_pools() -> None:
    shown = parts(ReviewingServer())
    async with browser(shown, "operator") as client:
        seen = await document(shown, client)
        assert [row["name"] for row in seen["nodes"]] == ["n-hidden"]
        assert seen["nodes"][0]["pods"] == 0
        assert (seen["pools"], seen["pending"], seen["decisions"]) == ([], [], [])
        assert "claim-n-hidden" not in json.dumps(seen)


async def test_the_history_needs_the_right_to_list_everything_it_tells_of() -> None:
    shown = parts(ReviewingServer())
    async with browser(shown, "almost") as client:
        assert [row["name"] for row in (await document(shown, client))["nodes"]] == ["n-hidden"]
        assert (await client.get("/api/history")).status_code == 403


async def test_a_right_that_is_withdrawn_ends_the_stream_within_half_a_minute() -> None:
    server, clock = ReviewingServer(), Clock()
    shown = parts(server, clock)
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
    shown = parts(server, clock)
    async with browser(shown, "admin") as client:
        request = client.build_request("GET", "/")
        viewer = await shown.access.viewer(request)  # type: ignore[arg-type]
        assert isinstance(viewer, Viewer)
        await shown.feeds.feed(viewer.visibility).refresh()
        events = _Pages(shown)._events(request, viewer)  # type: ignore[arg-type]
        assert (await anext(events)).startswith(b"data: ")
        server.rights["admin"] = frozenset({("nodes", "")})
        clock.now += ANSWER_SECONDS + 1
        feed = shown.feeds.feed(viewer.visibility)
        feed.document = b"{}"
        assert [event async for event in events] == []


async def test_questions_to_the_api_server_are_remembered_and_shared() -> None:
    server = ReviewingServer()
    async with browser(parts(server), "admin") as client:
        for _ in range(5):
            await client.get("/api/session")
        assert server.asked.count("TokenReview") == 1
        assert server.asked.count("SubjectAccessReview") == len(EVERYTHING)


async def test_made_up_tokens_are_asked_about_a_few_at_a_time() -> None:
    """Anyone who reaches the port may send any token; each unknown one is a question to the API server."""
    answered = asyncio.Event()

    class SlowServer(ReviewingServer):
        async def create(self, kind: Any, obj: Any) -> Any:
            await answered.wait()
            return await super().create(kind, obj)

    server = SlowServer()
    async with browser(parts(server), "admin") as client:
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


async def test_while_the_api_server_is_down_nobody_is_let_in_and_it_is_asked_again() -> None:
    server = ReviewingServer(is_down=True)
    async with browser(parts(server), "admin") as client:
        refused = await client.get("/api/session")
        assert refused.status_code == 503
        assert "no route to host" in refused.text
        server.is_down = False
        assert (await client.get("/api/session")).status_code == 200


async def test_an_action_is_done_with_the_token_of_whoever_asks() -> None:
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
    async with browser(parts(ReviewingServer(), act_as=act_as), "operator") as client:
        body = {"action": "keep-node", "target": "n", "confirmed": True}
        answer = await client.post("/api/actions", json=body, headers={ACTION_HEADER: "1"})
        assert answer.json()["done"] is True
    ((token, about, patch),) = done
    assert (token, about) == ("operator", "nodes/n")
    assert patch == {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}
