"""Which requests of kubelets for serving certificates may be approved (AWS-937). Pure.

Kubernetes approves none of them by itself, since it cannot know which names and addresses a node has
(https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/#client-and-serving-certificates).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

from cryptography import x509
from cryptography.x509.oid import NameOID

from karpenter.providers.aws.bootstrap.bootstrap_objects import CertificateSigningRequest
from karpenter.providers.aws.ec2_descriptions import InstanceInfo

SERVING_SIGNER = "kubernetes.io/kubelet-serving"
_USER_PREFIX, _GROUP = "system:node:", "system:nodes"
_SERVER_AUTH = "server auth"
_USAGES = frozenset({"digital signature", "key encipherment", _SERVER_AUTH})
_ANSWERED_TYPES = frozenset({"Approved", "Denied", "Failed"})


def is_undecided(request: CertificateSigningRequest) -> bool:
    """Whether it is a serving request that nobody has approved or denied."""
    answered = any(condition.type in _ANSWERED_TYPES for condition in request.status.conditions)
    return request.spec.signer_name == SERVING_SIGNER and not answered


def requesting_node(request: CertificateSigningRequest) -> str:
    """The Node whose kubelet asks; empty where no kubelet does."""
    name = request.spec.username
    return name.removeprefix(_USER_PREFIX) if name.startswith(_USER_PREFIX) else ""


def refusal(request: CertificateSigningRequest, info: InstanceInfo) -> str:
    """Why a request is not to be approved for the Node's instance; empty where it is."""
    spec = request.spec
    if not requesting_node(request) or _GROUP not in spec.groups:
        return f"{spec.username} is no node"
    if _SERVER_AUTH not in spec.usages or not _USAGES.issuperset(spec.usages):
        return f"usages are {', '.join(spec.usages)}"
    try:
        parsed = x509.load_pem_x509_csr(base64.b64decode(spec.request, validate=True))
        return _subject_refusal(parsed, spec.username) or _names_refusal(parsed, info)
    except (ValueError, binascii.Error, x509.UnsupportedGeneralNameType, x509.DuplicateExtension) as error:
        return f"the request cannot be read: {error}"


def _subject_refusal(parsed: x509.CertificateSigningRequest, username: str) -> str:
    if not parsed.is_signature_valid:
        return "the request is not signed with its key"
    if _values(parsed, NameOID.COMMON_NAME) != [username]:
        return f"the common name is not {username}"
    return "" if _values(parsed, NameOID.ORGANIZATION_NAME) == [_GROUP] else f"the organization is not {_GROUP} alone"


def _values(parsed: x509.CertificateSigningRequest, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in parsed.subject.get_attributes_for_oid(oid)]


def _names_refusal(parsed: x509.CertificateSigningRequest, info: InstanceInfo) -> str:
    try:
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "there is neither a DNS name nor an IP address"
    own = instance_names(info)
    foreign = [text for name in names for text in _foreign_text(name, own)]
    return f"{', '.join(foreign)}: not of instance {info.instance_id}" if foreign else ""


def _foreign_text(name: x509.GeneralName, own: frozenset[str]) -> Iterator[str]:
    known = isinstance(name, x509.DNSName | x509.IPAddress) and str(name.value) in own
    if not known:
        yield str(name.value)


def instance_names(info: InstanceInfo) -> frozenset[str]:
    """Names and addresses of an instance: as EC2 reports them, and those a host takes from them as its own name."""
    host = info.private_dns_name.partition(".")[0]
    return frozenset({info.private_ip_address, info.private_dns_name, host, info.instance_id} - {""})
