"""Connections that notice when the other side is gone.

A watch says nothing for minutes, and a server or a gateway that vanishes without closing its connections says nothing either. The
kernel can tell the two apart: it probes a silent connection and breaks it when nobody answers. Without that a controller would
go on acting on an old picture until the watch's own limit, many minutes later.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

#: Room for the requests in flight and one connection per watch.
_MOST_CONNECTIONS = 128

#: The first probe after so much silence, the next ones at this distance, given up after so many: 45 s in all.
_FIRST_PROBE_SECONDS = 15
_PROBE_SECONDS = 10
_PROBES = 3


def lively(server: str, verify: ssl.SSLContext) -> httpx2.AsyncHTTPTransport:
    """The transport to ``server`` (a URL), through the environment's proxy for it if there is one."""
    return httpx2.AsyncHTTPTransport(
        verify=verify,
        limits=httpx2.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=_MOST_CONNECTIONS),
        proxy=proxy_for(server),
        socket_options=tuple(_probing()),
    )


def proxy_for(server: str) -> str | None:
    """The proxy that ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` name for a URL."""
    address = urlsplit(server)
    if proxy_bypass(address.netloc.rpartition("@")[2]):
        return None
    found = getproxies()
    proxy = found.get(address.scheme) or found.get("all")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def _probing() -> Iterator[tuple[int, int, int]]:
    yield socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
    # Not every platform has each of them, and one calls the first by another name.
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), _FIRST_PROBE_SECONDS),
        (("TCP_KEEPINTVL",), _PROBE_SECONDS),
        (("TCP_KEEPCNT",), _PROBES),
    ):
        option = next((number for name in names if (number := getattr(socket, name, None)) is not None), None)
        if option is not None:
            yield socket.IPPROTO_TCP, option, value
