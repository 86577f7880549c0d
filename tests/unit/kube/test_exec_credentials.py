"""Exec credential plugins: their input, their answers, and how often they run."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest

from karpenter.api.kinds import POD
from karpenter.kube import config, errors, exec_credentials, http_connections
from karpenter.kube.client import KubeClient
from karpenter.kube.credentials import Credentials, CredentialsRefused
from karpenter.kube.exec_credentials import ExecIdentity, ExecPlugin, InteractiveMode
from support.certificates import Authority
from support.httpx_transport import HttpxTransport

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"
SERVER = "https://server:6443"


class Clock:
    """Stands still until it is moved on."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self._now

    def pass_seconds(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


class Script:
    """A program that gives ``token-1``, ``token-2``, … and counts its runs.

    ``expires`` follows in its answer; what is in the file ``trouble`` it complains of instead, and ends with 3.
    """

    def __init__(self, folder: Path, *, expires: datetime | None = None, version: str = V1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._count, self._trouble = folder / "helper", folder / "count", folder / "trouble"
        status = {"token": "token-%d"} | ({"expirationTimestamp": expires.isoformat()} if expires else {})
        answer = {"kind": "ExecCredential", "apiVersion": version, "status": status}
        self.write(
            "import pathlib, time, sys\n"
            f"count, trouble = pathlib.Path({str(self._count)!r}), pathlib.Path({str(self._trouble)!r})\n"
            "n = int(count.read_text()) + 1 if count.exists() else 1\n"
            "count.write_text(str(n))\n"
            "if trouble.exists():\n    print(trouble.read_text(), file=sys.stderr)\n    sys.exit(3)\n"
            f"print({json.dumps(answer)!r} % n)\n"
        )
        self.program = ExecPlugin(version, str(self.path))

    def write(self, text: str) -> None:
        self.path.write_text(f"#!{sys.executable}\n{text}")
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)

    @property
    def runs(self) -> int:
        return int(self._count.read_text()) if self._count.exists() else 0

    def fail(self, complaint: str) -> None:
        self._trouble.write_text(complaint)

    def recover(self) -> None:
        self._trouble.unlink()


def bearer(number: int) -> str:
    return f"Bearer token-{number}"


async def test_what_a_program_gave_is_used_until_it_is_refused(tmp_path: Path) -> None:
    clock = Clock()
    helper = ExecIdentity(Script(tmp_path).program, clock)
    assert helper.available() == Credentials()
    first = await helper.current()
    clock.pass_seconds(3600)
    assert await helper.current() == first == Credentials(bearer(1))
    assert (await helper.refreshed(first)).authorization == bearer(2)
    assert (await helper.current()).authorization == bearer(2)


async def test_a_refusal_of_what_has_been_renewed_meanwhile_takes_the_new(tmp_path: Path) -> None:
    clock, script = Clock(), Script(tmp_path)
    helper = ExecIdentity(script.program, clock)
    old = await helper.current()
    clock.pass_seconds(60)
    new = await helper.refreshed(old)
    clock.pass_seconds(60)
    assert await helper.refreshed(old) == new
    assert script.runs == 2


async def test_a_server_that_refuses_everything_does_not_have_the_program_run_without_pause(tmp_path: Path) -> None:
    clock, script = Clock(), Script(tmp_path)
    helper = ExecIdentity(script.program, clock)
    shown = await helper.current()
    for _ in range(20):
        shown = await helper.refreshed(shown)
        clock.pass_seconds(1)
    assert script.runs == 4


@pytest.mark.parametrize(("before_expiry_seconds", "runs"), [(31, 1), (29, 2)])
async def test_what_expires_is_renewed_half_a_minute_before(
    tmp_path: Path, before_expiry_seconds: int, runs: int
) -> None:
    clock = Clock()
    script = Script(tmp_path, expires=clock.now() + timedelta(hours=1))
    helper = ExecIdentity(script.program, clock)
    await helper.current()
    clock.pass_seconds(3600 - before_expiry_seconds)
    await helper.current()
    assert script.runs == runs


async def test_what_lives_for_less_than_half_a_minute_is_not_fetched_for_each_request(tmp_path: Path) -> None:
    clock = Clock()
    script = Script(tmp_path, expires=clock.now() + timedelta(seconds=10))
    helper = ExecIdentity(script.program, clock)
    for _ in range(5):
        await helper.current()
    assert script.runs == 1


async def test_a_renewal_that_fails_leaves_what_has_not_expired(tmp_path: Path) -> None:
    clock = Clock()
    script = Script(tmp_path, expires=clock.now() + timedelta(seconds=100))
    helper = ExecIdentity(script.program, clock)
    await helper.current()
    script.fail("no network")
    clock.pass_seconds(80)
    assert (await helper.current()).authorization == bearer(1)
    clock.pass_seconds(21)
    with pytest.raises(CredentialsRefused, match="no network"):
        await helper.current()


async def test_a_time_without_a_zone_is_utc(tmp_path: Path) -> None:
    clock = Clock()
    script = Script(tmp_path, expires=(clock.now() + timedelta(hours=1)).replace(tzinfo=None))
    helper = ExecIdentity(script.program, clock)
    assert (await helper.current()).authorization == bearer(1)
    assert (await helper.current()).authorization == bearer(1)


async def test_concurrent_callers_share_one_run(tmp_path: Path) -> None:
    clock, script = Clock(), Script(tmp_path)
    helper = ExecIdentity(script.program, clock)
    assert {
        credentials.authorization for credentials in await asyncio.gather(*(helper.current() for _ in range(20)))
    } == {bearer(1)}
    clock.pass_seconds(60)
    refused = await helper.current()
    renewed = await asyncio.gather(*(helper.refreshed(refused) for _ in range(20)))
    assert {credentials.authorization for credentials in renewed} == {bearer(2)}
    assert script.runs == 2


async def test_a_cancelled_caller_does_not_cancel_the_run_for_the_others(tmp_path: Path) -> None:
    script = Script(tmp_path)
    helper = ExecIdentity(script.program)
    impatient, patient = asyncio.create_task(helper.current()), asyncio.create_task(helper.current())
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).authorization == bearer(1)
    assert script.runs == 1


