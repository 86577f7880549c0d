"""Transports of httpx under the product's client: its mock, and applications in this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import httpx2

from karpenter.kube.http_exchange import (
    ConnectionBroken,
    ConnectionNotMade,
    HttpAnswer,
    HttpStream,
    OutgoingRequest,
    encoded_target,
)

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


class HttpxTransport:
    """Implements ``HttpTransport`` over a transport of httpx."""

    def __init__(self, transport: httpx2.AsyncBaseTransport, server: str = "https://server:6443") -> None:
        self._http = httpx2.AsyncClient(transport=transport, base_url=server)
        self.server = server

    async def exchange(self, request: OutgoingRequest) -> HttpAnswer:
        async with self._sent(request) as response:
            with _translated_errors():
                return HttpAnswer(response.status_code, response.headers, await response.aread())

    @asynccontextmanager
    async def stream(self, request: OutgoingRequest) -> AsyncIterator[HttpStream]:
        async with self._sent(request) as response:
            yield _Stream(response)

    async def aclose(self) -> None:
        await self._http.aclose()

    @asynccontextmanager
    async def _sent(self, request: OutgoingRequest) -> AsyncIterator[httpx2.Response]:
        built = self._http.build_request(
            request.method,
            encoded_target(request.path, request.query),
            headers=dict(request.headers),
            content=request.body,
        )
        request.check_permitted()
        with _translated_errors():
            response = await self._http.send(built, stream=True)
        try:
            yield response
        finally:
            await response.aclose()


class _Stream:
    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status_code

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        with _translated_errors():
            async for chunk in self._response.aiter_bytes():
                yield chunk


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except _NOT_SENT as error:
        raise ConnectionNotMade(str(error) or type(error).__name__) from error
    except httpx2.RequestError as error:
        raise ConnectionBroken(str(error) or type(error).__name__) from error
