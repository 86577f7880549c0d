"""Certificates: trusted authorities, client certificates, and the renewal of either at run time."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest

from karpenter.api.kinds import POD
from karpenter.kube import config, errors, exec_credentials, reloaded_files, request_retries, tls
from karpenter.kube.client import KubeClient
from karpenter.kube.reloaded_files import ReloadedTexts
from karpenter.model.backoff import Backoff
from support.certificates import Authority, Certificate

V1 = "client.authentication.k8s.io/v1"
NOBODY = ""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read for every request, and nothing is repeated slowly."""
    monkeypatch.setattr(reloaded_files, "_RELOAD_SECONDS", 0.0)
    monkeypatch.setattr(request_retries, "_BACKOFF", Backoff(0.0, 0.0))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority", "authority")


def test_clients_share_a_context_for_equal_material() -> None:
    """Reading the authorities of the system takes 30 ms."""
    trust = tls.ServerTrust()
    assert tls.ssl_context(trust, tls.TlsMaterial()) is tls.ssl_context(trust, tls.TlsMaterial())
    assert tls.ssl_context(trust, tls.TlsMaterial()) is not tls.ssl_context(
        replace(trust, skips_verification=True), tls.TlsMaterial()
    )


@pytest.fixture
def no_known_authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that Python looks into and that has a bundle only, as on some distributions."""
    folder = tmp_path / "certs"
    folder.mkdir()
    (folder / "bundle.crt").touch()
    known = ssl.get_default_verify_paths()._replace(cafile=None, capath=str(folder))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: known)
    monkeypatch.setattr(ssl, "create_default_context", lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    return folder


@pytest.mark.parametrize(("name", "count"), [("bundle.crt", 1), ("0a1b2c3d.0", 0)])
def test_the_authorities_of_a_distribution_are_found_where_python_looks_elsewhere(
    no_known_authorities: Path, monkeypatch: pytest.MonkeyPatch, authority: Authority, name: str, count: int
) -> None:
    """OpenSSL looks into a folder by hashed names: where there are such, it finds them by itself."""
    (no_known_authorities / name).touch()
    monkeypatch.setattr(tls, "_AUTHORITY_FILES", ("/no/such/file", str(authority.certificate_file)))
    context = tls._new_context(tls.TlsMaterial(), skips_verification=False)
    assert context.cert_store_stats()["x509_ca"] == count


def test_a_file_of_authorities_that_the_environment_names_has_to_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file")
    with pytest.raises(tls.UnusableCertificate, match="SSL_CERT_FILE names /no/such/file, and there is no such file"):
        tls._new_context(tls.TlsMaterial(), skips_verification=False)


@dataclass
class Server:
    """An API server that notes who the client of each connection is, by its certificate.

    Requests for a pod are answered; a watch is opened and left silent. ``refused`` gets 401.
    """

    own: Certificate
    authority: Authority
    users: list[str] = field(default_factory=list)
    refused: str = "nobody in particular"
    port: int = 0
    open_connections: set[asyncio.StreamWriter] = field(default_factory=set)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.authority.certificate_file))
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_cert_chain(self.own.certificate_file, self.own.key_file)
        listening = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=context)
        self.port = listening.sockets[0].getsockname()[1]
        try:
            yield f"https://127.0.0.1:{self.port}"
        finally:
            listening.close()
            for writer in self.open_connections:
                writer.transport.abort()
            await until(lambda: not self.open_connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_connections.add(writer)
        shown = writer.get_extra_info("peercert")
        user = dict(pair for (pair,) in shown["subject"])["commonName"] if shown else NOBODY
        try:
            while (request := await reader.readuntil(b"\r\n\r\n")) and not reader.at_eof():
                self.users.append(user)
                writer.write(self._answer(request, user))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open_connections.discard(writer)
            writer.transport.abort()

    def _answer(self, request: bytes, user: str) -> bytes:
        if b"watch=true" in request:
            return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        body = json.dumps({"kind": "Pod", "metadata": {"name": "a"}}).encode()
        status = b"401 Unauthorized" if user == self.refused else b"200 OK"
        return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@pytest.fixture
def server(authority: Authority) -> Server:
    return Server(authority.issue("server", "DNS:cluster.test", "IP:127.0.0.1"), authority)


def kubeconfig(folder: Path, url: str, cluster: dict[str, object], **user: object) -> config.Connection:
    content = {
        "current-context": "main",
        "clusters": [{"name": "main", "cluster": {"server": url, **cluster}}],
        "contexts": [{"name": "main", "context": {"cluster": "main", "user": "main"}}],
        "users": [{"name": "main", "user": user}],
    }
    path = folder / "config"
    path.write_text(json.dumps(content))
    return config.load(str(path))


def base64(text: bytes) -> str:
    return b64encode(text).decode()


async def ask(client: KubeClient) -> None:
    await client.get(POD, "a", "ns")


def place(certificate: Certificate, folder: Path) -> dict[str, object]:
    """Put a client certificate where the kubeconfig finds it."""
    (folder / "client.crt").write_bytes(certificate.certificate)
    (folder / "client.key").write_bytes(certificate.key)
    return {"client-certificate": "client.crt", "client-key": "client.key"}


@pytest.mark.parametrize("as_data", [True, False], ids=["data", "files"])
async def test_both_sides_show_certificates(
    tmp_path: Path, authority: Authority, server: Server, as_data: bool
) -> None:
    user = authority.issue("jo")
    shown = {"client-certificate-data": base64(user.certificate), "client-key-data": base64(user.key)}
    believed: dict[str, object] = {"certificate-authority-data": base64(authority.certificate)}
    if not as_data:
        shown, believed = place(user, tmp_path), {"certificate-authority": str(authority.certificate_file)}
    async with server.serving() as url, config.connect(kubeconfig(tmp_path, url, believed, **shown)) as client:
        await ask(client)
    assert server.users == ["jo"]


async def test_a_server_of_another_authority_is_not_trusted(tmp_path: Path, server: Server) -> None:
    other = Authority(tmp_path, "other")
    believed = {"certificate-authority-data": base64(other.certificate)}
    async with server.serving() as url, config.connect(kubeconfig(tmp_path, url, believed)) as client:
        with pytest.raises(errors.RequestNotSent, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(client)


async def test_any_server_is_trusted_where_the_kubeconfig_says_so(tmp_path: Path, server: Server) -> None:
    blind = {"insecure-skip-tls-verify": True}
    async with server.serving() as url, config.connect(kubeconfig(tmp_path, url, blind)) as client:
        await ask(client)
    assert server.users == [NOBODY]


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_server_reached_under_another_name_is_verified_by_the_configured_name(
    tmp_path: Path, authority: Authority, is_named: bool
) -> None:
    server = Server(authority.issue("server", "DNS:cluster.test"), authority)
    believed = {"certificate-authority-data": base64(authority.certificate)} | (
        {"tls-server-name": "cluster.test"} if is_named else {}
    )
    async with server.serving() as url, config.connect(kubeconfig(tmp_path, url, believed)) as client:
        if is_named:
            await ask(client)
        else:
            with pytest.raises(errors.RequestNotSent, match="mismatch"):
                await ask(client)


@pytest.mark.parametrize("server_name", ["", "cluster.test"])
async def test_a_server_behind_a_proxy_is_checked_all_the_same(
    tmp_path: Path, authority: Authority, server: Server, server_name: str
) -> None:
    asked: list[bytes] = []
    tunnels: set[asyncio.StreamWriter] = set()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tunnels.add(writer)
        asked.append(await reader.readline())
        await reader.readuntil(b"\r\n\r\n")
        from_server, to_server = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        await asyncio.gather(carry(reader, to_server), carry(from_server, writer), return_exceptions=True)
        tunnels.discard(writer)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        finally:
            writer.transport.abort()

    async with server.serving() as url, await asyncio.start_server(tunnel, "127.0.0.1", 0) as proxy:
        believed: dict[str, object] = {
            "certificate-authority-data": base64(authority.certificate),
            "tls-server-name": server_name,
            "proxy-url": f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}",
        }
        async with config.connect(kubeconfig(tmp_path, url, believed)) as client:
            await ask(client)
        await until(lambda: not tunnels)
        assert asked == [f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n".encode()]
        assert server.users == [NOBODY]


async def test_a_renewed_client_certificate_is_shown_on_new_connections_and_watches_go_on(
    tmp_path: Path, authority: Authority, server: Server
) -> None:
    believed: dict[str, object] = {"certificate-authority": str(authority.certificate_file)}
    connection_of = place(authority.issue("before"), tmp_path)
    async with (
        server.serving() as url,
        config.connect(kubeconfig(tmp_path, url, believed, **connection_of)) as client,
    ):
        await ask(client)
        watch = client.watch(POD, "1")
        await anext(watch)
        place(authority.issue("after"), tmp_path)
        await ask(client)
        await ask(client)
        assert server.users == ["before", "before", "after", "after"]
        # The watch is still open on its old connection, the idle old one will go with it.
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        await watch.aclose()  # type: ignore[attr-defined]
        await until(lambda: len(server.open_connections) == 1)


async def until(condition: object) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_closing_a_client_closes_its_former_connections_too(
    tmp_path: Path, authority: Authority, server: Server
) -> None:
    believed: dict[str, object] = {"certificate-authority": str(authority.certificate_file)}
    async with server.serving() as url:
        client = config.connect(kubeconfig(tmp_path, url, believed, **place(authority.issue("before"), tmp_path)))
        watch = client.watch(POD, "1")
        await anext(watch)
        place(authority.issue("after"), tmp_path)
        await ask(client)
        await client.aclose()
        await until(lambda: not server.open_connections)
        with pytest.raises(errors.ServerUnavailable):
            await anext(watch)


async def test_a_certificate_whose_key_is_not_written_yet_waits_for_it(
    tmp_path: Path, authority: Authority, server: Server
) -> None:
    believed: dict[str, object] = {"certificate-authority": str(authority.certificate_file)}
    user = place(authority.issue("before"), tmp_path)
    async with server.serving() as url, config.connect(kubeconfig(tmp_path, url, believed, **user)) as client:
        after = authority.issue("after")
        (tmp_path / "client.crt").write_bytes(after.certificate)
        await ask(client)
        server.refused = "before"
        with pytest.raises(errors.Unauthorized, match="the client certificate and its key are not a pair"):
            await ask(client)
        (tmp_path / "client.key").write_bytes(after.key)
        await ask(client)
    assert server.users == ["before", "before", "after"]


async def test_a_renewed_authority_is_trusted_without_a_restart(
    tmp_path: Path, authority: Authority, server: Server
) -> None:
    file = tmp_path / "ca.crt"
    file.write_bytes(authority.certificate)
    later = Authority(tmp_path / "later", "later")
    async with server.serving() as url:
        client = config.connect(kubeconfig(tmp_path, url, {"certificate-authority": "ca.crt"}))
        await ask(client)
    server.own, server.authority = later.issue("server", "IP:127.0.0.1"), later
    async with client, server.serving():
        file.write_bytes(authority.certificate + later.certificate)
        await ask(client)
        file.write_text("half a certif")
        await ask(client)
    assert len(server.users) == 3


async def test_a_programs_certificate_is_shown_and_renewed(
    tmp_path: Path, authority: Authority, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = tmp_path / "answer"

    def give(user: Certificate) -> None:
        pair = {"clientCertificateData": user.certificate.decode(), "clientKeyData": user.key.decode()}
        answer.write_text(json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": pair}))

    monkeypatch.setattr(exec_credentials, "_MIN_RUN_INTERVAL", timedelta())
    give(authority.issue("before"))
    wanted = {"apiVersion": V1, "command": "cat", "args": [str(answer)]}
    believed: dict[str, object] = {"certificate-authority": str(authority.certificate_file)}
    async with server.serving() as url, config.connect(kubeconfig(tmp_path, url, believed, exec=wanted)) as client:
        await ask(client)
        give(authority.issue("after"))
        await ask(client)
        server.refused = "before"
        await ask(client)
    assert server.users == ["before", "before", "before", "after"]


def test_a_key_that_cannot_be_used_is_reported(authority: Authority) -> None:
    user = authority.issue("jo")
    with pytest.raises(tls.UnusableCertificate, match="not a pair"):
        tls.ssl_context(tls.ServerTrust(), tls.TlsMaterial(b"", user.certificate, b"nonsense"))
    command = ["openssl", "pkcs8", "-topk8", "-in", str(user.key_file), "-passout", "pass:secret"]
    encrypted = subprocess.run(command, capture_output=True, check=True).stdout
    with pytest.raises(tls.UnusableCertificate, match="encrypted"):
        tls.ssl_context(tls.ServerTrust(), tls.TlsMaterial(b"", user.certificate, encrypted))


def test_authorities_of_older_clusters_are_trusted(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer Pythons ask of authorities what Go does not, and what those of many managed clusters do not have."""
    usual = ssl.create_default_context

    def strict(**options: object) -> ssl.SSLContext:
        made = usual(**options)
        made.verify_flags |= ssl.VERIFY_X509_STRICT
        return made

    monkeypatch.setattr(ssl, "create_default_context", strict)
    trust = tls.ServerTrust(ReloadedTexts(authority.certificate))
    made = tls.ssl_context(trust, tls.current_material(trust, b"", b""))
    assert not made.verify_flags & ssl.VERIFY_X509_STRICT
    assert made.verify_mode is ssl.CERT_REQUIRED
    assert made.check_hostname
