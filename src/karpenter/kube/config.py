"""Finding a cluster and connecting to it.

The address and the credentials are found as kubectl finds them: an explicit path, else the files of
``KUBECONFIG`` merged so that the first to name something wins, else ``~/.kube/config``, else the service account of the pod
Karpenter runs in. ``kubeconfig`` reads the files; here they become an identity and the authorities to trust.

A ``Connection`` can be connected to several times: its clients share one identity, so that a helper program runs once for all
of them. Libraries are imported only when something connects, because commands that need no cluster should start at once.
"""

from __future__ import annotations

import binascii
import os
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, urlsplit

from karpenter.kube import kubeconfig
from karpenter.kube.kubeconfig import KubeconfigCluster, KubeconfigUser, SelectedContext

if TYPE_CHECKING:
    from karpenter.kube.client import KubeClient
    from karpenter.kube.credentials import Identity
    from karpenter.kube.exec_credentials import ExecPlugin
    from karpenter.kube.http_exchange import HttpTransport
    from karpenter.kube.protocol import Json, JsonObject
    from karpenter.kube.reloaded_files import TextSource
    from karpenter.kube.request_metrics import RequestObserver
    from karpenter.kube.tls import ServerTrust
    from karpenter.kube.write_fence import Fence
    from karpenter.model.token_bucket import TokenBucket

_DEFAULT_KUBECONFIG = Path("~/.kube/config")
SERVICE_ACCOUNT_DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_HOST_VARIABLE, _PORT_VARIABLE = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


class ConfigError(Exception):
    """No usable cluster configuration; the message says what is wrong, where, and how to fix it."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a cluster: ``server`` (URL), the default ``namespace``, and where both come from (``source``)."""

    server: str
    namespace: str
    context: str
    source: str
    _cluster: KubeconfigCluster = field(repr=False, compare=False)
    _user: KubeconfigUser = field(repr=False, compare=False)
    _trust: ServerTrust = field(repr=False, compare=False)
    _identity: Identity = field(repr=False, compare=False)

    def certificate_authorities(self) -> bytes:
        """The certificates that verify the API server, in PEM; empty if those of the system do. Raises ``ConfigError``."""
        from karpenter.kube.reloaded_files import SourceUnreadable
        from karpenter.kube.tls import current_material

        try:
            return current_material(self._trust, b"", b"").authorities
        except SourceUnreadable as error:
            raise ConfigError(f"{self.source}, context {self.context}: {error}") from error


def load(path: str = "", context: str = "") -> Connection:
    """Find the cluster to talk to. ``path`` and ``context`` override what the environment says. Raises ``ConfigError``."""
    source, chosen = _find_context(path, context)
    try:
        _check_context(chosen)
        trust = _trust(chosen.cluster)
        identity = _identity(chosen, trust)
    except kubeconfig.InvalidKubeconfig as error:
        raise ConfigError(f"{source}, context {chosen.name}: {error}") from error
    cluster = chosen.cluster
    return Connection(cluster.server, chosen.namespace, chosen.name, source, cluster, chosen.user, trust, identity)


def connect(
    connection: Connection,
    rate_limit: TokenBucket | None = None,
    observer: RequestObserver | None = None,
    fence: Fence | None = None,
) -> KubeClient:
    """A client for the cluster, to be closed by the caller.

    ``rate_limit`` paces its requests, ``observer`` is notified of them, its writes pass ``fence`` if there is one.

    Raises ``ConfigError`` for unusable certificates, users or proxies.
    """
    from karpenter.kube.client import KubeClient

    return KubeClient(_transport(connection, {}), rate_limit, observer, fence)


def with_token(connection: Connection, token: str) -> Connection:
    """A connection to the same cluster with this bearer token, without the first user's certificate, impersonation or rights."""
    from karpenter.kube.credentials import FileIdentity

    return replace(connection, _user=KubeconfigUser(), _identity=FileIdentity(token=token.encode("latin-1", "replace")))


def connect_for_dry_run(connection: Connection) -> KubeClient:
    """A client whose writes are checked and answered by the API server, which stores none of them. Raises as ``connect``."""
    from karpenter.kube.client import KubeClient

    return KubeClient(_transport(connection, {"dryRun": "All"}))


def _transport(connection: Connection, query: dict[str, str]) -> HttpTransport:
    """The connections below a client; every request has these parameters."""
    from karpenter.kube import http_connections, proxies, transport
    from karpenter.kube.credentials import CredentialsRefused
    from karpenter.kube.reloaded_files import SourceUnreadable
    from karpenter.kube.tls import UnusableCertificate

    cluster, trust = connection._cluster, connection._trust
    endpoint = http_connections.Endpoint(
        cluster.server,
        tuple(_request_headers(connection)),
        query,
        cluster.proxy_url or proxies.proxy_for(cluster.server),
        trust.server_name,
    )
    try:
        return transport.AuthenticatedTransport(
            connection._identity, trust, lambda context: http_connections.HttpConnections(endpoint, context)
        )
    except (CredentialsRefused, SourceUnreadable, UnusableCertificate, ValueError) as error:
        raise ConfigError(f"{connection.source}, context {connection.context}: {error}") from error


def user_agent() -> str:
    """What every call announces itself as (OPS-360)."""
    from importlib.metadata import version

    return f"karpenter/{version('karpenter')}"


def _request_headers(connection: Connection) -> Iterator[tuple[str, str]]:
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


