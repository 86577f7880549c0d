"""Which serving certificates of kubelets are approved (AWS-937), and what a cluster must have (AWS-936)."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from karpenter.api.core import ConfigMap
from karpenter.api.kinds import CONFIG_MAP, KINDS
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.kube.errors import Forbidden
from karpenter.providers.aws.bootstrap.bootstrap_objects import (
    CLUSTER_ROLE_BINDING,
    BindingSubject,
    CertificateSigningRequest,
    ClusterRoleBinding,
    RoleReference,
    SigningRequestSpec,
    SigningRequestStatus,
)
from karpenter.providers.aws.bootstrap.certificate_approver import is_undecided, refusal
from karpenter.providers.aws.bootstrap.token_issuer import missing_prerequisites
from karpenter.providers.aws.ec2_descriptions import InstanceInfo
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.ec2_instance_types import START
from support.manual_clock import ManualClock
from support.node_class_environment import NodeClassEnvironment

_INFO = InstanceInfo(
    instance_id="i-1", private_ip_address="10.0.0.1", private_dns_name="ip-10-0-0-1.eu-west-1.compute.internal"
)
_USER = "system:node:ip-10-0-0-1.eu-west-1.compute.internal"
_KEY = ec.generate_private_key(ec.SECP256R1())
_USUAL_NAMES = (
    x509.DNSName("ip-10-0-0-1.eu-west-1.compute.internal"),
    x509.DNSName("ip-10-0-0-1"),
    x509.IPAddress(ipaddress.ip_address("10.0.0.1")),
)


def _pem(names: tuple[x509.GeneralName, ...], common_name: str, organizations: tuple[str, ...]) -> str:
    subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, text) for text in organizations]
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([*subject, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return base64.b64encode(builder.sign(_KEY, hashes.SHA256()).public_bytes(Encoding.PEM)).decode()


def _request(
    names: tuple[x509.GeneralName, ...] = _USUAL_NAMES,
    common_name: str = _USER,
    organizations: tuple[str, ...] = ("system:nodes",),
    **spec: Any,
) -> CertificateSigningRequest:
    usual: dict[str, Any] = {
        "request": _pem(names, common_name, organizations),
        "signer_name": "kubernetes.io/kubelet-serving",
        "usages": ("digital signature", "server auth"),
        "username": _USER,
        "groups": ("system:nodes", "system:authenticated"),
    }
    return CertificateSigningRequest(spec=SigningRequestSpec(**{**usual, **spec}))


def test_names_and_addresses_of_the_instance_are_approved() -> None:
    """AWS-937: what a kubelet requests by default."""
    assert refusal(_request(), _INFO) == ""
    assert refusal(_request(usages=("digital signature", "key encipherment", "server auth")), _INFO) == ""


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        pytest.param(
            _request((*_USUAL_NAMES, x509.IPAddress(ipaddress.ip_address("10.96.0.1")))),
            "10.96.0.1: not of instance i-1",
            id="AWS-T916: foreign IP",
        ),
        pytest.param(_request((x509.DNSName("kubernetes.default"),)), "kubernetes.default: not of", id="foreign name"),
        pytest.param(_request((x509.RFC822Name("10.0.0.1"),)), "10.0.0.1: not of", id="e-mail"),
        pytest.param(_request((x509.UniformResourceIdentifier("i-1"),)), "i-1: not of", id="URI"),
        pytest.param(_request(()), "neither a DNS name nor an IP", id="no names"),
        pytest.param(_request(username="system:admin"), "system:admin is no node", id="not a node"),
        pytest.param(_request(groups=("a",)), "is no node", id="not in the group of nodes"),
        pytest.param(_request(common_name="system:node:other"), "common name is not", id="another's name"),
        pytest.param(_request(organizations=("system:nodes", "x")), "organization is not", id="more groups"),
        pytest.param(_request(organizations=()), "organization is not", id="no group"),
        pytest.param(_request(usages=("server auth", "client auth")), "usages are", id="client auth"),
        pytest.param(_request(usages=("digital signature",)), "usages are", id="no server auth"),
        pytest.param(_request(request="e30="), "cannot be read", id="no PEM"),
        pytest.param(_request(request="%"), "cannot be read", id="no base64"),
    ],
)
def test_other_certificate_requests_are_not_approved(request_: CertificateSigningRequest, reason: str) -> None:
    """AWS-937, AWS-T916."""
    assert reason in refusal(request_, _INFO)


def test_only_undecided_requests_of_the_serving_signer_are_checked() -> None:
    """AWS-937: a manual denial is kept."""
    denied = SigningRequestStatus(conditions=(Condition(type="Denied", status="True"),))
    assert is_undecided(_request())
    assert not is_undecided(_request(signer_name="kubernetes.io/kube-apiserver-client"))
    assert not is_undecided(CertificateSigningRequest(spec=_request().spec, status=denied))


_GROUP = "system:bootstrappers:kubeadm:default-node-token"
_APPROVAL = "system:certificates.k8s.io:certificatesigningrequests"
_BINDINGS = {
    "kubeadm:kubelet-bootstrap": ("system:node-bootstrapper", _GROUP),
    "kubeadm:node-autoapprove-bootstrap": (f"{_APPROVAL}:nodeclient", _GROUP),
    "kubeadm:node-autoapprove-certificate-rotation": (f"{_APPROVAL}:selfnodeclient", "system:nodes"),
}


def _missing(*left_out: str, info: dict[str, str] | None = {"kubeconfig": "x"}, prefix: str = "") -> tuple[str, ...]:  # noqa: B006
    async def main() -> tuple[str, ...]:
        kube = MemoryKube(MemoryServer(ManualClock(START), kinds=(*KINDS.values(), CLUSTER_ROLE_BINDING)))
        for name, (role, group) in _BINDINGS.items():
            if name not in left_out:
                binding = ClusterRoleBinding(
                    metadata=ObjectMeta(name=prefix + name.replace(":", "-")),
                    role_ref=RoleReference(kind="ClusterRole", name=role),
                    subjects=(BindingSubject(kind="Group", name=group),),
                )
                await kube.create(CLUSTER_ROLE_BINDING, binding)
        if info is not None:
            meta = ObjectMeta(name="cluster-info", namespace="kube-public")
            await kube.create(CONFIG_MAP, ConfigMap(metadata=meta, data=info))
        return await missing_prerequisites(kube, (_GROUP,))

    return asyncio.run(main())


def test_the_objects_of_kubeadm_init_suffice_under_any_name() -> None:
    """AWS-936: equivalents by role and group."""
    assert _missing() == ()
    assert _missing(prefix="our-own-") == ()


def test_each_missing_prerequisite_is_named_with_its_role_and_group() -> None:
    """AWS-936, AWS-T915."""
    (text,) = _missing("kubeadm:node-autoapprove-bootstrap")
    assert (
        text
        == f"ClusterRoleBinding kubeadm:node-autoapprove-bootstrap (ClusterRole {_APPROVAL}:nodeclient for group {_GROUP})"
    )
    assert len(_missing(*_BINDINGS, info=None)) == 4
    assert _missing(info={}) == ("key kubeconfig in ConfigMap kube-public/cluster-info",)


def test_a_prerequisite_that_cannot_be_read_is_reported_with_the_fix() -> None:
    """AWS-936: the message names the missing roles of this mode."""

    class Refusing:
        async def list(self, *_: object) -> None:
            raise Forbidden("no")

        async def get(self, *_: object) -> None:
            raise Forbidden("no")

    texts = asyncio.run(missing_prerequisites(Refusing(), (_GROUP,)))
    assert len(texts) == 2
    assert all("settings.bootstrapMode" in text for text in texts)


def test_a_class_whose_instances_cannot_join_is_not_ready_with_a_reason() -> None:
    """AWS-936, AWS-T915: BootstrapPrerequisitesMissing until the prerequisites exist."""

    async def main() -> None:
        environment = NodeClassEnvironment(disable_dry_run=True).with_resources()
        await environment.create()
        environment.missing = ("ClusterRoleBinding x",)
        await environment.reconcile()
        assert await environment.condition("ValidationSucceeded") == ("False", "BootstrapPrerequisitesMissing")
        assert "missing: ClusterRoleBinding x" in await environment.message("ValidationSucceeded")
        environment.missing = ()
        await environment.reconcile()
        assert (await environment.condition("ValidationSucceeded"))[0] == "True"

    asyncio.run(main())
