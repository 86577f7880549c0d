"""Objects and helpers of the contract tests."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import yaml

from karpenter.api import core
from karpenter.api.karpenter import (
    NodeClaim,
    NodeClaimSpec,
    NodeClaimTemplate,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
    NodeSelectorRequirementWithMinValues,
)
from karpenter.api.kinds import POD, Kind
from karpenter.api.meta import LabelSelector, ObjectMeta, OwnerReference, Wire
from karpenter.kube.errors import KubeError
from karpenter.kube.protocol import Kube, WatchEvent, WatchEventType

T = TypeVar("T", bound=Wire)
R = TypeVar("R")
_DEADLINE_SECONDS = 30.0
_POLL_SECONDS = 0.05
_CLASS = NodeClassReference(group="karpenter.kwok.sh", kind="KWOKNodeClass", name="default")
_LINUX = NodeSelectorRequirementWithMinValues(key="kubernetes.io/os", operator="In", values=("linux",))


MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Answer:
    """The answer to an HTTP call."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def refusal(self) -> tuple[int, str]:
        """Status and reason of a refusal."""
        return self.status, self.body.get("reason", "")

    @property
    def names(self) -> list[str]:
        """The names in a list, without objects that every namespace of a real cluster has."""
        result = [obj["metadata"]["name"] for obj in self.body["items"]]
        return [name for name in result if name != "kube-root-ca.crt"]


_Meanwhile = Callable[[], Awaitable[object]] | None


@dataclass(frozen=True)
class Web:
    """An API server over plain HTTP."""

    http: httpx2.AsyncClient
    forget: Callable[[], None]

    async def ask(
        self, method: str, path: str, body: Any = None, content: str = "application/json", **query: str | int
    ) -> Answer:
        """One call; ``continue_`` stands for the parameter ``continue``."""
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {} if sent is None else {"Content-Type": content}
        response = await self.http.request(method, path, params=_parameters(query), content=sent, headers=headers)
        is_json = response.content and response.headers["content-type"].startswith("application/json")
        return Answer(response.status_code, response.headers, response.json() if is_json else response.text)

    async def made(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> Any:
        """Create an object; return it."""
        whole = {"apiVersion": kind.api_version, "kind": kind.name, **body}
        answer = await self.ask("POST", kind.path(namespace), whole)
        assert answer.status == 201, answer.body
        return answer.body

    async def events(self, path: str, count: int, meanwhile: _Meanwhile = None, **query: str | int) -> list[Any]:
        """The first ``count`` events of a watch; ``meanwhile`` is called once the server has accepted the watch."""
        seen: list[Any] = []
        async with asyncio.timeout(_DEADLINE_SECONDS), self._watched(path, query) as lines:
            await (meanwhile() if meanwhile else asyncio.sleep(0))
            async for line in lines:
                seen.append(json.loads(line))
                if len(seen) == count:
                    break
        return seen

    async def all_events(self, path: str, meanwhile: _Meanwhile = None, **query: str | int) -> list[Any]:
        """As ``events``, all of a watch that ends by itself: ``timeoutSeconds`` is the least possible, one second."""
        async with asyncio.timeout(_DEADLINE_SECONDS), self._watched(path, {**query, "timeoutSeconds": 1}) as lines:
            await (meanwhile() if meanwhile else asyncio.sleep(0))
            return [json.loads(line) async for line in lines]

    @asynccontextmanager
    async def _watched(self, path: str, query: Mapping[str, str | int]) -> AsyncIterator[AsyncIterator[str]]:
        # Since 1.37 a watch with initial events is compressed if accepted, as many gzip members, of which httpx reads the first.
        parameters, plain = {"watch": "true", **_parameters(query)}, {"Accept-Encoding": "identity"}
        async with self.http.stream("GET", path, params=parameters, headers=plain) as response:
            assert response.status_code == 200, await response.aread()
            async with aclosing(response.aiter_lines()) as lines:
                yield lines


@dataclass(frozen=True)
class Backend:
    """An API server and the product's client of it; ``web`` is plain HTTP, if available."""

    kube: Kube
    #: Forgets the history kept for lists and watches.
    forget: Callable[[], None]
    web: Web | None = None


def _parameters(query: Mapping[str, str | int]) -> dict[str, str]:
    return {name.rstrip("_"): str(value) for name, value in query.items()}


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """Plain HTTP to the cluster of a kubeconfig, with its first user's token if there is one."""
    safe_load = yaml.safe_load(kubeconfig.read_text())
    cluster, user = safe_load["clusters"][0]["cluster"], safe_load["users"][0]["user"]
    authority = cluster.get("certificate-authority-data")
    trust = ssl.create_default_context(cadata=base64.b64decode(authority).decode()) if authority else False
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    async with httpx2.AsyncClient(base_url=cluster["server"], headers=headers, verify=trust, timeout=30) as http:
        yield http


class _Container(core.Container, frozen=True, kw_only=True):
    """A container with an image, which a real server requires and the product's struct lacks."""

    image: str


def pod(name: str, namespace: str, labels: Mapping[str, str] | None = None, **spec: object) -> core.Pod:
    """A pod that no scheduler handles."""
    return core.Pod(
        metadata=ObjectMeta(name=name, namespace=namespace, labels=labels or {}),
        spec=core.PodSpec(containers=(_Container(name="main", image="none"),), scheduler_name="nobody", **spec),
    )


def config_map(name: str, namespace: str, **meta: object) -> core.ConfigMap:
    return core.ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace, **meta), data={"a": "1"})


