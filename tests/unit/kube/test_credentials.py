"""Credentials in files: read again when they are rewritten, kept while they are not there."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from karpenter.kube import tls
from karpenter.kube.credentials import Credentials, CredentialsRefused, FileIdentity, basic_header
from karpenter.kube.http_exchange import OutgoingRequest
from karpenter.kube.reloaded_files import ReloadedTexts, SourceUnreadable
from karpenter.kube.transport import AuthenticatedTransport
from support.httpx_transport import HttpxTransport


class Seconds:
    def __init__(self) -> None:
        self.passed = 0.0

    def __call__(self) -> float:
        return self.passed


def test_a_file_is_read_again_after_ten_seconds(tmp_path: Path) -> None:
    file, seconds = tmp_path / "token", Seconds()
    file.write_text("one\n")
    sources = ReloadedTexts(file, b"constant", now=seconds)
    assert sources.current() == (b"one", b"constant")
    file.write_text("two")
    seconds.passed = 9.9
    assert sources.current() == (b"one", b"constant")
    seconds.passed = 10.0
    assert sources.current() == (b"two", b"constant")


def test_a_file_is_read_at_once_where_the_moment_counts(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    sources = ReloadedTexts(file)
    sources.current()
    file.write_text("two")
    assert sources.reload() == (b"two",)
    assert sources.current() == (b"two",)


@pytest.mark.parametrize("trouble", [Path.unlink, lambda file: file.write_text(""), lambda file: file.write_text("\n")])
def test_a_file_that_is_being_rewritten_keeps_its_last_value(tmp_path: Path, trouble: object) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    sources = ReloadedTexts(file)
    sources.current()
    trouble(file)
    assert sources.reload() == (b"one",)


def test_a_file_that_never_was_readable_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceUnreadable, match=r"cannot read .*/missing: No such file"):
        ReloadedTexts(tmp_path / "missing").current()
    (tmp_path / "empty").touch()
    with pytest.raises(SourceUnreadable, match=r"cannot read .*/empty: it is empty"):
        ReloadedTexts(tmp_path / "empty").current()
    with pytest.raises(CredentialsRefused, match=r"cannot read .*/missing"):
        FileIdentity(token=tmp_path / "missing").available()


@pytest.mark.parametrize(
    ("held", "authorization"),
    [
        (FileIdentity(), ""),
        (FileIdentity(token=b"secret"), "Bearer secret"),
        (FileIdentity(authorization=basic_header("jo", "pässword")), "Basic am86cMOkc3N3b3Jk"),
        (FileIdentity(token=b"secret", authorization=basic_header("jo", "x")), "Bearer secret"),
    ],
    ids=["nothing", "token", "password", "both"],
)
async def test_what_is_shown(held: FileIdentity, authorization: str) -> None:
    assert await held.current() == held.available() == Credentials(authorization)


class Server:
    """Accepts one token at a time and notes what it was shown."""

    def __init__(self, accepted: str) -> None:
        self.accepted = accepted
        self.shown: list[str] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.shown.append(request.headers.get("Authorization", "").removeprefix("Bearer "))
        return httpx2.Response(200 if self.shown[-1] == self.accepted else 401, text=request.content.decode())

    def transport(self, held: FileIdentity) -> AuthenticatedTransport:
        return AuthenticatedTransport(
            held, tls.ServerTrust(), lambda context: HttpxTransport(httpx2.MockTransport(self))
        )


async def test_a_token_that_is_not_accepted_is_read_again_and_the_request_sent_once_more(tmp_path: Path) -> None:
    """Kubelets rewrite the tokens of service accounts long before they expire, but a pod may have slept."""
    file = tmp_path / "token"
    file.write_text("one")
    server = Server("one")
    transport = server.transport(FileIdentity(token=file))
    assert (await transport.exchange(OutgoingRequest("GET", "/"))).is_success
    file.write_text("two")
    server.accepted = "two"
    answer = await transport.exchange(OutgoingRequest("POST", "/", body=b"body"))
    assert (answer.status, answer.body) == (200, b"body")
    assert (await transport.exchange(OutgoingRequest("GET", "/"))).is_success
    assert server.shown == ["one", "one", "two", "two"]


async def test_a_token_that_stays_the_same_is_not_shown_twice() -> None:
    server = Server("other")
    transport = server.transport(FileIdentity(token=b"one"))
    assert (await transport.exchange(OutgoingRequest("GET", "/"))).status == 401
    assert server.shown == ["one"]


def test_secrets_are_not_shown_in_logs() -> None:
    shown = repr(Credentials("Bearer secret", b"certificate", b"key")) + repr(
        tls.TlsMaterial(b"ca", b"certificate", b"key")
    )
    assert not any(word in shown for word in ("secret", "certificate", "key"))
