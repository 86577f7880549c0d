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

import msgspec
import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from karpenter.kube.errors import KIND_NOT_SERVED, KubeError, NotFound
from karpenter.kube.memory import MemoryServer, binding, calls, discovery, eviction, patches, refusals, scaling, tables
from karpenter.kube.memory.calls import EXACT, Call, as_object
from karpenter.kube.memory.query import Query, compile_query
from karpenter.kube.memory.server import Page, Part
from karpenter.kube.memory.store import Entry, JsonDict, Transform
from karpenter.kube.memory.streaming import Stream

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_SHUTDOWN_SECONDS = 2
_FRONT_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_SUBRESOURCE_VERBS = {"eviction": "evict", "binding": "bind"}


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
            call = await calls.read(self._server, parts, request)
            return self._dispatch(request.method, call)
        except KubeError as error:
            return _refusal(error)
        except ClientDisconnect:
            # Nobody hears it; what was sent in part changes nothing.
            return Response(status_code=400)

    def _dispatch(self, method: str, call: Call) -> Response:
        if call.query.get("dryRun"):
            raise refusals.bad_request("this server makes no dry runs")
        place = call.subresource if call.name else "collection"
        if place == "status" and not call.resource.status:
            raise refusals.no_such_subresource()
        handler = self._handlers.get((method, place))
        if handler is None:
            raise self._no_handler(place)
        self._server.meet_fault(self._verb(method, call), call.resource.kind.plural, call.name)
        return handler(call)

    def _no_handler(self, place: str) -> KubeError:
        if not any(known == place for _, known in self._handlers):
            return refusals.no_such_subresource()
        text = "the server does not allow this method on the requested resource"
        return KubeError(text, status=405, reason="MethodNotAllowed")

    def _verb(self, method: str, call: Call) -> str:
        if method == "GET" and not call.name:
            return "watch" if call.watches else "list"
        return _SUBRESOURCE_VERBS.get(call.subresource) or _FRONT_VERBS[method]

    # ---- collections ----------------------------------------------------------------------------------------------------

    def _query(self, call: Call) -> Query:
        asked = call.query
        labels, fields = asked.get("labelSelector", ""), asked.get("fieldSelector", "")
        return compile_query(call.resource.kind, call.namespace, labels, fields)

    def _list(self, call: Call) -> Response:
        query = self._query(call)
        if call.watches:
            return self._watch(call, query)
        page = self._page(call, query)
        head: JsonDict = {"resourceVersion": str(page.version)}
        if page.token:
            head["continue"] = page.token
        if page.remaining and not query.text:
            head["remainingItemCount"] = page.remaining
        if call.wants_table:
            return _json(tables.table(call.resource, page.entries, self._server.clock.now(), head))
        kind = call.resource.kind
        opening = msgspec.json.encode({"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": head})
        items = b",".join([entry.data for entry in page.entries])
        return _raw(opening[:-1] + b',"items":[' + items + b"]}")

    def _page(self, call: Call, query: Query) -> Page:
        options = calls.list_options(call)
        if options.token:
            return self._server.page(call.resource, query, Part(options.limit, token=options.token))
        exactly = options.match == EXACT or (options.limit and not options.match)
        if options.point and (exactly or options.point > self._server.revision):
            return self._server.page(call.resource, query, Part(options.limit, version=options.point))
        # Version 0 is "whatever is at hand", which a real server answers from its cache and hence whole.
        limit = 0 if options.version == "0" else options.limit
        return self._server.page(call.resource, query, Part(limit))

    def _watch(self, call: Call, query: Query) -> Response:
        options = calls.list_options(call)
        from_now = options.version in ("", "0") or options.initial is True
        fresh = from_now and options.initial is not False
        page = self._server.list(call.resource, query)
        watch = self._server.watch(call.resource, query, page.version if from_now else options.point)
        mark_at = page.version if options.initial else None
        pieces = Stream(self._server, call, watch).pieces(page.entries if fresh else (), mark_at)
        return StreamingResponse(pieces, media_type="application/json")

    def _create(self, call: Call) -> Response:
        kind = call.resource.kind
        body = as_object(call.body)
        if (body.get("apiVersion", kind.api_version), body.get("kind", kind.name)) != (kind.api_version, kind.name):
            raise refusals.bad_request(
                f"the object is a {body.get('kind')} of {body.get('apiVersion')}, but the path is for a {kind.name} of "
                f"{kind.api_version}"
            )
        return self._object(call, self._server.create(call.resource, call.namespace, body), 201)

    def _delete_all(self, call: Call) -> Response:
        options = calls.delete_options(call)
        for entry in self._server.list(call.resource, self._query(call)).entries:
            self._server.delete(call.resource, entry.namespace, entry.name, options)
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    # ---- objects --------------------------------------------------------------------------------------------------------

    def _get(self, call: Call) -> Response:
        return self._object(call, self._server.get(call.resource, call.namespace, call.name))

    def _replace(self, call: Call) -> Response:
        body = as_object(call.body)
        meta = body.get("metadata") or {}
        entry = self._server.get(call.resource, call.namespace, call.name)
        if (meta.get("uid") or entry.uid) != entry.uid:
            raise refusals.another_object(call.resource, call.name, meta["uid"], entry.uid)
        if call.resource.custom and not meta.get("resourceVersion") and meta.get("name") == call.name:
            cause = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            raise refusals.invalid(call.resource, call.name, cause)
        return self._object(call, self._write(call, lambda _old: body))

    def _patch(self, call: Call) -> Response:
        if call.applies:
            return self._apply(call)
        return self._object(call, self._write(call, calls.patcher(call)))

    def _apply(self, call: Call) -> Response:
        body = calls.applied(call)
        try:
            self._server.get(call.resource, call.namespace, call.name)
        except NotFound:
            if call.subresource:
                raise
            return self._create(call)
        return self._object(call, self._write(call, lambda old: as_object(patches.strategic(old, body))))

    def _write(self, call: Call, change: Transform) -> Entry:
        write = self._server.update_status if call.subresource == "status" else self._server.update
        return write(call.resource, call.namespace, call.name, change)

    def _delete(self, call: Call) -> Response:
        entry = self._server.delete(call.resource, call.namespace, call.name, calls.delete_options(call))
        # An object that stays, if only until its dependents are gone, is shown; so is every pod.
        if call.resource.kind.name == "Pod" or entry.leaves or self._server.owner(entry.uid) is not None:
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
        return _json(scaling.scale_of(self._server.get(call.resource, call.namespace, call.name)))

    def _put_scale(self, call: Call) -> Response:
        return self._scale(call, lambda _scale: as_object(call.body))

    def _patch_scale(self, call: Call) -> Response:
        return self._scale(call, calls.patcher(call))

    def _scale(self, call: Call, change: Transform) -> Response:
        entry = self._server.get(call.resource, call.namespace, call.name)
        wanted = change(scaling.present(entry))
        written = self._server.update(
            call.resource, call.namespace, call.name, lambda body: scaling.scaled(entry, body, wanted)
        )
        return _json(scaling.scale_of(written))

    def _bind(self, call: Call) -> Response:
        body = calls.named(call, "Binding")
        target = body.get("target") or {}
        if target.get("kind") not in (None, "", "Node"):
            text = f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
            raise refusals.server_error(text)
        if not target.get("name"):
            raise refusals.server_error("target.name: Required value")
        binding.bind(self._server, call.namespace, call.name, str(target["name"]))
        return _done()

    def _evict(self, call: Call) -> Response:
        body = calls.named(call, "Eviction")
        options = calls.eviction_options(body.get("deleteOptions") or {})
        eviction.evict(self._server, call.namespace, call.name, options)
        return _done()


def _done() -> Response:
    return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201)


def _refusal(error: KubeError) -> Response:
    if error.reason == KIND_NOT_SERVED:
        return _found(None)
    response = _json(refusals.status_of(error), error.status or 500)
    seconds = refusals.retry_after_seconds(error)
    if seconds:
        response.headers["Retry-After"] = str(seconds)
    return response


def _found(body: JsonDict | None) -> Response:
    return PlainTextResponse("404 page not found\n", 404) if body is None else _json(body)


def _json(body: Mapping[str, object], status: int = 200) -> Response:
    return _raw(msgspec.json.encode(body), status)


def _raw(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")