def pool(name: str) -> NodePool:
    spec = NodeClaimTemplateSpec(requirements=(_LINUX,), node_class_ref=_CLASS)
    return NodePool(metadata=ObjectMeta(name=name), spec=NodePoolSpec(template=NodeClaimTemplate(spec=spec)))


def claim(name: str) -> NodeClaim:
    return NodeClaim(metadata=ObjectMeta(name=name), spec=NodeClaimSpec(requirements=(_LINUX,), node_class_ref=_CLASS))


def budget(namespace: str, name: str = "budget", **spec: object) -> core.PodDisruptionBudget:
    """A budget over the pods labelled ``app=web``."""
    selector = LabelSelector(match_labels={"app": "web"})
    return core.PodDisruptionBudget(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=core.PodDisruptionBudgetSpec(selector=selector, **spec),
    )


async def web_pods(kube: Kube, namespace: str, count: int) -> None:
    """Running, ready pods ``web-0`` ... labelled ``app=web``."""
    for number in range(count):
        await kube.create(POD, pod(f"web-{number}", namespace, {"app": "web"}))
        await run_pod(kube, f"web-{number}", namespace)


def owned_by(kind: Kind[T], meta: ObjectMeta) -> OwnerReference:
    return OwnerReference(api_version=kind.api_version, kind=kind.name, name=meta.name, uid=meta.uid, controller=True)


def condition(type_: str, status: str, reason: str = "Test") -> dict[str, str]:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": "",
        "lastTransitionTime": "2024-05-06T07:08:09Z",
    }


async def take(events: AsyncGenerator[WatchEvent[T], None], count: int) -> list[WatchEvent[T]]:
    """The next ``count`` events of a watch, bookmarks left out."""
    seen: list[WatchEvent[T]] = []
    async with asyncio.timeout(_DEADLINE_SECONDS), aclosing(events) as stream:
        async for event in stream:
            if event.type is not WatchEventType.BOOKMARK:
                seen.append(event)
            if len(seen) == count:
                break
    return seen


async def eventually(attempt: Callable[[], Awaitable[R]], accept: Callable[[R], bool]) -> R:
    """The first accepted result of ``attempt`` before a deadline."""
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while True:
            result = await attempt()
            if accept(result):
                return result
            await asyncio.sleep(_POLL_SECONDS)


async def outcome(call: Awaitable[object]) -> type[KubeError] | None:
    """The kind of error a call ends in, None when it succeeds."""
    try:
        await call
    except KubeError as error:
        return type(error)
    return None


async def refused(call: Awaitable[object]) -> KubeError:
    """The error a call ends in."""
    try:
        await call
    except KubeError as error:
        return error
    raise AssertionError("the call was not refused")


async def run_pod(kube: Kube, name: str, namespace: str, *, ready: bool = True) -> None:
    """Bind a pod and report it running, as scheduler and kubelet would."""
    await kube.bind(name, namespace, "some-node")
    status = {"phase": "Running", "conditions": [condition("Ready", "True" if ready else "False")]}
    await kube.patch(POD, name, {"status": status}, namespace, subresource="status")