async def test_a_failure_is_shared_too_and_not_repeated_at_once(tmp_path: Path) -> None:
    clock, script = Clock(), Script(tmp_path)
    script.fail("log in first")
    helper = ExecIdentity(script.program, clock)
    outcomes = await asyncio.gather(*(helper.current() for _ in range(20)), return_exceptions=True)
    assert {str(outcome) for outcome in outcomes} == {f"{script.path} failed with code 3: log in first"}
    with pytest.raises(CredentialsRefused, match="log in first"):
        await helper.current()
    assert script.runs == 1
    script.recover()
    clock.pass_seconds(5)
    assert (await helper.current()).authorization == bearer(2)


async def test_a_program_that_hangs_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_credentials, "_RUN_TIMEOUT_SECONDS", 0.3)
    script, child = Script(tmp_path), tmp_path / "child"
    script.write(
        "import pathlib, subprocess\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(child)!r}).write_text(str(child.pid))\n"
        "child.wait()\n"
    )
    with pytest.raises(CredentialsRefused, match=r"helper gave no answer within 0\.3 s"):
        await ExecIdentity(script.program).current()
    deadline = asyncio.get_running_loop().time() + 10
    while child.exists() and Path(f"/proc/{child.read_text()}").exists():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


def echoing(**answer: object) -> ExecPlugin:
    return ExecPlugin(V1, "echo", (json.dumps({"kind": "ExecCredential", "apiVersion": V1, **answer}),))


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        (
            ExecPlugin(V1, "no-such-program", install_hint="get it\nthere"),
            "cannot run no-such-program: .*; get it there$",
        ),
        (ExecPlugin(V1, "false"), "false failed with code 1"),
        (ExecPlugin(V1, "echo", ("hello",)), "wrote no ExecCredential"),
        (echoing(status={"token": 5}), "wrote no ExecCredential"),
        (echoing(status={"token": "t", "expirationTimestamp": "tomorrow"}), "wrote no ExecCredential"),
        (echoing(status={"token": "t"}, kind="Pod"), "wrote Pod of .*asks for ExecCredential"),
        (echoing(status={"token": "t"}, apiVersion=V1BETA1), "v1beta1; the kubeconfig asks for .*v1$"),
        (ExecPlugin(V1, "echo", ("{}",)), "wrote no kind of no version"),
        (echoing(), "without a status"),
        (echoing(status=None), "without a status"),
        (echoing(status={}), "neither a token nor a client certificate"),
        (echoing(status={"clientKeyData": "k"}), "only one of client certificate and key"),
        (echoing(status={"clientCertificateData": "c", "clientKeyData": "k"}), "are not a pair in PEM"),
        (ExecPlugin(V1, "echo", interactive_mode=InteractiveMode.ALWAYS), "needs a terminal"),
    ],
)
async def test_a_program_that_gives_nothing_usable_is_named(wanted: ExecPlugin, complaint: str) -> None:
    with pytest.raises(CredentialsRefused, match=complaint) as raised:
        await ExecIdentity(wanted).current()
    assert "\n" not in str(raised.value)


