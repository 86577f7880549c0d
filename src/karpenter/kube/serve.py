"""The in-memory API server over HTTP, for ``kubectl`` and for any client that speaks the API.

A call is a path read into a ``Call`` and one entry of the table of handlers; every refusal leaves as a Status object. Answers
are JSON; bodies may be JSON, YAML or, for what command lines send so, protobuf.

Differences from a real server, all on purpose: everybody may do everything, server-side apply is create-or-merge without field
ownership, strategic merge knows the lists of ``memory.patches`` only, field validation is ignored, dry runs are refused.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from karpenter.kube.errors import KIND_NOT_SERVED, Conflict, Invalid, KubeError, NotFound, TooManyRequests
from karpenter.kube.memory import MemoryServer, discovery, patches, pods, protobuf, tables
from karpenter.kube.memory.deletion import DeleteOptions
from karpenter.kube.memory.kube import parse_version
from karpenter.kube.memory.query import Query, compile_query
from karpenter.kube.memory.resources import Resource
from karpenter.kube.memory.store import Entry, JsonDict
from karpenter.kube.memory.watching import Seen, Watch
from karpenter.kube.protocol import EventType

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_WATCH_SECONDS = 1800.0
_SHUTDOWN_SECONDS = 2
_REASONS = {
    400: "BadRequest",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
}
_FRONT_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_SUBRESOURCE_VERBS = {"eviction": "evict", "binding": "bind"}


@dataclass(frozen=True, slots=True)
class Call:
    """One request, read: what it is about and what it carries."""

    resource: Resource
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    accept: str
    content: str
    body: Any

    @property
    def wants_table(self) -> bool:
        """Whether the first choice of the client is a table."""
        return "as=Table" in self.accept.partition(",")[0]


def app(server: MemoryServer) -> Starlette:
    """The ASGI application."""
    front = _Front(server)
    return Starlette(routes=[Route("/{path:path}", front.respond, methods=_METHODS)])


@asynccontextmanager
async def serving(server: MemoryServer, port: int = 0) -> AsyncIterator[str]:
    """Serve on loopback while the context lasts; yields the URL. Port 0 takes a free one. Raises ``OSError`` for a taken one."""
    with _listening(port) as listening:
        config = uvicorn.Config(
            app(server),
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        uvicorn_server = _Uvicorn(config)
        task = asyncio.create_task(uvicorn_server.serve([listening]))
        try:
            await uvicorn_server.ready.wait()
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            uvicorn_server.should_exit = True
            server.close_watches()
            await task


def _listening(port: int) -> socket.socket:
    # With its protocol named, or asyncio would not send small answers at once.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(128)
    except OSError:
        listening.close()
        raise
    return listening


async def serve(server: MemoryServer, port: int) -> None:
    """Serve on loopback until cancelled. Raises ``OSError`` when the port is taken."""
    async with serving(server, port):
        await asyncio.Event().wait()


def kubeconfig(url: str) -> str:
    """A kubeconfig for the server at ``url``, which asks for no credentials."""
    name = "karpenter-memory"
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": url}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
            "current-context": name,
        },
        sort_keys=False,
    )


class _Uvicorn(uvicorn.Server):
    """A server that says when it listens and leaves signals to the program around it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Front:
    """From requests to verbs of the server."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._handlers: dict[tuple[str, str], Callable[[Call], Response]] = {
            ("GET", "collection"): self._list,
            ("POST", "collection"): self._create,
            ("DELETE", "collection"): self._delete_all,
            ("GET", ""): self._get,
            ("PUT", ""): self._replace,
            ("PATCH", ""): self._patch,
            ("DELETE", ""): self._delete,
            ("GET", "status"): self._get,
            ("PUT", "status"): self._replace,
            ("PATCH", "status"): self._patch,
            ("GET", "scale"): self._get_scale,
            ("PUT", "scale"): self._put_scale,
            ("PATCH", "scale"): self._patch_scale,
            ("POST", "binding"): self._bind,
            ("POST", "eviction"): self._evict,
        }

    async def respond(self, request: Request) -> Response:
        """The answer to any request."""
        try:
            parts = [part for part in request.url.path.split("/") if part]
            if parts[:1] in (["healthz"], ["livez"], ["readyz"]):
                return PlainTextResponse("ok")
            if not discovery.names_objects(parts):
                return _found(discovery.document(self._server.resources, parts))
            call = await _read(self._server, parts, request)
            return self._dispatch(request.method, call)
        except KubeError as error:
            return _refusal(error)

    def _dispatch(self, method: str, call: Call) -> Response:
        if call.query.get("dryRun"):
            raise Invalid("this server makes no dry runs", status=400, reason="BadRequest")
        place = call.subresource if call.name else "collection"
        handler = self._handlers.get((method, place))
        if handler is None:
            raise KubeError(f"{method} is not possible here", status=405, reason="MethodNotAllowed")
        self._server.meet_fault(self._verb(method, call), call.resource.kind.plural, call.name)
        return handler(call)

    def _verb(self, method: str, call: Call) -> str:
        if method == "GET" and not call.name:
            return "watch" if call.query.get("watch") in ("true", "1") else "list"
        return _SUBRESOURCE_VERBS.get(call.subresource) or _FRONT_VERBS[method]

    # ---- collections ----------------------------------------------------------------------------------------------------

    def _query(self, call: Call) -> Query:
        asked = call.query
        plural = call.resource.kind.plural
        return compile_query(plural, call.namespace, asked.get("labelSelector", ""), asked.get("fieldSelector", ""))

    def _list(self, call: Call) -> Response:
        query = self._query(call)
        if call.query.get("watch") in ("true", "1"):
            return self._watch(call, query)
        limit = _number(call.query, "limit")
        if limit:
            page = self._server.page(call.resource, query, limit, call.query.get("continue", ""))
        else:
            page = self._server.list(call.resource, query)
        head: JsonDict = {"resourceVersion": str(page.version)}
        if page.token:
            head |= {"continue": page.token, "remainingItemCount": page.remaining}
        if call.wants_table:
            return _json(tables.table(call.resource, page.entries, self._server.clock.now(), head))
        kind = call.resource.kind
        opening = msgspec.json.encode({"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": head})
        items = b",".join(entry.data for entry in page.entries)
        return _raw(opening[:-1] + b',"items":[' + items + b"]}")

    def _watch(self, call: Call, query: Query) -> Response:
        asked = call.query.get("resourceVersion", "")
        fresh = asked in ("", "0") or call.query.get("sendInitialEvents") == "true"
        page = self._server.list(call.resource, query)
        watch = self._server.watch(call.resource, query, page.version if fresh else parse_version(asked))
        stream = _Stream(self._server, call, watch, page.entries if fresh else (), page.version)
        return StreamingResponse(stream.lines(), media_type="application/json")

    def _create(self, call: Call) -> Response:
        kind = call.resource.kind
        body = _as_object(call.body)
        if (body.get("apiVersion", kind.api_version), body.get("kind", kind.name)) != (kind.api_version, kind.name):
            raise Invalid(
                f"the object is a {body.get('kind')} of {body.get('apiVersion')}, but the path is for a {kind.name} of "
                f"{kind.api_version}",
                status=400,
                reason="BadRequest",
            )
        return self._object(call, self._server.create(call.resource, call.namespace, body), 201)

    def _delete_all(self, call: Call) -> Response:
        options = _delete_options(call)
        for entry in self._server.list(call.resource, self._query(call)).entries:
            self._server.delete(call.resource, entry.namespace, entry.name, options)
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    # ---- objects --------------------------------------------------------------------------------------------------------

    def _get(self, call: Call) -> Response:
        return self._object(call, self._server.get(call.resource, call.namespace, call.name))

    def _replace(self, call: Call) -> Response:
        body = _as_object(call.body)
        meta = body.get("metadata") or {}
        entry = self._server.get(call.resource, call.namespace, call.name)
        if meta.get("uid", entry.uid) != entry.uid:
            raise Conflict(
                f'Operation cannot be fulfilled on {call.resource.name} "{call.name}": Precondition failed: UID in precondition: '
                f"{meta['uid']}, UID in object meta: {entry.uid}",
                status=409,
                reason="Conflict",
            )
        if call.resource.custom and not meta.get("resourceVersion"):
            raise Invalid("metadata.resourceVersion: must be specified for an update", status=422, reason="Invalid")
        return self._object(call, self._write(call, lambda _old: body))

    def _patch(self, call: Call) -> Response:
        if "apply-patch" in call.content and not call.subresource:
            return self._apply(call)
        return self._object(call, self._write(call, _patcher(call)))

    def _apply(self, call: Call) -> Response:
        body = _as_object(call.body)
        try:
            self._server.get(call.resource, call.namespace, call.name)
        except NotFound:
            return self._create(call)
        return self._object(call, self._write(call, lambda old: _as_object(patches.strategic(old, body))))

    def _write(self, call: Call, change: Callable[[JsonDict], JsonDict]) -> Entry:
        write = self._server.update_status if call.subresource == "status" else self._server.update
        return write(call.resource, call.namespace, call.name, change)

    def _delete(self, call: Call) -> Response:
        entry = self._server.delete(call.resource, call.namespace, call.name, _delete_options(call))
        if self._server.owner(entry.uid) is not None or call.resource.kind.name == "Pod":
            return _raw(entry.data)
        details = {"name": entry.name, "kind": call.resource.kind.plural, "uid": entry.uid}
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})

    def _object(self, call: Call, entry: Entry, status: int = 200) -> Response:
        if call.wants_table:
            head = {"resourceVersion": str(entry.version)}
            return _json(tables.table(call.resource, (entry,), self._server.clock.now(), head), status)
        return _raw(entry.data, status)

    # ---- subresources ---------------------------------------------------------------------------------------------------

    def _get_scale(self, call: Call) -> Response:
        return _json(pods.scale_of(self._server.get(call.resource, call.namespace, call.name)))

    def _put_scale(self, call: Call) -> Response:
        return self._scale(call, lambda _scale: _as_object(call.body))

    def _patch_scale(self, call: Call) -> Response:
        return self._scale(call, _patcher(call))

    def _scale(self, call: Call, change: Callable[[JsonDict], JsonDict]) -> Response:
        entry = self._server.get(call.resource, call.namespace, call.name)
        wanted = change(pods.scale_of(entry))
        written = self._server.update(
            call.resource, call.namespace, call.name, lambda body: pods.with_scale(entry, body, wanted)
        )
        return _json(pods.scale_of(written))

    def _bind(self, call: Call) -> Response:
        target = _as_object(call.body).get("target") or {}
        if not target.get("name"):
            raise Invalid("a binding needs target.name", status=422, reason="Invalid")
        pods.bind(self._server, call.namespace, call.name, str(target["name"]))
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201)

    def _evict(self, call: Call) -> Response:
        options = _as_object(call.body).get("deleteOptions") or {}
        pods.evict(self._server, call.namespace, call.name, _options(options))
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201)


class _Stream:
    """The lines of one watch."""

    def __init__(
        self, server: MemoryServer, call: Call, watch: Watch, initial: tuple[Entry, ...], version: int
    ) -> None:
        self._server = server
        self._call = call
        self._watch = watch
        self._initial = initial
        self._version = version
        self._bookmarks = call.query.get("allowWatchBookmarks") in ("true", "1")

    async def lines(self) -> AsyncIterator[bytes]:
        """One JSON document a line, until the server or the asked-for time ends the stream."""
        seconds = _number(self._call.query, "timeoutSeconds") or _WATCH_SECONDS
        try:
            for entry in self._initial:
                yield self._line(EventType.ADDED, entry)
            if self._call.query.get("sendInitialEvents") == "true":
                yield self._bookmark(self._version, {"k8s.io/initial-events-end": "true"})
            async with asyncio.timeout(seconds):
                while (seen := await self._watch.next()) is not None:
                    line = self._told(seen)
                    if line:
                        yield line
        except TimeoutError:
            return
        except KubeError as error:
            yield b'{"type":"ERROR","object":' + msgspec.json.encode(_status_object(error)) + b"}\n"
        finally:
            self._server.unwatch(self._watch)

    def _told(self, seen: Seen) -> bytes:
        if seen.entry is None:
            return self._bookmark(seen.version, {}) if self._bookmarks else b""
        return self._line(seen.type, seen.entry)

    def _line(self, type_: EventType, entry: Entry) -> bytes:
        data = entry.data
        if self._call.wants_table:
            head = {"resourceVersion": str(entry.version)}
            data = msgspec.json.encode(tables.table(entry.resource, (entry,), self._server.clock.now(), head))
        return b'{"type":"' + type_.encode() + b'","object":' + data + b"}\n"

    def _bookmark(self, version: int, annotations: dict[str, str]) -> bytes:
        kind = self._call.resource.kind
        meta: JsonDict = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        body = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": meta}
        return b'{"type":"BOOKMARK","object":' + msgspec.json.encode(body) + b"}\n"


async def _read(server: MemoryServer, parts: list[str], request: Request) -> Call:
    """What a request is about. Raises ``NotFound`` for a path that is not served and ``Invalid`` for a body nobody can read."""
    group, version, rest = ("", parts[1], parts[2:]) if parts[0] == "api" else (parts[1], parts[2], parts[3:])
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "")[:3]
    content = request.headers.get("content-type", "application/json").partition(";")[0]
    return Call(
        resource=server.resource(group, version, plural),
        namespace=namespace,
        name=name,
        subresource=subresource,
        query=dict(request.query_params),
        accept=request.headers.get("accept", ""),
        content=content,
        body=_decode(await request.body(), content),
    )


def _decode(data: bytes, content: str) -> Any:
    if not data:
        return None
    if "protobuf" in content:
        return protobuf.decode(data)
    try:
        return yaml.safe_load(data) if "yaml" in content else msgspec.json.decode(data)
    except (msgspec.DecodeError, yaml.YAMLError) as error:
        raise Invalid(f"the body cannot be read: {error}", status=400, reason="BadRequest") from error


def _as_object(body: Any) -> JsonDict:
    if not isinstance(body, dict):
        raise Invalid("the body has to be an object", status=400, reason="BadRequest")
    return body


def _patcher(call: Call) -> Callable[[JsonDict], JsonDict]:
    apply = {
        "application/merge-patch+json": patches.merge,
        "application/strategic-merge-patch+json": patches.strategic,
        "application/apply-patch+yaml": patches.strategic,
        "application/json-patch+json": patches.json_patch,
    }.get(call.content)
    if apply is None:
        raise KubeError(f"{call.content} is no patch this server knows", status=415, reason="UnsupportedMediaType")

    def change(body: JsonDict) -> JsonDict:
        try:
            return _as_object(apply(body, call.body))
        except patches.PatchError as error:
            raise Invalid(str(error), status=422, reason="Invalid") from error

    return change


def _delete_options(call: Call) -> DeleteOptions:
    body = call.body if isinstance(call.body, dict) else {}
    named = {key: call.query[key] for key in ("propagationPolicy", "orphanDependents") if key in call.query}
    grace = _number(call.query, "gracePeriodSeconds")
    return _options({**({} if grace is None else {"gracePeriodSeconds": grace}), **named, **body})


def _options(body: JsonDict) -> DeleteOptions:
    preconditions = body.get("preconditions") or {}
    return DeleteOptions(
        uid=preconditions.get("uid") or "",
        resource_version=preconditions.get("resourceVersion") or "",
        grace_period_seconds=body.get("gracePeriodSeconds"),
        orphan=body.get("propagationPolicy") == "Orphan" or str(body.get("orphanDependents")).lower() == "true",
    )


def _number(query: Mapping[str, str], key: str) -> int | None:
    text = query.get(key)
    if not text:
        return None
    if not text.isdecimal():
        raise Invalid(f"{key}={text}: a number is needed", status=400, reason="BadRequest")
    return int(text)


def _status_object(error: KubeError) -> JsonDict:
    code = error.status or 500
    status: JsonDict = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(error),
        "reason": error.reason or _REASONS.get(code, "InternalError"),
        "code": code,
    }
    if isinstance(error, TooManyRequests):
        status["details"] = {"retryAfterSeconds": max(1, round(error.retry_after_seconds))}
    return status


def _refusal(error: KubeError) -> Response:
    if error.reason == KIND_NOT_SERVED:
        return _found(None)
    status = _status_object(error)
    response = _json(status, status["code"])
    if isinstance(error, TooManyRequests):
        response.headers["Retry-After"] = str(status["details"]["retryAfterSeconds"])
    return response


def _found(body: JsonDict | None) -> Response:
    return PlainTextResponse("404 page not found\n", 404) if body is None else _json(body)


def _json(body: JsonDict, status: int = 200) -> Response:
    return _raw(msgspec.json.encode(body), status)


def _raw(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")
