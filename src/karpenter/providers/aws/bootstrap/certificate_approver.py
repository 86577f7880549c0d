"""Approves serving certificates of kubelets on our instances (AWS-937): the controller, and its rules, which are pure functions.

Kubernetes approves none of them by itself, since it cannot know which names and addresses a node has
(https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/#client-and-serving-certificates).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

import structlog
from cryptography import x509
from cryptography.x509.oid import NameOID

from karpenter.api.karpenter import NodeClaim
from karpenter.kube.errors import Conflict, NotFound
from karpenter.kube.protocol import Kube
from karpenter.model.clock import Clock
from karpenter.providers.aws.aws_context import AwsClusterView
from karpenter.providers.aws.bootstrap.bootstrap_objects import CERTIFICATE_SIGNING_REQUEST, CertificateSigningRequest
from karpenter.providers.aws.ec2_descriptions import InstanceInfo
from karpenter.providers.aws.instance import instance_info
from karpenter.providers.aws.instance.instance_provider import InstanceProvider
from karpenter.providers.contract import InstanceNotFound

_PERIOD_SECONDS = 5.0
_log = structlog.get_logger()


class CertificateApprover:
    """Approves what is beyond doubt and leaves everything else to people."""

    def __init__(self, kube: Kube, view: AwsClusterView, instances: InstanceProvider, clock: Clock) -> None:
        self._kube = kube
        self._view = view
        self._instances = instances
        self._clock = clock
        #: UIDs of requests whose refusal was logged.
        self._refused: set[str] = set()

    async def reconcile(self) -> float:
        """Decide on all requests once; returns the seconds until the next pass. Raises ``KubeError`` and ``ProviderError``."""
        selector = f"spec.signerName={SERVING_SIGNER}"
        requests = (await self._kube.list(CERTIFICATE_SIGNING_REQUEST, field_selector=selector)).items
        open_requests = [request for request in requests if is_undecided(request)]
        self._refused &= {request.metadata.uid for request in open_requests}
        for request in open_requests:
            claim = self._claim_of_node(requesting_node(request))
            if claim is not None and request.metadata.uid not in self._refused:
                await self._decide(request, claim)
        return _PERIOD_SECONDS

    def _claim_of_node(self, name: str) -> NodeClaim | None:
        """The NodeClaim that is matched to a Node; None while there is none, and for nodes that are not ours."""
        return next((claim for claim in self._view.claims() if name and claim.status.node_name == name), None)

    async def _decide(self, request: CertificateSigningRequest, claim: NodeClaim) -> None:
        try:
            info = await self._instances.describe(instance_info.parse_instance_id(claim.status.provider_id))
        except (InstanceNotFound, instance_info.InvalidProviderId):
            return
        own = {"CertificateSigningRequest": {"name": request.metadata.name}, "Node": {"name": claim.status.node_name}}
        reason = refusal(request, info)
        if reason:
            self._refused.add(request.metadata.uid)
            _log.warning("serving certificate is left unapproved", reason=reason, **own)
        elif await self._approve(request):
            _log.info("approved serving certificate", **own)

    async def _approve(self, request: CertificateSigningRequest) -> bool:
        now = self._clock.now().isoformat()
        approval = {
            "type": "Approved",
            "status": "True",
            "reason": "KarpenterApproved",
            "message": "Its names and addresses are those of the instance.",
            "lastUpdateTime": now,
            "lastTransitionTime": now,
        }
        meta = request.metadata
        patch = {"status": {"conditions": [approval]}}
        try:
            await self._kube.patch(
                CERTIFICATE_SIGNING_REQUEST,
                meta.name,
                patch,
                subresource="approval",
                resource_version=meta.resource_version,
            )
        except (NotFound, Conflict):
            return False
        return True


SERVING_SIGNER = "kubernetes.io/kubelet-serving"
_USER_PREFIX, _GROUP = "system:node:", "system:nodes"
_SERVER_AUTH = "server auth"
_USAGES = frozenset({"digital signature", "key encipherment", _SERVER_AUTH})
_ANSWERED_TYPES = frozenset({"Approved", "Denied", "Failed"})


def is_undecided(request: CertificateSigningRequest) -> bool:
    """Whether it is a serving request that is neither approved nor denied."""
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
    is_own = isinstance(name, x509.DNSName | x509.IPAddress) and str(name.value) in own
    if not is_own:
        yield str(name.value)


def instance_names(info: InstanceInfo) -> frozenset[str]:
    """Names and addresses of an instance: as EC2 reports them, and those a host takes from them as its own name."""
    host = info.private_dns_name.partition(".")[0]
    return frozenset({info.private_ip_address, info.private_dns_name, host, info.instance_id} - {""})
