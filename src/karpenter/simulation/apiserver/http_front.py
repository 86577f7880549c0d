"""The in-memory API server over HTTP, for ``kubectl`` and for any client that speaks the API.

The path of a call is parsed into an ``ApiRequest``, for which a table has a handler. Every refusal is returned as a Status
object. Answers are JSON; bodies may be JSON, YAML or, for what command lines send so, protobuf.

Differences from a real server, all on purpose: every user may do everything, server-side apply is create-or-merge without field
ownership, strategic merge supports the lists of ``patch_formats`` only, and field validation is ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
import yaml
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from karpenter.kube.errors import KIND_NOT_SERVED, KubeError, NotFound
from karpenter.runtime.loopback_server import serving_on_loopback
from karpenter.simulation.apiserver import (
    api_discovery,
    dry_run,
    patch_formats,
    request_parsing,
    status_errors,
    subresources,
    table_output,
)
from karpenter.simulation.apiserver.list_query import ObjectQuery, compile_query
from karpenter.simulation.apiserver.memory_server import MemoryServer
from karpenter.simulation.apiserver.object_store import JsonDict, StoredEntry, Transform
from karpenter.simulation.apiserver.paging import ListPage, PageRequest
from karpenter.simulation.apiserver.request_parsing import EXACT, ApiRequest, as_object
from karpenter.simulation.apiserver.watch_stream import WatchStream

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
#: What a real server hands on to the kubelet of the pod's node.
_KUBELET_SUBRESOURCES = frozenset({"attach", "exec", "log", "portforward", "proxy"})
_SUBRESOURCE_VERBS = {"eviction": "evict", "binding": "bind"}


def asgi_app(server: MemoryServer) -> Starlette:
    """The ASGI application."""
    front = _RequestHandler(server)
    return Starlette(routes=[Route("/{path:path}", front.respond, methods=_METHODS)])


@asynccontextmanager
async def serving(server: MemoryServer, port: int = 0) -> AsyncIterator[str]:
    """Serve on loopback while the context lasts; yields the URL. Port 0 takes a free one. Raises ``OSError`` for a taken one."""
    async with serving_on_loopback(asgi_app(server), port, server.close_watches) as url:
        yield url


async def serve(server: MemoryServer, port: int) -> None:
    """Serve on loopback until cancelled. Raises ``OSError`` when the port is taken."""
    async with serving(server, port):
        await asyncio.Event().wait()


def kubeconfig_for(url: str) -> str:
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


class _RequestHandler:
    """From requests to verbs of the server."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._handlers: dict[tuple[str, str], Callable[[ApiRequest], Response]] = {
            ("GET", "collection"): self._list,
            ("POST", "collection"): self._create,
            ("DELETE", "collection"): self._delete_collection,
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
            if not api_discovery.is_object_path(parts):
                return _document_or_not_found(api_discovery.discovery_document(self._server.resources, parts))
            call = await request_parsing.parse_request(self._server, parts, request)
            return self._dispatch(request.method, call)
        except KubeError as error:
            return _error_response(error)
        except ClientDisconnect:
            # The client is gone; a partial request changes nothing.
            return Response(status_code=400)

    def _dispatch(self, method: str, call: ApiRequest) -> Response:
        place = call.subresource if call.name else "collection"
        if place == "status" and not call.resource.has_status:
            raise status_errors.no_such_subresource()
        handler = self._handlers.get((method, place))
        if handler is None:
            raise self._error_without_handler(call, place)
        self._server.raise_injected_fault(self._verb(method, call), call.resource.kind.plural, call.name)
        if dry_run.is_dry_run(method, call):
            handler = _RequestHandler(dry_run.scratch_copy(self._server))._handlers[method, place]
        return handler(call)

    def _error_without_handler(self, call: ApiRequest, place: str) -> KubeError:
        if call.resource.kind.plural in ("nodes", "pods") and place in _KUBELET_SUBRESOURCES:
            self._server.get(call.resource, call.namespace, call.name)
            return status_errors.no_kubelet(call.resource, place)
        if not any(registered == place for _, registered in self._handlers):
            return status_errors.no_such_subresource()
        text = "the server does not allow this method on the requested resource"
        return KubeError(text, status=405, reason="MethodNotAllowed")

    def _verb(self, method: str, call: ApiRequest) -> str:
        if method == "GET" and not call.name:
            return "watch" if call.is_watch else "list"
        return _SUBRESOURCE_VERBS.get(call.subresource) or _VERBS[method]

    # ---- collections ----------------------------------------------------------------------------------------------------

    def _query(self, call: ApiRequest) -> ObjectQuery:
        asked = call.query
        labels, fields = asked.get("labelSelector", ""), asked.get("fieldSelector", "")
        return compile_query(call.resource.kind, call.namespace, labels, fields)

    def _list(self, call: ApiRequest) -> Response:
        query = self._query(call)
        if call.is_watch:
            return self._watch(call, query)
        page = self._page(call, query)
        head: JsonDict = {"resourceVersion": str(page.version)}
        if page.continue_token:
            head["continue"] = page.continue_token
        if page.remaining_count and not query.selector_text:
            head["remainingItemCount"] = page.remaining_count
        if call.wants_table:
            return _json_response(
                table_output.render_table(call.resource, page.entries, self._server.clock.now(), head)
            )
        kind = call.resource.kind
        opening = msgspec.json.encode({"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": head})
        join = b",".join([entry.data for entry in page.entries])
        return _raw_json_response(opening[:-1] + b',"items":[' + join + b"]}")

    def _page(self, call: ApiRequest, query: ObjectQuery) -> ListPage:
        options = request_parsing.list_options(call)
        if options.continue_token:
            return self._server.page(
                call.resource, query, PageRequest(options.limit, continue_token=options.continue_token)
            )
        exactly = options.resource_version_match == EXACT or (options.limit and not options.resource_version_match)
        if options.version_number and (exactly or options.version_number > self._server.revision):
            return self._server.page(
                call.resource, query, PageRequest(options.limit, resource_version=options.version_number)
            )
        # Version 0 is "whatever is at hand", which a real server answers from its cache and hence whole.
        limit = 0 if options.resource_version == "0" else options.limit
        return self._server.page(call.resource, query, PageRequest(limit))

    def _watch(self, call: ApiRequest, query: ObjectQuery) -> Response:
        options = request_parsing.list_options(call)
        from_now = options.resource_version in ("", "0") or options.send_initial_events is True
        fresh = from_now and options.send_initial_events is not False
        page = self._server.list(call.resource, query)
        watch = self._server.watch(call.resource, query, page.version if from_now else options.version_number)
        mark_at = page.version if options.send_initial_events else None
        pieces = WatchStream(self._server, call, watch).chunks(page.entries if fresh else (), mark_at)
        return StreamingResponse(pieces, media_type="application/json")

    def _create(self, call: ApiRequest) -> Response:
        kind = call.resource.kind
        body = as_object(call.body)
        if (body.get("apiVersion", kind.api_version), body.get("kind", kind.name)) != (kind.api_version, kind.name):
            raise status_errors.bad_request(
                f"the object is a {body.get('kind')} of {body.get('apiVersion')}, but the path is for a {kind.name} of "
                f"{kind.api_version}"
            )
        return self._object_response(call, self._server.create(call.resource, call.namespace, body), 201)

    def _delete_collection(self, call: ApiRequest) -> Response:
        options = request_parsing.delete_options(call)
        for entry in self._server.list(call.resource, self._query(call)).entries:
            self._server.delete(call.resource, entry.namespace, entry.name, options)
        return _json_response({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    # ---- objects --------------------------------------------------------------------------------------------------------

    def _get(self, call: ApiRequest) -> Response:
        return self._object_response(call, self._server.get(call.resource, call.namespace, call.name))

    def _replace(self, call: ApiRequest) -> Response:
        body = as_object(call.body)
        meta = body.get("metadata") or {}
        entry = self._server.get(call.resource, call.namespace, call.name)
        if (meta.get("uid") or entry.uid) != entry.uid:
            raise status_errors.uid_conflict(call.resource, call.name, meta["uid"], entry.uid)
        if call.resource.is_custom and not meta.get("resourceVersion") and meta.get("name") == call.name:
            cause = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            raise status_errors.invalid(call.resource, call.name, cause)
        return self._object_response(call, self._write(call, lambda _old: body))

    def _patch(self, call: ApiRequest) -> Response:
        if call.is_apply:
            return self._server_side_apply(call)
        return self._object_response(call, self._write(call, request_parsing.patch_function(call)))

    def _server_side_apply(self, call: ApiRequest) -> Response:
        body = request_parsing.apply_configuration(call)
        try:
            self._server.get(call.resource, call.namespace, call.name)
        except NotFound:
            if call.subresource:
                raise
            return self._create(call)
        return self._object_response(
            call, self._write(call, lambda old: as_object(patch_formats.strategic_merge_patch(old, body)))
        )

    def _write(self, call: ApiRequest, change: Transform) -> StoredEntry:
        write = self._server.update_status if call.subresource == "status" else self._server.update
        return write(call.resource, call.namespace, call.name, change)

    def _delete(self, call: ApiRequest) -> Response:
        entry = self._server.delete(call.resource, call.namespace, call.name, request_parsing.delete_options(call))
        # An object that stays, if only until its dependents are gone, is shown; so is every pod.
        if (
            call.resource.kind.name == "Pod"
            or entry.pending_finalizers
            or self._server.live_object(entry.uid) is not None
        ):
            return _raw_json_response(entry.data)
        details = {"name": entry.name, "kind": call.resource.kind.plural, "uid": entry.uid}
        return _json_response(
            {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        )

    def _object_response(self, call: ApiRequest, entry: StoredEntry, status: int = 200) -> Response:
        if call.wants_table:
            head = {"resourceVersion": str(entry.version)}
            return _json_response(
                table_output.render_table(call.resource, (entry,), self._server.clock.now(), head), status
            )
        return _raw_json_response(entry.data, status)

    # ---- subresources ---------------------------------------------------------------------------------------------------

    def _get_scale(self, call: ApiRequest) -> Response:
        return _json_response(subresources.read_scale(self._server.get(call.resource, call.namespace, call.name)))

    def _put_scale(self, call: ApiRequest) -> Response:
        return self._scale(call, lambda _scale: as_object(call.body))

    def _patch_scale(self, call: ApiRequest) -> Response:
        return self._scale(call, request_parsing.patch_function(call))

    def _scale(self, call: ApiRequest, change: Transform) -> Response:
        entry = self._server.get(call.resource, call.namespace, call.name)
        wanted = change(subresources.scale_to_patch(entry))
        written = self._server.update(
            call.resource, call.namespace, call.name, lambda body: subresources.with_replicas(entry, body, wanted)
        )
        return _json_response(subresources.read_scale(written))

    def _bind(self, call: ApiRequest) -> Response:
        body = request_parsing.body_named_as_path(call, "Binding")
        target = body.get("target") or {}
        if target.get("kind") not in (None, "", "Node"):
            text = f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
            raise status_errors.server_error(text)
        if not target.get("name"):
            raise status_errors.server_error("target.name: Required value")
        subresources.bind_pod(self._server, call.namespace, call.name, str(target["name"]))
        return _success_response()

    def _evict(self, call: ApiRequest) -> Response:
        body = request_parsing.body_named_as_path(call, "Eviction")
        options = request_parsing.delete_options_from(body.get("deleteOptions") or {})
        subresources.evict_pod(self._server, call.namespace, call.name, options)
        return _success_response()


def _success_response() -> Response:
    return _json_response({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201)


def _error_response(error: KubeError) -> Response:
    if error.reason == KIND_NOT_SERVED:
        return _document_or_not_found(None)
    response = _json_response(status_errors.status_of(error), error.status or 500)
    seconds = status_errors.retry_after_seconds(error)
    if seconds:
        response.headers["Retry-After"] = str(seconds)
    return response


def _document_or_not_found(body: JsonDict | None) -> Response:
    return PlainTextResponse("404 page not found\n", 404) if body is None else _json_response(body)


def _json_response(body: Mapping[str, object], status: int = 200) -> Response:
    return _raw_json_response(msgspec.json.encode(body), status)


def _raw_json_response(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")
