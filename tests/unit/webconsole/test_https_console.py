"""The console of the controller over HTTPS, with a certificate made here: TLS, sign-in without cookies, actions, plain HTTP."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import copy

import httpx2
import pytest

from controlplane.ports import free_port as any_free_port
from karpenter.cli.top_answers import explain
from karpenter.settings import Settings
from karpenter.webconsole.console_app import ACTION_HEADER, console_app
from karpenter.webconsole.controller_console import ControllerConsole
from support.certificates import Authority
from support.reviewing_server import ReviewingServer, reviewed_parts


@pytest.fixture
def free_port() -> int:
    return any_free_port()


def write_certificate(folder: Path, name: str) -> ssl.SSLContext:
    """``tls.crt`` and ``tls.key`` for loopback; what a browser trusts that knows the authority of this name."""
    authority = Authority(folder / name, name)
    made = authority.issue("server", "IP:127.0.0.1")
    copy(made.certificate_file, folder / "tls.crt")
    copy(made.key_file, folder / "tls.key")
    return ssl.create_default_context(cafile=str(authority.certificate_file))


@asynccontextmanager
async def served(folder: Path, port: int) -> AsyncIterator[httpx2.AsyncClient]:
    """The console as the controller serves it, and a browser that trusts its certificate."""
    trusted = write_certificate(folder, "first")
    settings = Settings(console=True, console_port=port, console_certificate_directory=str(folder))
    parts = reviewed_parts(ReviewingServer())
    serving = asyncio.create_task(ControllerConsole(settings, explain)._serve(console_app(parts)))
    try:
        async with (
            asyncio.timeout(60),
            httpx2.AsyncClient(verify=trusted, base_url=f"https://127.0.0.1:{port}", trust_env=False) as client,
        ):
            while True:
                try:
                    await client.get("/")
                    break
                except httpx2.ConnectError:
                    await asyncio.sleep(0.05)
            yield client
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await parts.feeds.close()


async def test_people_sign_in_over_tls_with_a_token_and_get_no_cookie(tmp_path: Path, free_port: int) -> None:
    async with served(tmp_path, free_port) as client:
        for path in ("/", "/console.js", "/api/session"):
            answer = await client.get(path, headers={"Authorization": "Bearer admin"})
            assert answer.status_code == 200
            assert "set-cookie" not in answer.headers, "no other site can make a browser send what it does not keep"
            assert answer.headers["strict-transport-security"] == "max-age=31536000"
            assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert (await client.get("/api/session")).status_code == 401
        assert (await client.get("/api/session", params={"token": "admin"})).status_code == 401, (
            "addresses are logged and shared"
        )


async def test_an_action_needs_the_token_and_the_header_of_the_page(tmp_path: Path, free_port: int) -> None:
    wanted = {"action": "freeze", "target": "np-hidden"}
    token = {"Authorization": "Bearer admin"}
    async with served(tmp_path, free_port) as client:
        own = {ACTION_HEADER: "1", "Origin": f"https://127.0.0.1:{free_port}"}
        assert (await client.post("/api/actions", json=wanted, headers=own)).status_code == 401
        assert (await client.post("/api/actions", json=wanted, headers=token)).status_code == 403
        other_site = {**token, ACTION_HEADER: "1", "Origin": "https://evil.example"}
        assert (await client.post("/api/actions", json=wanted, headers=other_site)).status_code == 403
        shown = await client.post("/api/actions", json=wanted, headers={**token, **own})
        assert shown.json()["kubectl"].startswith("kubectl annotate --overwrite nodepool np-hidden")


async def test_plain_http_gets_no_answer(tmp_path: Path, free_port: int) -> None:
    """A token must not cross the network in clear: nothing is answered, and nobody is sent on."""
    async with served(tmp_path, free_port), httpx2.AsyncClient(trust_env=False) as plain:
        with pytest.raises(httpx2.TransportError):
            await plain.get(f"http://127.0.0.1:{free_port}/")


async def test_old_versions_of_tls_are_refused(tmp_path: Path, free_port: int) -> None:
    async with served(tmp_path, free_port):
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(str(tmp_path / "first" / "first.crt"))
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", free_port, ssl=old)


async def test_a_renewed_certificate_is_taken_without_a_restart(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("karpenter.webconsole.controller_console._RENEWAL_SECONDS", 0.05)
    async with served(tmp_path, free_port):
        renewed = write_certificate(tmp_path, "second")
        while True:
            async with httpx2.AsyncClient(verify=renewed, trust_env=False) as client:
                try:
                    assert (await client.get(f"https://127.0.0.1:{free_port}/")).status_code == 200
                    break
                except httpx2.ConnectError:
                    await asyncio.sleep(0.05)