def _find_context(path: str, context: str) -> tuple[str, SelectedContext]:
    listed = path or os.environ.get("KUBECONFIG", "")
    path = "" if path == os.environ.get("KUBECONFIG") else path  # read as kubectl reads the variable
    home = _DEFAULT_KUBECONFIG.expanduser()
    if not listed and not home.is_file():
        return "the pod's service account", _in_cluster_context()
    files = [Path(entry).expanduser() for entry in listed.split(os.pathsep) if entry] if listed else [home]
    source = listed or str(_DEFAULT_KUBECONFIG)
    existing = [file for file in files if path or file.is_file()]
    if not existing:
        raise ConfigError(f"KUBECONFIG names {source}, which does not exist; correct it or unset it")
    try:
        config = kubeconfig.read_files(existing)
    except kubeconfig.InvalidKubeconfig as error:
        raise ConfigError(str(error)) from error
    try:
        return source, kubeconfig.select_context(config, context)
    except kubeconfig.InvalidKubeconfig as error:
        raise ConfigError(f"{source}: {error}") from error


def _in_cluster_context() -> SelectedContext:
    """The cluster of the pod we run in, and its service account there."""
    host, port = os.environ.get(_HOST_VARIABLE, ""), os.environ.get(_PORT_VARIABLE, "")
    if not host or not port:
        raise ConfigError(
            f"no cluster configured: KUBECONFIG is not set, {_DEFAULT_KUBECONFIG} does not exist and this is not a pod; "
            "set KUBECONFIG, or try `karpenter demo`, which needs no cluster"
        )
    token, authority, namespace = (SERVICE_ACCOUNT_DIRECTORY / name for name in ("token", "ca.crt", "namespace"))
    if not token.is_file():
        raise ConfigError(
            f"this pod has no service account token ({token}); set automountServiceAccountToken, or KUBECONFIG"
        )
    cluster = KubeconfigCluster(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        certificate_authority=str(authority) if authority.is_file() else "",
    )
    own = namespace.read_text().strip() if namespace.is_file() else ""
    return SelectedContext("pod", cluster, KubeconfigUser(token_file=str(token)), own or "default")


# -- what it means ----------------------------------------------------------------------------------------------------


def _check_context(selected: SelectedContext) -> None:
    """Refuse what cannot work, or would not mean what it says."""
    for what in _mistakes(selected.cluster, selected.user):
        raise kubeconfig.InvalidKubeconfig(what)


def _mistakes(cluster: KubeconfigCluster, user: KubeconfigUser) -> Iterator[str]:
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


def _trust(cluster: KubeconfigCluster) -> ServerTrust:
    from karpenter.kube.reloaded_files import ReloadedTexts
    from karpenter.kube.tls import ServerTrust

    authority = _source("certificate-authority-data", cluster.certificate_authority_data, cluster.certificate_authority)
    authorities = ReloadedTexts(authority) if authority != b"" else None
    return ServerTrust(authorities, cluster.tls_server_name, cluster.insecure_skip_tls_verify)


def _identity(selected: SelectedContext, trust: ServerTrust) -> Identity:
    """A credential program runs only where the kubeconfig has no other credentials, as with kubectl."""
    from karpenter.kube.credentials import FileIdentity, basic_header
    from karpenter.kube.exec_credentials import ExecIdentity

    user = selected.user
    certificate = _source("client-certificate-data", user.client_certificate_data, user.client_certificate)
    key = _source("client-key-data", user.client_key_data, user.client_key)
    token: TextSource = Path(user.token_file) if user.token_file else user.token.encode()
    password = basic_header(user.username, user.password) if user.username else ""
    if user.exec is not None and not (token or password or certificate):
        return ExecIdentity(_exec_plugin(selected, trust))
    return FileIdentity(token=token, certificate=certificate, key=key, authorization=password)


def _source(name: str, data: str, file: str) -> TextSource:
    if not data:
        return Path(file) if file else b""
    try:
        return b64decode(data)
    except binascii.Error as error:
        raise kubeconfig.InvalidKubeconfig(f"{name} is not base64 ({error})") from error


def _exec_plugin(selected: SelectedContext, trust: ServerTrust) -> ExecPlugin:
    from karpenter.kube.exec_credentials import EXEC_API_VERSIONS, ExecPlugin, InteractiveMode

    wanted = selected.user.exec or kubeconfig.ExecConfig("")
    if wanted.api_version not in EXEC_API_VERSIONS:
        raise kubeconfig.InvalidKubeconfig(
            f"its user's program {wanted.command} speaks {wanted.api_version!r}; {' and '.join(EXEC_API_VERSIONS)} are known"
        )
    try:
        mode = InteractiveMode(wanted.interactive_mode or InteractiveMode.IF_AVAILABLE)
    except ValueError as error:
        raise kubeconfig.InvalidKubeconfig(
            f"its user's program has interactiveMode {wanted.interactive_mode!r}; {', '.join(InteractiveMode)} are known"
        ) from error
    environment = {variable.name: variable.value for variable in wanted.env}
    cluster = partial(_exec_cluster_info, selected.cluster, trust) if wanted.provide_cluster_info else None
    return ExecPlugin(wanted.api_version, wanted.command, wanted.args, environment, wanted.install_hint, mode, cluster)


def _exec_cluster_info(cluster: KubeconfigCluster, trust: ServerTrust) -> JsonObject:
    """A cluster in the form helper programs receive."""
    from karpenter.kube import proxies
    from karpenter.kube.tls import current_material

    authorities = current_material(trust, b"", b"").authorities
    config = next((entry.extension for entry in cluster.extensions if entry.name == kubeconfig.EXEC_EXTENSION), None)
    cluster_info: dict[str, Json] = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": binascii.b2a_base64(authorities, newline=False).decode(),
        "proxy-url": cluster.proxy_url or proxies.proxy_for(cluster.server) or "",
        "disable-compression": cluster.disable_compression,
        "config": cast("Json", config),
    }
    return {name: value for name, value in cluster_info.items() if value}