async def test_a_program_may_give_a_client_certificate(tmp_path: Path) -> None:
    user = Authority(tmp_path, "authority").issue("jo")
    pair = {"clientCertificateData": user.certificate.decode(), "clientKeyData": user.key.decode()}
    assert await ExecIdentity(echoing(status=pair)).current() == Credentials("", user.certificate, user.key)
    both = await ExecIdentity(echoing(status={**pair, "token": "t"})).current()
    assert both == Credentials("Bearer t", user.certificate, user.key)


# -- by way of a kubeconfig -------------------------------------------------------------------------------------------


def kubeconfig(folder: Path, program: dict[str, object], **cluster: object) -> config.Connection:
    content = {
        "current-context": "main",
        "clusters": [{"name": "main", "cluster": {"server": SERVER, **cluster}}],
        "contexts": [{"name": "main", "context": {"cluster": "main", "user": "main"}}],
        "users": [{"name": "main", "user": {"exec": program}}],
    }
    path = folder / "config"
    path.write_text(json.dumps(content))
    return config.load(str(path))


def telling(folder: Path, expression: str) -> str:
    """A program that gives what a Python expression says of its surroundings as a token, in JSON."""
    script = Script(folder)
    script.write(
        "import json, os, sys\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "answer = {'kind': 'ExecCredential', 'apiVersion': info['apiVersion'], 'status': {}}\n"
        f"answer['status']['token'] = json.dumps({expression})\n"
        "print(json.dumps(answer))\n"
    )
    return str(script.path)


async def plugin_input(connection: config.Connection) -> object:
    credentials = await connection._identity.current()
    return json.loads(credentials.authorization.removeprefix("Bearer "))


