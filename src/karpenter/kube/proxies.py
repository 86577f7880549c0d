"""Proxies on the way to a server: which one the environment names, and how to use it without showing its password."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

_PROXY_SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy. ``url`` has neither user nor password, because errors of libraries name it; they are in ``headers``."""

    url: str
    headers: Mapping[str, str] = field(repr=False)


def proxy_for(server: str) -> str | None:
    """The proxy that ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` name for a URL.

    As Go programs read them, for pods get the same variables whatever they are written in: ``NO_PROXY`` may hold networks
    (``10.0.0.0/8``), and the local host is never reached through a proxy.
    """
    address = urlsplit(server)
    proxies = getproxies()
    if _bypasses_proxy(address.hostname or "", proxies.get("no", "")) or proxy_bypass(
        address.netloc.rpartition("@")[2]
    ):
        return None
    proxy = proxies.get(address.scheme) or proxies.get("all")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def _bypasses_proxy(host: str, exempt: str) -> bool:
    try:
        ip = ip_address(host)
    except ValueError:
        return host == "localhost"
    return ip.is_loopback or any(ip in network for network in _networks(exempt))


def _networks(exempt: str) -> Iterator[IPv4Network | IPv6Network]:
    for entry in exempt.split(","):
        if "/" in entry:
            # What is no network is for others to match, or a mistake that exempts nothing.
            with suppress(ValueError):
                yield ip_network(entry.strip(), strict=False)


def usable_proxy(url: str) -> Proxy:
    """Raises ``ValueError`` for a proxy that cannot be used; the text holds no password."""
    try:
        without_login, login = split_login(url)
        scheme = urlsplit(url).scheme
    except ValueError:
        raise ValueError("the address of the proxy cannot be read") from None
    if scheme not in _PROXY_SCHEMES:
        raise ValueError(f"proxy {without_login}: only proxies of http:// and https:// can be used, no SOCKS")
    return Proxy(without_login, dict(login_header(login)))


def split_login(url: str) -> tuple[str, str]:
    """A URL without user and password and without a slash at its end, and ``user:password``, empty where there is none.

    Raises ``ValueError`` for what is no URL.
    """
    address = urlsplit(url)
    if address.port == 0:  # reading it raises where it is no port
        raise ValueError("port 0")
    login = f"{unquote(address.username or '')}:{unquote(address.password or '')}"
    without = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl().rstrip("/")
    return without, login if address.username or address.password else ""


def login_header(login: str) -> Iterator[tuple[str, str]]:
    """The header that shows ``user:password``; nothing where there is none."""
    if login:
        yield "Authorization", f"Basic {b64encode(login.encode()).decode('ascii')}"
