"""Which cluster is found, what is wrong when none is, and what a person is told about a failed call."""

from __future__ import annotations

import json
import os
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest

from karpenter.kube import config, errors
from karpenter.kube.credentials import CredentialsRefused, Program, ProgramAuth
from karpenter.kube.explain import explain

SERVER = "https://server:6443"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without a kubeconfig, and no pod."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)


def kubeconfig(folder: Path, name: str, *, server: str = SERVER, current: str = "main", **user: object) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "current-context": current,
        "clusters": [{"name": "main", "cluster": {"server": server}}],
        "contexts": [{"name": "main", "context": {"cluster": "main", "user": "main", "namespace": "team"}}],
        "users": [{"name": "main", "user": user or {"token": "secret"}}],
    }
    path.write_text(json.dumps(content))
    return path


def test_an_explicit_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "env", server="https://env")))
    found = config.load(str(kubeconfig(tmp_path, "given", server="https://given")))
    assert (found.server, found.namespace, found.context) == ("https://given", "team", "main")


def test_the_variable_comes_before_the_home_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig(tmp_path, "home/.kube/config", server="https://home")
    assert config.load().server == "https://home"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "env", server="https://env")))
    assert config.load().server == "https://env"


def test_several_files_are_merged_and_the_first_to_name_something_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kubeconfig(tmp_path, "one/first", server="https://first", current="")
    second = kubeconfig(tmp_path, "two/second", server="https://second")
    content = json.loads(second.read_text())
    content["clusters"].append({"name": "other", "cluster": {"server": "https://other", "certificate-authority": "ca"}})
    content["contexts"].append({"name": "other", "context": {"cluster": "other", "user": "main"}})
    second.write_text(json.dumps(content))
    files = [str(first), "", str(tmp_path / "missing"), str(second)]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(files))
    assert config.load().server == "https://first"
    other = config.load(context="other")
    assert other.server == "https://other"
    assert other._details.cluster.certificate_auth == str(tmp_path / "two" / "ca")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("clusters: [", "cannot read"),
        ("- 1", "expected a mapping"),
        ("{}", "context"),
        ("{current-context: other, clusters: [], contexts: []}", "'other' not found"),
        ("{current-context: c, contexts: [{name: c, context: {cluster: gone}}]}", "'gone'"),
        ("{clusters: [5]}", "not a kubeconfig"),
        ("{contexts: 5}", "not a kubeconfig"),
        ("{contexts: [{name: c}]}", "not a kubeconfig"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "broken"
    path.write_text(content)
    with pytest.raises(config.ConfigError, match=complaint) as raised:
        config.load(str(path))
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(config.ConfigError, match="missing"):
        config.load(str(tmp_path / "missing"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(config.ConfigError, match=r"KUBECONFIG names .*missing"):
        config.load()


def test_without_any_configuration_the_ways_out_are_told() -> None:
    with pytest.raises(config.ConfigError, match=r"KUBECONFIG is not set.*karpenter demo"):
        config.load()


async def test_a_client_announces_itself_and_its_token(tmp_path: Path) -> None:
    client = config.connect(config.load(str(kubeconfig(tmp_path, "given"))))
    async with client:
        assert client.server == SERVER
        assert client._http.headers["User-Agent"] == config.user_agent()
    assert config.user_agent().startswith("karpenter/")


def test_unusable_certificates_are_a_configuration_error(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "given")
    content = json.loads(path.read_text())
    content["clusters"][0]["cluster"]["certificate-authority"] = "missing.crt"
    path.write_text(json.dumps(content))
    with pytest.raises(config.ConfigError, match="given"):
        config.connect(config.load(str(path)))


class Helper:
    """A credential program that gives ``token-1``, ``token-2``, ... and counts its runs."""

    def __init__(self, folder: Path, expiry: datetime | None = None) -> None:
        self._count = folder / "count"
        self._path = folder / "helper"
        expires = "" if expiry is None else f', "expirationTimestamp": "{expiry.isoformat()}"'
        self._write(
            f"import json, os, pathlib\nassert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'] == 'ExecCredential'\n"
            f"count = pathlib.Path({str(self._count)!r})\n"
            "n = int(count.read_text()) + 1 if count.exists() else 1\ncount.write_text(str(n))\n"
            f"""print('{{"kind": "ExecCredential", "status": {{"token": "token-%d"{expires}}}}}' % n)\n"""
        )

    def _write(self, text: str) -> None:
        self._path.write_text(f"#!{sys.executable}\n{text}")
        self._path.chmod(self._path.stat().st_mode | stat.S_IXUSR)

    @property
    def program(self) -> Program:
        return Program("client.authentication.k8s.io/v1", str(self._path))

    async def sent(self, refused: frozenset[str] = frozenset(), requests: int = 1) -> list[str]:
        """The credentials that arrive with some requests to a server that refuses some tokens."""
        seen: list[str] = []

        def answer(request: httpx2.Request) -> httpx2.Response:
            seen.append(request.headers["Authorization"].removeprefix("Bearer "))
            return httpx2.Response(401 if seen[-1] in refused else 200)

        async with httpx2.AsyncClient(
            auth=ProgramAuth(self.program), transport=httpx2.MockTransport(answer), base_url=SERVER
        ) as http:
            for _ in range(requests):
                await http.get("/")
        return seen


async def test_a_programs_token_is_used_until_it_is_refused(tmp_path: Path) -> None:
    helper = Helper(tmp_path)
    assert await helper.sent(requests=2) == ["token-1", "token-1"]
    assert await helper.sent(frozenset({"token-2"}), requests=2) == ["token-2", "token-3", "token-3"]


@pytest.mark.parametrize(("lifetime", "expected"), [(10, ["token-1", "token-2"]), (3600, ["token-1", "token-1"])])
async def test_a_programs_token_is_renewed_before_it_expires(
    tmp_path: Path, lifetime: int, expected: list[str]
) -> None:
    helper = Helper(tmp_path, datetime.now(UTC) + timedelta(seconds=lifetime))
    assert await helper.sent(requests=2) == expected


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        (Program("client.authentication.k8s.io/v9", "x"), "v9"),
        (Program("client.authentication.k8s.io/v1", "no-such-program", install_hint="get it"), "cannot run.*get it"),
        (Program("client.authentication.k8s.io/v1", "false"), "failed with code 1"),
        (Program("client.authentication.k8s.io/v1", "echo", ("hello",)), "wrote no ExecCredential"),
        (Program("client.authentication.k8s.io/v1", "echo", ('{"status":{}}',)), "no token"),
    ],
)
async def test_a_program_that_gives_nothing_usable_is_named(program: Program, complaint: str) -> None:
    async with httpx2.AsyncClient(
        auth=ProgramAuth(program), transport=httpx2.MockTransport(lambda request: httpx2.Response(200))
    ) as http:
        with pytest.raises(CredentialsRefused, match=complaint):
            await http.get(SERVER)


async def test_a_kubeconfigs_program_is_run(tmp_path: Path) -> None:
    helper = Helper(tmp_path).program
    user = {"exec": {"apiVersion": helper.api_version, "command": helper.command, "env": [{"name": "A", "value": "b"}]}}
    client = config.connect(config.load(str(kubeconfig(tmp_path, "given", **user))))
    async with client:
        auth = client._http.auth
        assert isinstance(auth, ProgramAuth)
        assert auth._program == Program(helper.api_version, helper.command, (), {"A": "b"})


_FORBIDDEN = 'pods is forbidden: User "jo" cannot list resource "pods" in API group "" '


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.Unavailable("GET /: refused"), ["cannot reach", SERVER, "refused"]),
        (errors.Unavailable("CERTIFICATE_VERIFY_FAILED"), ["not trusted", "certificate-authority"]),
        (errors.Unavailable("etcd is slow", status=500), [SERVER, "etcd is slow"]),
        (errors.Unauthorized("Unauthorized", status=401), ["credentials", "log in again"]),
        (errors.Forbidden(_FORBIDDEN + "at the cluster scope"), ["jo may not list pods at", "ClusterRole"]),
        (errors.Forbidden(_FORBIDDEN + 'in the namespace "web"'), ["in namespace web", "with a Role"]),
        (errors.Forbidden("go away"), ["forbids", "go away"]),
        (errors.not_served("nodepools", "karpenter.sh/v1"), ["nodepools", "`karpenter crds | kubectl apply -f -`"]),
        (errors.not_served("kwoknodeclasses", "karpenter.kwok.sh/v1alpha1"), ["kwok", "karpenter crds |"]),
        (errors.not_served("pods", "v1"), ["pods of v1", "a Kubernetes cluster"]),
        (errors.not_served("poddisruptionbudgets", "policy/v1"), ["policy/v1", "a Kubernetes cluster"]),
        (errors.not_served("leases", "coordination.k8s.io/v1"), ["leases", "a Kubernetes cluster"]),
        (errors.not_served("ec2nodeclasses", "karpenter.k8s.aws/v1"), ["kinds of karpenter.k8s.aws first"]),
        (errors.NotFound("pods a not found", reason="NotFound"), ["pods a not found"]),
        (errors.TooManyRequests("busy", retry_after_seconds=3), ["3 s", "busy"]),
        (config.ConfigError("set KUBECONFIG"), ["set KUBECONFIG"]),
    ],
)
def test_every_failure_has_one_line_that_says_how_to_mend_it(error: Exception, words: list[str]) -> None:
    line = explain(error, SERVER)
    assert "\n" not in line
    assert all(word in line for word in words)


def test_only_our_own_kinds_are_to_be_installed_by_us() -> None:
    for plural, api_version in (("pods", "v1"), ("daemonsets", "apps/v1"), ("ec2nodeclasses", "karpenter.k8s.aws/v1")):
        line = explain(errors.not_served(plural, api_version), SERVER)
        assert "crds" not in line.lower()
        assert "CustomResourceDefinition" not in line
