"""Proxies on the way to a server: which one the environment names, and how to use it without showing its password."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from karpenter.kube.credentials import basic_header

_PROXY_SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, or none: then ``url`` is None.

    ``url`` has neither user nor password, because errors of libraries name it; they are in ``headers``.
    """

    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


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


def usable_proxy(url: str | None) -> Proxy:
    """The proxy at ``url``; without one, none. Raises ``ValueError`` for one that cannot be used; the text holds no password."""
    if url is None:
        return Proxy()
    try:
        shown, authorization = without_login(url).rstrip("/"), login_header(url)
        scheme = urlsplit(url).scheme
    except ValueError:
        raise ValueError("the address of the proxy cannot be read") from None
    if scheme not in _PROXY_SCHEMES:
        raise ValueError(f"proxy {shown}: only proxies of http:// and https:// can be used, no SOCKS")
    return Proxy(shown, {"Authorization": authorization} if authorization else {})


def without_login(url: str) -> str:
    """A URL without the user and the password that may be in it. Raises ``ValueError`` for what is no URL."""
    address = urlsplit(url)
    return urlunsplit(address._replace(netloc=address.netloc.rpartition("@")[2]))


def login_header(url: str) -> str:
    """The header that shows the user and the password in a URL; empty where there is none. Raises ``ValueError`` as above."""
    address = urlsplit(url)
    if address.port == 0:  # reading it raises where it is no port
        raise ValueError("port 0")
    if not (address.username or address.password):
        return ""
    return basic_header(unquote(address.username or ""), unquote(address.password or ""))
