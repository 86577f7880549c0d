"""A node joins the real control plane with the rendered user data, as kubeadm and a kubelet would."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from cryptography import x509

from controlplane import binaries
from controlplane.harness import ControlPlane, Json
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodeClaimStatus
from karpenter.api.kinds import NODE, SECRET
from karpenter.model.clock import Clock, SystemClock
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.bootstrap.bootstrap_controllers import ProviderIdController
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapMode, BootstrapSettings
from karpenter.providers.aws.bootstrap.certificate_approver import CertificateApprover
from karpenter.providers.aws.bootstrap.join_resolver import JoinResolver
from karpenter.providers.aws.bootstrap.token_issuer import TokenIssuer, missing_prerequisites
from karpenter.providers.aws.ec2_descriptions import InstanceInfo, InstancePlacement
from karpenter.providers.aws.instance.instance_info import provider_id_of
from karpenter.providers.aws.userdata import render_user_data
from kubeadm import program
from support import launch_environment
from support.certificates import Authority
from support.kubeadm_join import HttpRefused, JoiningKubelet, JoinRefused
from support.kubeadm_user_data import FIELD_REPORT, authority, joining, rendered
from support.kubeadm_user_data import cluster as a_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_BOOTSTRAP_CONTROLLERS = ("bootstrap-signer-controller", "certificatesigningrequest-approving-controller")
_SIGNING_CONTROLLER = "certificatesigningrequest-signing-controller"
_GROUP = "system:bootstrappers:kubeadm:default-node-token"
#: A user without any rights but those of ``deploy/kubeadm``.
_CONTROLLER = "nobody"
_CLIENT_ROLE = "system:certificates.k8s.io:certificatesigningrequests"
_BINDINGS = {
    "kubeadm:kubelet-bootstrap": ("system:node-bootstrapper", _GROUP),
    "kubeadm:node-autoapprove-bootstrap": (f"{_CLIENT_ROLE}:nodeclient", _GROUP),
    "kubeadm:node-autoapprove-certificate-rotation": (f"{_CLIENT_ROLE}:selfnodeclient", "system:nodes"),
}
#: The field report has the usual port; the one of this API server is chosen when it starts.
_USER_DATA = FIELD_REPORT.replace(":6443", ":${CLUSTER_ENDPOINT_PORT}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that issues certificates, with what `kubeadm init` puts into a cluster."""
    authority = Authority(tmp_path_factory.mktemp("authority"), "kubelets")
    arguments = {
        binaries.API_SERVER: (
            "--enable-bootstrap-token-auth=true",
            "--authorization-mode=Node",
            "--enable-admission-plugins=NodeRestriction",
            f"--client-ca-file={authority.certificate_file}",
        ),
        binaries.CONTROLLER_MANAGER: (
            f"--cluster-signing-cert-file={authority.certificate_file}",
            f"--cluster-signing-key-file={authority.key_file}",
        ),
    }
    controllers = (*_BOOTSTRAP_CONTROLLERS, _SIGNING_CONTROLLER)
    with ControlPlane(controllers=True, more_controllers=controllers, more_arguments=arguments) as running:
        _initialize(running)
        _install_roles(running)
        yield running


