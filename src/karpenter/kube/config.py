"""Finding a cluster and connecting to it.

Where the address and the credentials come from is a person's matter and follows kubectl: an explicit path, else the files of
``KUBECONFIG`` merged so that the first to name something wins, else ``~/.kube/config``, else the service account of the pod
we run in. What a kubeconfig says is read in ``kubeconfig``; here it becomes somebody to be and somebody to believe.

A ``Connection`` can be connected to several times: its clients share one identity, so that a helper program runs once for all
of them. Libraries are imported only when something connects, because commands that need no cluster should start at once.
"""

from __future__ import annotations

import binascii
import os
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, urlsplit

from karpenter.kube import kubeconfig
from karpenter.kube.kubeconfig import Chosen, Cluster, User

if TYPE_CHECKING:
    from karpenter.kube.client import KubeClient
    from karpenter.kube.credentials import Identity
    from karpenter.kube.observer import RequestObserver
    from karpenter.kube.program import Program
    from karpenter.kube.protocol import Json, JsonObject
    from karpenter.kube.sources import Source
    from karpenter.kube.throttle import TokenBucket
    from karpenter.kube.tls import Trust

_HOME = Path("~/.kube/config")
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"

#: Seconds to connect, and to wait for the next piece of an ordinary answer.
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 30.0


class ConfigError(Exception):
    """No usable cluster configuration; the message says what is wrong, where, and how to mend it."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a cluster: ``server`` (URL), the default ``namespace``, and where both come from (``source``)."""

    server: str
    namespace: str
    context: str
    source: str
    _cluster: Cluster = field(repr=False, compare=False)
    _user: User = field(repr=False, compare=False)
    _trust: Trust = field(repr=False, compare=False)
    _identity: Identity = field(repr=False, compare=False)

    def authorities(self) -> bytes:
        """The certificates the API server is believed by, in PEM; empty where those of the system are. Raises ``ConfigError``."""
        from karpenter.kube.sources import Unreadable
        from karpenter.kube.tls import papers

        try:
            return papers(self._trust, b"", b"").authorities
        except Unreadable as error:
            raise ConfigError(f"{self.source}, context {self.context}: {error}") from error


def load(path: str = "", context: str = "") -> Connection:
    """Find the cluster to talk to. ``path`` and ``context`` override what the environment says. Raises ``ConfigError``."""
    source, chosen = _find(path, context)
    try:
        _check(chosen)
        trust = _trust(chosen.cluster)
        identity = _identity(chosen, trust)
    except kubeconfig.Wrong as error:
        raise ConfigError(f"{source}, context {chosen.name}: {error}") from error
    cluster = chosen.cluster
    return Connection(cluster.server, chosen.namespace, chosen.name, source, cluster, chosen.user, trust, identity)


def connect(
    connection: Connection, limit: TokenBucket | None = None, observer: RequestObserver | None = None
) -> KubeClient:
    """A client for the cluster, to be closed by the caller; ``limit`` paces its requests, ``observer`` hears of them.

    Raises ``ConfigError`` for unusable certificates, users or proxies.
    """
    import httpx2

    from karpenter.kube import transport
    from karpenter.kube.client import KubeClient
    from karpenter.kube.credentials import CredentialsRefused
    from karpenter.kube.sources import Unreadable
    from karpenter.kube.tls import Unusable

    cluster = connection._cluster
    proxy = cluster.proxy_url or transport.proxy_for(cluster.server)
    try:
        sending = transport.Authenticated(connection._identity, connection._trust, partial(transport.lively, proxy))
    except (CredentialsRefused, Unreadable, Unusable, ValueError, ImportError) as error:
        raise ConfigError(f"{connection.source}, context {connection.context}: {error}") from error
    http = httpx2.AsyncClient(
        base_url=cluster.server,
        headers=list(_headers(connection)),
        transport=sending,
        timeout=httpx2.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS, pool=None),
    )
    return KubeClient(http, limit, observer)


def user_agent() -> str:
    """What every call announces itself as (OPS-360)."""
    return f"karpenter/{version('karpenter')}"


def _headers(connection: Connection) -> Iterator[tuple[str, str]]:
    yield "User-Agent", user_agent()
    if connection._cluster.disable_compression:
        yield "Accept-Encoding", "identity"
    user = connection._user
    if user.as_user:
        yield "Impersonate-User", user.as_user
    if user.as_uid:
        yield "Impersonate-Uid", user.as_uid
    for group in user.as_groups:
        yield "Impersonate-Group", group
    for key, values in user.as_user_extra.items():
        for value in values:
            yield f"Impersonate-Extra-{quote(key, safe='')}", value


# -- finding ----------------------------------------------------------------------------------------------------------


def _find(path: str, context: str) -> tuple[str, Chosen]:
    listed = path or os.environ.get("KUBECONFIG", "")
    home = _HOME.expanduser()
    if not listed and not home.is_file():
        return "the pod's service account", _pod()
    files = [Path(item).expanduser() for item in listed.split(os.pathsep) if item] if listed else [home]
    source = listed or str(_HOME)
    found = [file for file in files if path or file.is_file()]
    if not found:
        raise ConfigError(f"KUBECONFIG names {source}, which does not exist; correct it or unset it")
    try:
        config = kubeconfig.read(found)
    except kubeconfig.Wrong as error:
        raise ConfigError(str(error)) from error
    try:
        return source, kubeconfig.choose(config, context)
    except kubeconfig.Wrong as error:
        raise ConfigError(f"{source}: {error}") from error


