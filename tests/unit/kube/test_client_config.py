"""How the client finds its cluster, errors when it finds none, and messages about failed calls."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from pathlib import Path

import pytest

from karpenter.api.kinds import CONFIG_MAP
from karpenter.kube import config, errors
from karpenter.kube.credentials import Credentials
from karpenter.kube.error_messages import explain_error
from karpenter.kube.exec_credentials import ExecIdentity
from support.recording_server import RecordingServer

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


def with_cluster(path: Path, **cluster: object) -> Path:
    """The kubeconfig with more said about its cluster."""
    content = json.loads(path.read_text())
    content["clusters"][0]["cluster"].update(cluster)
    path.write_text(json.dumps(content))
    return path


def test_an_explicit_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "env", server="https://env")))
    connection = config.load(str(kubeconfig(tmp_path, "given", server="https://given")))
    assert (connection.server, connection.namespace, connection.context) == ("https://given", "team", "main")


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
    assert other._cluster.certificate_authority == str(tmp_path / "two" / "ca")


async def test_file_names_are_relative_to_the_file_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig(tmp_path, "one/first", current="", tokenFile="token")
    content = json.loads((tmp_path / "one/first").read_text())
    content["contexts"] = []
    (tmp_path / "one/first").write_text(json.dumps(content))
    kubeconfig(tmp_path, "two/second", tokenFile="token")
    for folder in ("one", "two"):
        (tmp_path / folder / "token").write_text(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(["one/first", "two/second"]))
    # The first to name the user wins with everything it says; its context is only in the second file.
    assert await shown(config.load()) == Credentials("Bearer one")


async def test_the_first_to_name_a_user_wins_with_everything_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kubeconfig(tmp_path, "first", username="jo", password="x")
    second = kubeconfig(tmp_path, "second", token="secret")
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, [first, second])))
    assert await shown(config.load()) == Credentials("Basic am86eA==")


async def shown(connection: config.Connection) -> Credentials:
    return await connection._identity.current()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("clusters: [", "cannot be read as YAML: line"),
        ("- 1", "expected a mapping"),
        ("{}", "context"),
        ("{current-context: other, clusters: [], contexts: []}", "'other' not found"),
        ("{current-context: c, contexts: [{name: c, context: {cluster: gone}}]}", "'gone'"),
        ("{clusters: [5]}", "not a kubeconfig"),
        ("{contexts: 5}", "not a kubeconfig"),
        ("{contexts: [{context: {}}]}", "not a kubeconfig"),
        ("{current-context: c, contexts: [{name: c}]}", "cluster '', which is not defined"),
        ("{users: [{name: a}, {name: a}]}", "defines user 'a' twice"),
        ("{current-context: 5}", "not a kubeconfig.*current-context"),
        (
            "{current-context: c, clusters: [{name: x}], contexts: [{name: c, context: {cluster: x, user: gone}}]}",
            "'gone', who is not defined",
        ),
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


def test_without_any_configuration_the_error_lists_the_options() -> None:
    with pytest.raises(config.ConfigError, match=r"KUBECONFIG is not set.*karpenter demo"):
        config.load()


async def test_a_client_announces_itself_and_its_token(tmp_path: Path) -> None:
    """OPS-360."""
    path = kubeconfig(tmp_path, "given", token="secret")
    async with config.connect(config.load(str(path))) as client:
        assert client.server == SERVER
    sent = await headers(path)
    assert [value for name, value in sent if name == "user-agent"] == [config.user_agent()]
    assert [value for name, value in sent if name == "authorization"] == ["Bearer secret"]
    assert config.user_agent().startswith("karpenter/")


_DATA = b64encode(b"text").decode()


@pytest.mark.parametrize(
    ("user", "cluster", "complaint"),
    [
        ({}, {"server": ""}, "server '' is not a URL such as"),
        ({}, {"server": "server:6443"}, "server 'server:6443' is not a URL"),
        ({}, {"server": "https:///path"}, "is not a URL"),
        ({}, {"certificate-authority-data": "x"}, "certificate-authority-data is not base64"),
        ({}, {"certificate-authority-data": _DATA}, "certificate-authority holds no certificates"),
        ({}, {"certificate-authority": "missing.crt"}, r"cannot read .*/missing\.crt: No such file"),
        ({}, {"certificate-authority": "x", "insecure-skip-tls-verify": True}, "only one of them can be meant"),
        ({}, {"proxy-url": "ftp://proxy"}, "ftp://proxy"),
        ({}, {"proxy-url": "proxy:3128"}, "proxy:3128"),
        ({"client-certificate-data": _DATA}, {}, "only one of client-certificate and client-key"),
        ({"client-key": "key"}, {}, "only one of client-certificate and client-key"),
        ({"client-certificate-data": _DATA, "client-key-data": _DATA}, {}, "are not a pair in PEM"),
        ({"client-certificate": "missing", "client-key": "missing"}, {}, r"cannot read .*/missing: No such file"),
        ({"tokenFile": "missing"}, {}, r"cannot read .*/missing: No such file"),
        ({"auth-provider": {"name": "gcp"}}, {}, "auth-provider.*use exec"),
        ({"token": "t", "as-groups": ["admins"]}, {}, r"impersonates .* without a user \(as\)"),
    ],
)
def test_what_cannot_be_used_is_one_line_with_its_place(
    tmp_path: Path, user: dict[str, object], cluster: dict[str, object], complaint: str
) -> None:
    path = with_cluster(kubeconfig(tmp_path, "given", **user), **cluster)
    with pytest.raises(config.ConfigError, match=complaint) as raised:
        config.connect(config.load(str(path)))
    assert str(raised.value).startswith(f"{path}, context main: ")
    assert "\n" not in str(raised.value)


_EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "helper"}


@pytest.mark.parametrize(
    "beside", [{"token": "secret"}, {"username": "jo", "password": "x"}], ids=["token", "password"]
)
def test_an_exec_plugin_runs_only_without_other_credentials(tmp_path: Path, beside: dict[str, object]) -> None:
    assert isinstance(config.load(str(kubeconfig(tmp_path, "given", exec=_EXEC)))._identity, ExecIdentity)
    assert not isinstance(config.load(str(kubeconfig(tmp_path, "given", exec=_EXEC, **beside)))._identity, ExecIdentity)


async def test_impersonation_headers_are_on_every_request(tmp_path: Path) -> None:
    user = {"as": "jo", "as-uid": "7", "as-groups": ["one", "two"], "as-user-extra": {"Why?": ["x", "y"]}}
    path = kubeconfig(tmp_path, "given", token="t", **user)
    sent = [(name, value) for name, value in await headers(path) if name.startswith("impersonate")]
    assert sent == [
        ("impersonate-user", "jo"),
        ("impersonate-uid", "7"),
        ("impersonate-group", "one"),
        ("impersonate-group", "two"),
        ("impersonate-extra-why%3f", "x"),
        ("impersonate-extra-why%3f", "y"),
    ]


@pytest.mark.parametrize(("wanted", "expected"), [({}, True), ({"disable-compression": True}, False)])
async def test_answers_are_compressed_unless_the_kubeconfig_minds(
    tmp_path: Path, wanted: dict[str, object], expected: bool
) -> None:
    path = with_cluster(kubeconfig(tmp_path, "given"), **wanted)
    assert ("gzip" in dict(await headers(path))["accept-encoding"]) is expected


async def headers(path: Path) -> list[tuple[str, str]]:
    """What a client of this kubeconfig sends with a request, to a server of this process."""
    async with RecordingServer().serving() as server:
        async with config.connect(config.load(str(with_cluster(path, server=server.url)))) as client:
            await client.get(CONFIG_MAP, "a", "ns")
        return server.heads[0]


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of our service account."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("own\n")
    (folder / "namespace").write_text("karpenter\n")
    monkeypatch.setattr(config, "SERVICE_ACCOUNT_DIRECTORY", folder)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return folder


async def test_a_pod_uses_its_service_account(pod: Path) -> None:
    connection = config.load()
    assert (connection.server, connection.namespace, connection.source) == (
        "https://10.0.0.1:443",
        "karpenter",
        "the pod's service account",
    )
    assert await shown(connection) == Credentials("Bearer own")
    (pod / "token").write_text("renewed")
    assert await connection._identity.refreshed(Credentials("Bearer own")) == Credentials("Bearer renewed")


@pytest.mark.parametrize(("host", "server"), [("fd00::1", "https://[fd00::1]:443"), ("api", "https://api:443")])
def test_a_pods_cluster_may_speak_ipv6(pod: Path, monkeypatch: pytest.MonkeyPatch, host: str, server: str) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    assert config.load().server == server


def test_a_pods_namespace_may_be_unknown(pod: Path) -> None:
    (pod / "namespace").unlink()
    assert config.load().namespace == "default"


def test_in_a_pod_the_mounted_authority_is_trusted(pod: Path) -> None:
    (pod / "ca.crt").write_text("nonsense")
    with pytest.raises(config.ConfigError, match="the pod's service account, context pod: certificate-authority"):
        config.connect(config.load())


def test_a_pod_without_a_token_gets_an_error_with_advice(pod: Path) -> None:
    (pod / "token").unlink()
    with pytest.raises(config.ConfigError, match="automountServiceAccountToken"):
        config.load()


def test_a_kubeconfig_comes_before_the_pods_own_cluster(
    pod: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "given")))
    assert config.load().server == SERVER


_FORBIDDEN = 'pods is forbidden: User "jo" cannot list resource "pods" in API group "" '


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.ServerUnavailable("GET /: refused"), ["cannot reach", SERVER, "refused"]),
        (errors.ServerUnavailable("CERTIFICATE_VERIFY_FAILED"), ["not trusted", "certificate-authority"]),
        (errors.ServerUnavailable("CERTIFICATE_VERIFY_FAILED: Hostname mismatch"), ["not trusted", "tls-server-name"]),
        (errors.Unauthorized("helper failed with code 1"), ["no credentials for", SERVER, "helper failed"]),
        (errors.ServerUnavailable("etcd is slow", status=500), [SERVER, "etcd is slow"]),
        (errors.Unauthorized("Unauthorized", status=401), ["credentials", "log in again"]),
        (errors.Forbidden(_FORBIDDEN + "at the cluster scope"), ["jo may not list pods at", "ClusterRole"]),
        (errors.Forbidden(_FORBIDDEN + 'in the namespace "web"'), ["in namespace web", "with a Role"]),
        (errors.Forbidden("go away"), ["forbids", "go away"]),
        (
            errors.kind_not_served("nodepools", "karpenter.sh/v1"),
            ["nodepools", "`karpenter crds | kubectl apply -f -`"],
        ),
        (errors.kind_not_served("kwoknodeclasses", "karpenter.kwok.sh/v1alpha1"), ["kwok", "karpenter crds |"]),
        (errors.kind_not_served("pods", "v1"), ["pods of v1", "a Kubernetes cluster"]),
        (errors.kind_not_served("poddisruptionbudgets", "policy/v1"), ["policy/v1", "a Kubernetes cluster"]),
        (errors.kind_not_served("leases", "coordination.k8s.io/v1"), ["leases", "a Kubernetes cluster"]),
        (errors.kind_not_served("ec2nodeclasses", "karpenter.k8s.aws/v1"), ["kinds of karpenter.k8s.aws first"]),
        (errors.NotFound("pods a not found", reason="NotFound"), ["pods a not found"]),
        (errors.TooManyRequests("busy", retry_after_seconds=3), ["3 s", "busy"]),
        (config.ConfigError("set KUBECONFIG"), ["set KUBECONFIG"]),
    ],
)
def test_every_failure_has_one_line_that_says_how_to_mend_it(error: Exception, words: list[str]) -> None:
    line = explain_error(error, SERVER)
    assert "\n" not in line
    assert all(word in line for word in words)


def test_only_our_own_kinds_are_to_be_installed_by_us() -> None:
    for plural, api_version in (("pods", "v1"), ("daemonsets", "apps/v1"), ("ec2nodeclasses", "karpenter.k8s.aws/v1")):
        line = explain_error(errors.kind_not_served(plural, api_version), SERVER)
        assert "crds" not in line.lower()
        assert "CustomResourceDefinition" not in line