def _initialize(plane: ControlPlane) -> None:
    """The objects of kubeadm's phases upload-config and bootstrap-token."""
    for name, (role, group) in _BINDINGS.items():
        plane.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", _binding(name, role, group))
    authority = base64.b64encode(plane.certificate).decode()
    kubeconfig = msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "", "cluster": {"server": plane.server, "certificate-authority-data": authority}}],
        }
    ).decode()
    info: Json = {"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": kubeconfig}}
    plane.until(lambda: _has_public_namespace(plane), "the namespace kube-public")
    plane.request("POST", "/api/v1/namespaces/kube-public/configmaps", info)
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-info"], "verbs": ["get"]}
    roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-public"
    plane.request("POST", f"{roles}/roles", {"metadata": {"name": "cluster-info"}, "rules": [rule]})
    anonymous = {"kind": "User", "name": "system:anonymous", "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "Role", "name": "cluster-info", "apiGroup": "rbac.authorization.k8s.io"}
    binding: Json = {"metadata": {"name": "cluster-info"}, "roleRef": reference, "subjects": [anonymous]}
    plane.request("POST", f"{roles}/rolebindings", binding)


def _has_public_namespace(plane: ControlPlane) -> bool:
    return any(
        entry["metadata"]["name"] == "kube-public" for entry in plane.request("GET", "/api/v1/namespaces")["items"]
    )


def _binding(name: str, role: str, group: str) -> Json:
    api = "rbac.authorization.k8s.io"
    return {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": api, "kind": "Group", "name": group}],
    }


def _node_class(user_data: str) -> EC2NodeClass:
    plain = launch_environment.node_class({"ami_family": "Custom", "user_data": user_data})
    return launch_environment.replaced_annotations(plain, {"karpenter.k8s.aws/bootstrap": "kubeadm"})


def _install_roles(plane: ControlPlane) -> None:
    """The roles of ``deploy/kubeadm``, for the user whose client the controllers of these tests have."""
    subject = {"kind": "User", "name": _CONTROLLER, "apiGroup": "rbac.authorization.k8s.io"}
    documents = yaml.safe_load_all((Path(__file__).parents[2] / "deploy" / "kubeadm" / "karpenter.yaml").read_text())
    for document in documents:
        if document["apiVersion"] != "rbac.authorization.k8s.io/v1":
            continue
        namespace = document["metadata"].get("namespace")
        path = "/apis/rbac.authorization.k8s.io/v1" + (f"/namespaces/{namespace}" if namespace else "")
        body = {**document, "subjects": [subject]} if "subjects" in document else document
        plane.request("POST", f"{path}/{document['kind'].lower()}s", body)


class _EarlierClock(Clock):
    """A clock that is an hour late, so that what it dates has expired."""

    def now(self):
        return SystemClock().now() - timedelta(hours=1)


async def _user_data(plane: ControlPlane, name: str, clock: Clock, template: str = _USER_DATA) -> str:
    """The user data of a claim's instance, as a launch renders it; the token is in the cluster."""
    info = AwsClusterInfo("prod", "eu-west-1", plane.server, base64.b64encode(plane.certificate).decode(), "1.35")
    settings = BootstrapSettings()
    async with plane.client(_CONTROLLER) as kube:
        resolver = JoinResolver(TokenIssuer(kube, settings, "prod", clock), None, settings, "prod")
        join = await resolver.parameters(launch_environment.claim(name), _node_class(template))
    assert join is not None
    return render_user_data(joining(template, info, join)).decode()


def test_a_node_joins_with_its_token_registers_renews_and_may_do_no_more(cluster: ControlPlane) -> None:
    """AWS-900, AWS-905 to AWS-910, AWS-920, AWS-935: discovery, TLS bootstrap, RBAC and NodeRestriction of the real server."""
    text = asyncio.run(_user_data(cluster, "one", SystemClock()))
    kubelet = JoiningKubelet.joined("ip-10-0-1-1.ec2.internal", text)
    created = kubelet.register("aws:///eu-west-1a/i-0one")
    assert created["spec"]["providerID"] == "aws:///eu-west-1a/i-0one"
    kubelet.renew()
    assert kubelet.api.request("GET", NODE.path(name=kubelet.name))["metadata"]["name"] == kubelet.name
    other = replace(kubelet, name="ip-10-0-1-9.ec2.internal")
    other.api = kubelet.api
    for refused in (
        lambda: other.register("aws:///eu-west-1a/i-0other"),
        lambda: kubelet.api.request("GET", SECRET.path("kube-system")),
    ):
        with pytest.raises(HttpRefused) as error:
            refused()
        assert error.value.status == 403


def test_a_wrong_hash_is_refused_before_the_token_is_used(cluster: ControlPlane) -> None:
    """AWS-921: the node does not trust a cluster whose CA it cannot recognize."""
    text = asyncio.run(_user_data(cluster, "two", SystemClock()))
    digest = text.rpartition("sha256:")[2].strip()
    with pytest.raises(JoinRefused, match="no CA of the pinned hash"):
        JoiningKubelet.joined("two", text.replace(digest, "0" * 64))


def test_a_wrong_secret_is_refused_by_the_signature(cluster: ControlPlane) -> None:
    """AWS-910: only who knows the secret part signed cluster-info."""
    text = asyncio.run(_user_data(cluster, "three", SystemClock()))
    token = text.partition("--token ")[2].partition(" ")[0]
    with pytest.raises(JoinRefused, match="signature of cluster-info is wrong"):
        JoiningKubelet.joined("three", text.replace(token, token[:7] + "0" * 16))


def test_an_expired_token_does_not_join(cluster: ControlPlane) -> None:
    """AWS-938: the control plane neither signs for it nor takes it."""
    text = asyncio.run(_user_data(cluster, "four", _EarlierClock()))
    with pytest.raises(JoinRefused, match="no signature of token"):
        JoiningKubelet.joined("four", text)


@dataclass
class _Cloud:
    """One instance and its NodeClaim, as the controllers see them; the Node registers when ``node_name`` is known."""

    number: int
    node_name: str = ""

    @property
    def address(self) -> str:
        return f"10.0.2.{self.number}"

    @property
    def info(self) -> InstanceInfo:
        return InstanceInfo(
            instance_id=f"i-{self.number}",
            placement=InstancePlacement(availability_zone="eu-west-1a"),
            private_ip_address=self.address,
            private_dns_name=f"ip-10-0-2-{self.number}.ec2.internal",
        )

    async def describe(self, instance_id: str) -> InstanceInfo:
        assert instance_id == self.info.instance_id
        return self.info

    def claims(self) -> tuple[NodeClaim, ...]:
        status = NodeClaimStatus(provider_id=provider_id_of(self.info), node_name=self.node_name)
        return (msgspec.structs.replace(launch_environment.claim("one"), status=status),)

    def node_of(self, instance_id: str) -> None:
        return None


def test_a_node_that_joins_without_provider_id_gets_it_and_then_its_serving_certificate(cluster: ControlPlane) -> None:
    """AWS-927, AWS-937, AWS-940, AWS-T913, AWS-T916: with the roles of ``deploy/kubeadm`` and no others."""
    text = asyncio.run(_user_data(cluster, "five", SystemClock()))
    cloud = _Cloud(number=5)
    kubelet = JoiningKubelet.joined("worker-five", text)
    kubelet.register()
    kubelet.report_address(cloud.address)
    foreign = kubelet.request_serving_certificate("worker-five", cloud.address, "10.96.0.1")
    own = kubelet.request_serving_certificate("ip-10-0-2-5", cloud.address)

    async def controllers() -> None:
        async with cluster.client(_CONTROLLER) as kube:
            kubeadm = BootstrapSettings(mode=BootstrapMode.KUBEADM)
            assert await ProviderIdController(kube, cloud, cloud, kubeadm).reconcile(kubelet.name) is None
            approver = CertificateApprover(kube, cloud, cloud, SystemClock())
            await approver.reconcile()
            assert "conditions" not in _signing_request(cluster, own)["status"], "the Node is not matched yet"
            cloud.node_name = kubelet.name
            await approver.reconcile()

    asyncio.run(controllers())
    node = cluster.request("GET", NODE.path(name=kubelet.name))
    assert node["spec"]["providerID"] == "aws:///eu-west-1a/i-5"
    certificate = x509.load_pem_x509_certificate(kubelet.issued_certificate(own))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["ip-10-0-2-5", cloud.address]
    assert _signing_request(cluster, foreign)["status"] == {}


def _signing_request(plane: ControlPlane, name: str) -> dict[str, Any]:
    return dict(plane.request("GET", f"/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}"))


def test_a_missing_binding_is_found_on_the_real_server(cluster: ControlPlane) -> None:
    """AWS-936, AWS-T915: what kubeadm makes is enough; without one of its bindings nodes cannot join."""

    async def missing() -> tuple[str, ...]:
        async with cluster.client(_CONTROLLER) as kube:
            return await missing_prerequisites(kube, (_GROUP,))

    assert asyncio.run(missing()) == ()
    name, (role, group) = "kubeadm:node-autoapprove-bootstrap", _BINDINGS["kubeadm:node-autoapprove-bootstrap"]
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    cluster.request("DELETE", f"{path}/{name}")
    try:
        (text,) = asyncio.run(missing())
    finally:
        cluster.request("POST", path, _binding(name, role, group))
    assert text.startswith(f"ClusterRoleBinding {name}")


# -- kubeadm itself -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def kubeadm_program() -> None:
    """kubeadm can be run. Without it the test fails with the reason: nothing is skipped."""
    program.binary()


#: Up to 1.36 kubeadm reads v1beta3, too, which the newest nodes that it is written for have in 1.30.
_READ_VERSIONS = ["1.30", "1.33"] if binaries.minor_release() < 37 else ["1.33"]


@pytest.mark.parametrize("version", _READ_VERSIONS)
def test_kubeadm_takes_the_join_configuration_of_a_node(kubeadm_program: None, tmp_path: Path, version: str) -> None:
    """AWS-925, AWS-T911: v1beta3 and v1beta4, decoded strictly by kubeadm and validated; an unknown field is refused."""
    config = tmp_path / "join.yaml"
    config.write_text(rendered("${JOIN_CONFIG}\n", a_cluster(authority("ca"), version=version)))
    program.validate(config)
    config.write_text(config.read_text().replace("tlsBootstrapToken:", "tlsBootstrapTokn:"))
    with pytest.raises(program.KubeadmFailed, match=r'unknown field "discovery\.tlsBootstrapTokn"'):
        program.validate(config)


def test_kubeadm_itself_discovers_the_cluster_by_a_rendered_join_configuration(
    kubeadm_program: None, cluster: ControlPlane, tmp_path: Path
) -> None:
    """AWS-920, AWS-925: token, signature and CA hash verified by kubeadm's own phase; another hash is refused."""
    _upload_configuration(cluster)
    text = asyncio.run(_user_data(cluster, "by-kubeadm", SystemClock(), "${JOIN_CONFIG}\n"))
    config = tmp_path / "join.yaml"
    config.write_text(text)
    program.preflight(config)
    config.write_text(re.sub(r"sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, text))
    assert config.read_text() != text
    with pytest.raises(program.KubeadmFailed, match="cluster CA found in cluster-info ConfigMap is invalid"):
        program.preflight(config)


def _upload_configuration(plane: ControlPlane) -> None:
    """The objects of kubeadm's phase upload-config that a joining node reads under its token."""
    configuration = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "kubernetesVersion": binaries.release(),
    }
    data: Json = {"ClusterConfiguration": yaml.safe_dump(configuration)}
    plane.request(
        "POST", "/api/v1/namespaces/kube-system/configmaps", {"metadata": {"name": "kubeadm-config"}, "data": data}
    )
    kubelet: Json = {"kubelet": "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"}
    plane.request(
        "POST", "/api/v1/namespaces/kube-system/configmaps", {"metadata": {"name": "kubelet-config"}, "data": kubelet}
    )
    api = "rbac.authorization.k8s.io"
    names: list[Json] = ["kubeadm-config", "kubelet-config"]
    rule: Json = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": names, "verbs": ["get"]}
    path = f"/apis/{api}/v1/namespaces/kube-system"
    plane.request("POST", f"{path}/roles", {"metadata": {"name": "kubeadm:nodes-kubeadm-config"}, "rules": [rule]})
    binding: Json = {
        "metadata": {"name": "kubeadm:nodes-kubeadm-config"},
        "roleRef": {"apiGroup": api, "kind": "Role", "name": "kubeadm:nodes-kubeadm-config"},
        "subjects": [{"apiGroup": api, "kind": "Group", "name": _GROUP}],
    }
    plane.request("POST", f"{path}/rolebindings", binding)