@pytest.mark.parametrize("version", [V1, V1BETA1])
async def test_an_exec_plugin_gets_the_api_version_its_arguments_and_variables(tmp_path: Path, version: str) -> None:
    command = telling(tmp_path, "[info, sys.argv[1:], os.environ['GREETING'], os.environ['HOME']]")
    wanted = {
        "apiVersion": version,
        "command": command,
        "args": ["--for", "me"],
        "env": [{"name": "GREETING", "value": "hello"}],
    }
    info, arguments, greeting, home = await plugin_input(kubeconfig(tmp_path, wanted))
    assert info == {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    assert (arguments, greeting) == (["--for", "me"], "hello")
    assert home  # the rest of our environment is there too


async def test_an_exec_plugin_gets_cluster_information_on_request(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    wanted = {"apiVersion": V1, "command": telling(tmp_path, "info['spec']"), "provideClusterInfo": True}
    cluster = {
        "certificate-authority": "authority.crt",
        "tls-server-name": "api",
        "proxy-url": "http://proxy:3128",
        "disable-compression": True,
        "extensions": [
            {"name": "of-another-tool", "extension": {"x": 1}},
            {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "me", "n": 1}},
        ],
    }
    spec = await plugin_input(kubeconfig(tmp_path, wanted, **cluster))
    described = spec["cluster"]
    assert base64.b64decode(described.pop("certificate-authority-data")) == authority.certificate.strip()
    assert described == {
        "server": SERVER,
        "tls-server-name": "api",
        "proxy-url": "http://proxy:3128",
        "disable-compression": True,
        "config": {"audience": "me", "n": 1},
    }


@pytest.mark.parametrize(("mode", "interactive"), [("Never", False), ("IfAvailable", True), ("Always", True)])
async def test_a_program_may_talk_to_the_person_at_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, interactive: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    wanted = {"apiVersion": V1, "command": telling(tmp_path, "info['spec']"), "interactiveMode": mode}
    assert await plugin_input(kubeconfig(tmp_path, wanted)) == {"interactive": interactive}


async def test_a_command_with_a_slash_is_beside_the_kubeconfig(tmp_path: Path) -> None:
    telling(tmp_path / "bin", "'found'")
    assert await plugin_input(kubeconfig(tmp_path, {"apiVersion": V1, "command": "./bin/helper"})) == "found"


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}, "v1alpha1.*v1beta1 are known"),
        ({"command": "x"}, "speaks ''"),
        ({"apiVersion": V1, "command": "x", "interactiveMode": "Often"}, "'Often'; Never, IfAvailable, Always are"),
        ({"apiVersion": V1}, "command"),
        ({"apiVersion": V1, "command": "x", "env": [{"value": "v"}]}, "name"),
    ],
)
def test_an_exec_plugin_that_cannot_run_is_reported_before_it_is_needed(
    tmp_path: Path, wanted: dict[str, object], complaint: str
) -> None:
    with pytest.raises(config.ConfigError, match=complaint):
        kubeconfig(tmp_path, wanted)


Answer = Callable[[httpx2.Request], Awaitable[httpx2.Response]]


def connected(connection: config.Connection, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> KubeClient:
    """A client whose requests are answered here."""
    monkeypatch.setattr(http_connections, "HttpConnections", lambda *_: HttpxTransport(httpx2.MockTransport(answer)))
    return config.connect(connection)


async def test_clients_of_one_connection_share_a_run_its_result_and_its_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_credentials, "_MIN_RUN_INTERVAL", timedelta())
    accepted, seen = {bearer(1)}, []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers["Authorization"])
        return httpx2.Response(200 if seen[-1] in accepted else 401, json={"metadata": {"name": "a"}})

    script = Script(tmp_path)
    connection = kubeconfig(tmp_path, {"apiVersion": V1, "command": str(script.path)})
    clients = [connected(connection, answer, monkeypatch) for _ in range(4)]
    await asyncio.gather(*(client.get(POD, "a", "ns") for client in clients for _ in range(5)))
    assert seen == [bearer(1)] * 20

    accepted, seen[:] = {bearer(2)}, []
    await asyncio.gather(*(client.get(POD, "a", "ns") for client in clients for _ in range(5)))
    assert sorted(seen) == [bearer(1)] * 20 + [bearer(2)] * 20
    assert script.runs == 2
    for client in clients:
        await client.aclose()


async def test_a_failing_exec_plugin_raises_in_every_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        raise AssertionError("nothing to show, so nothing to send")

    connection = kubeconfig(tmp_path, {"apiVersion": V1, "command": "no-such-program", "installHint": "get it"})
    async with connected(connection, answer, monkeypatch) as client:
        with pytest.raises(errors.Unauthorized, match=r"cannot run no-such-program.*get it") as raised:
            await client.get(POD, "a", "ns")
        assert raised.value.status == 0