def _pod() -> Chosen:
    """The cluster of the pod we run in, and its service account there."""
    host, port = os.environ.get(_HOST, ""), os.environ.get(_PORT, "")
    if not host or not port:
        raise ConfigError(
            f"no cluster configured: KUBECONFIG is not set, {_HOME} does not exist and this is not a pod; "
            "set KUBECONFIG, or try `karpenter demo`, which needs no cluster"
        )
    token, authority, namespace = (SERVICE_ACCOUNT / name for name in ("token", "ca.crt", "namespace"))
    if not token.is_file():
        raise ConfigError(
            f"this pod has no service account token ({token}); set automountServiceAccountToken, or KUBECONFIG"
        )
    cluster = Cluster(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        certificate_authority=str(authority) if authority.is_file() else "",
    )
    own = namespace.read_text().strip() if namespace.is_file() else ""
    return Chosen("pod", cluster, User(token_file=str(token)), own or "default")


# -- what it means ----------------------------------------------------------------------------------------------------


def _check(chosen: Chosen) -> None:
    """Refuse what cannot work, or would not mean what it says."""
    for what in _mistakes(chosen.cluster, chosen.user):
        raise kubeconfig.Wrong(what)


def _mistakes(cluster: Cluster, user: User) -> Iterator[str]:
    address = urlsplit(cluster.server)
    if address.scheme not in ("http", "https") or not address.hostname:
        yield f"its server {cluster.server!r} is not a URL such as https://host:6443"
    if cluster.insecure_skip_tls_verify and (cluster.certificate_authority or cluster.certificate_authority_data):
        yield "its cluster has a certificate-authority and insecure-skip-tls-verify; only one of them can be meant"
    has_certificate = bool(user.client_certificate or user.client_certificate_data)
    has_key = bool(user.client_key or user.client_key_data)
    if has_certificate != has_key:
        yield "its user has only one of client-certificate and client-key; both are needed"
    if user.auth_provider is not None:
        yield "its user has an auth-provider, which kubectl does not support any more either; use exec"
    if not user.as_user and (user.as_uid or user.as_groups or user.as_user_extra):
        yield "its user impersonates a uid, groups or extras without a user (as)"


def _trust(cluster: Cluster) -> Trust:
    from karpenter.kube.sources import Sources
    from karpenter.kube.tls import Trust

    authority = _source("certificate-authority-data", cluster.certificate_authority_data, cluster.certificate_authority)
    authorities = Sources(authority) if authority != b"" else None
    return Trust(authorities, cluster.tls_server_name, cluster.insecure_skip_tls_verify)


def _identity(chosen: Chosen, trust: Trust) -> Identity:
    """A program is asked only where the kubeconfig has nothing else to show, as with kubectl."""
    from karpenter.kube.credentials import Held, basic
    from karpenter.kube.program import Helper

    user = chosen.user
    certificate = _source("client-certificate-data", user.client_certificate_data, user.client_certificate)
    key = _source("client-key-data", user.client_key_data, user.client_key)
    token: Source = Path(user.token_file) if user.token_file else user.token.encode()
    password = basic(user.username, user.password) if user.username else ""
    if user.exec is not None and not (token or password or certificate):
        return Helper(_program(chosen, trust))
    return Held(token=token, certificate=certificate, key=key, authorization=password)


def _source(name: str, data: str, file: str) -> Source:
    if not data:
        return Path(file) if file else b""
    try:
        return b64decode(data)
    except binascii.Error as error:
        raise kubeconfig.Wrong(f"{name} is not base64 ({error})") from error


def _program(chosen: Chosen, trust: Trust) -> Program:
    from karpenter.kube.program import VERSIONS, InteractiveMode, Program

    wanted = chosen.user.exec or kubeconfig.Exec("")
    if wanted.api_version not in VERSIONS:
        raise kubeconfig.Wrong(
            f"its user's program {wanted.command} speaks {wanted.api_version!r}; {' and '.join(VERSIONS)} are known"
        )
    try:
        mode = InteractiveMode(wanted.interactive_mode or InteractiveMode.IF_AVAILABLE)
    except ValueError as error:
        raise kubeconfig.Wrong(
            f"its user's program has interactiveMode {wanted.interactive_mode!r}; {', '.join(InteractiveMode)} are known"
        ) from error
    environment = {variable.name: variable.value for variable in wanted.env}
    cluster = partial(_described, chosen.cluster, trust) if wanted.provide_cluster_info else None
    return Program(wanted.api_version, wanted.command, wanted.args, environment, wanted.install_hint, mode, cluster)


def _described(cluster: Cluster, trust: Trust) -> JsonObject:
    """A cluster as helper programs are told of it."""
    from karpenter.kube import transport
    from karpenter.kube.tls import papers

    authorities = papers(trust, b"", b"").authorities
    config = next((entry.extension for entry in cluster.extensions if entry.name == kubeconfig.EXEC_EXTENSION), None)
    told: dict[str, Json] = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": binascii.b2a_base64(authorities, newline=False).decode(),
        "proxy-url": cluster.proxy_url or transport.proxy_for(cluster.server) or "",
        "disable-compression": cluster.disable_compression,
        "config": cast("Json", config),
    }
    return {name: value for name, value in told.items() if value}
