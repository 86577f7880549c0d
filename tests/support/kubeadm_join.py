"""Simulates kubeadm and a kubelet: joins a cluster with the arguments in user data, in the same steps.

Discovery (https://kubernetes.io/docs/reference/setup-tools/kubeadm/kubeadm-join/#token-based-discovery-with-ca-pinning) reads the
ConfigMap cluster-info without trust, verifies its signature by the token's secret and its CA by the pinned hash. TLS bootstrap
then asks for a client certificate under the token's identity.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import re
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from controlplane.timeouts import scaled_timeout

_JOIN = re.compile(r"kubeadm join (\S+) --token (\S+)[\s\\]+--discovery-token-ca-cert-hash sha256:(\S+)")
_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
_REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_DEADLINE_SECONDS, _POLL_SECONDS = 20.0, 0.1


class JoinRefused(Exception):
    """The node cannot join; the message names the step."""


class HttpRefused(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}: {body}")
        self.status = status


@dataclass(frozen=True)
class JoinArguments:
    """Arguments of ``kubeadm join``."""

    endpoint: str
    token: str
    ca_hash: str


def join_arguments(user_data: str) -> JoinArguments:
    """The arguments in user data. Raises ``JoinRefused``."""
    match = _JOIN.search(user_data)
    if match is None:
        raise JoinRefused("nothing in the user data calls kubeadm join")
    return JoinArguments(*match.groups())


@dataclass
class Api:
    """An API server under one identity: a token, a certificate with its key, or anonymous."""

    server: str
    context: ssl.SSLContext
    token: str = ""

    def request(self, method: str, path: str, body: object = None, media: str = "application/json") -> Any:
        """The answer's object. Raises ``HttpRefused``."""
        headers = {"Content-Type": media} | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.server + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.context) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise HttpRefused(error.code, error.read().decode()) from error


def discover(arguments: JoinArguments) -> bytes:
    """The CA bundle (PEM) of a verified cluster. Raises ``JoinRefused``."""
    token_id, _, secret = arguments.token.partition(".")
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    server = f"https://{arguments.endpoint}"
    data = Api(server, blind).request("GET", _INFO)["data"]
    signature = data.get(f"jws-kubeconfig-{token_id}")
    if signature is None:
        raise JoinRefused(f"cluster-info has no signature of token {token_id}")
    _check_signature(signature, data["kubeconfig"], token_id, secret)
    (cluster,) = yaml.safe_load(data["kubeconfig"])["clusters"]
    bundle = base64.b64decode(cluster["cluster"]["certificate-authority-data"])
    if arguments.ca_hash not in _key_hashes(bundle):
        raise JoinRefused("cluster-info has no CA of the pinned hash")
    trusting = ssl.create_default_context(cadata=bundle.decode())
    if Api(server, trusting).request("GET", _INFO)["data"]["kubeconfig"] != data["kubeconfig"]:
        raise JoinRefused("cluster-info differs between the two requests")
    return bundle


def _check_signature(signature: str, content: str, token_id: str, secret: str) -> None:
    """A detached JWS (RFC 7515, appendix F) by HS256, with the token's id as key id."""
    header, payload, mac = signature.split(".")
    if payload or json.loads(_decoded(header)) != {"alg": "HS256", "kid": token_id}:
        raise JoinRefused("the signature of cluster-info is not one of this token")
    encoded = base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")
    expected = hmac.digest(secret.encode(), f"{header}.{encoded}".encode(), "sha256")
    if not hmac.compare_digest(expected, _decoded(mac)):
        raise JoinRefused("the signature of cluster-info is wrong")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _key_hashes(bundle: bytes) -> set[str]:
    keys = (certificate.public_key() for certificate in x509.load_pem_x509_certificates(bundle))
    encoded = (key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) for key in keys)
    return {hashlib.sha256(key).hexdigest() for key in encoded}


@dataclass
class JoiningKubelet:
    """A kubelet of one node name."""

    name: str
    server: str
    bundle: bytes
    api: Api = field(init=False)

    @classmethod
    def joined(cls, name: str, user_data: str) -> JoiningKubelet:
        """Discovery and TLS bootstrap. Raises ``JoinRefused`` and ``HttpRefused``."""
        arguments = join_arguments(user_data)
        kubelet = cls(name, f"https://{arguments.endpoint}", discover(arguments))
        context = ssl.create_default_context(cadata=kubelet.bundle.decode())
        kubelet.renew(Api(kubelet.server, context, arguments.token))
        return kubelet

    def renew(self, identity: Api | None = None) -> None:
        """Get a client certificate as ``identity``, by default the current one, and use it afterwards."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = ["digital signature", "client auth"]
        signer = "kubernetes.io/kube-apiserver-client-kubelet"
        name = self.request_certificate(key, signer, usages, identity or self.api)
        certificate = self._issued(name, identity or self.api)
        context = ssl.create_default_context(cadata=self.bundle.decode())
        with tempfile.TemporaryDirectory() as folder:
            pem = Path(folder, "client.pem")
            secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            pem.write_bytes(certificate + secret)
            context.load_cert_chain(pem)
        self.api = Api(self.server, context)

    def request_certificate(
        self, key: ec.EllipticCurvePrivateKey, signer: str, usages: list[str], identity: Api
    ) -> str:
        """Create a CertificateSigningRequest for this node; return its name."""
        return self._requested(self._builder().sign(key, hashes.SHA256()), signer, usages, identity)

    def request_serving_certificate(self, *names: str) -> str:
        """Request a serving certificate for DNS names and IP addresses, as with ``serverTLSBootstrap``; return its name."""
        extension = x509.SubjectAlternativeName([_general_name(name) for name in names])
        request = self._builder().add_extension(extension, critical=False)
        signed = request.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
        usages = ["digital signature", "server auth"]
        return self._requested(signed, "kubernetes.io/kubelet-serving", usages, self.api)

    def issued_certificate(self, name: str) -> bytes:
        """The certificate of a request of this node, once it is signed. Raises ``JoinRefused``."""
        return self._issued(name, self.api)

    def _builder(self) -> x509.CertificateSigningRequestBuilder:
        subject = [(NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, f"system:node:{self.name}")]
        return x509.CertificateSigningRequestBuilder().subject_name(
            x509.Name([x509.NameAttribute(oid, value) for oid, value in subject])
        )

    def _requested(self, signed: x509.CertificateSigningRequest, signer: str, usages: list[str], identity: Api) -> str:
        request = base64.b64encode(signed.public_bytes(Encoding.PEM)).decode()
        body = {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"generateName": "csr-"},
            "spec": {"request": request, "signerName": signer, "usages": usages},
        }
        return str(identity.request("POST", _REQUESTS, body)["metadata"]["name"])

    def _issued(self, name: str, identity: Api) -> bytes:
        deadline = time.monotonic() + scaled_timeout(_DEADLINE_SECONDS)
        while time.monotonic() < deadline:
            certificate = identity.request("GET", f"{_REQUESTS}/{name}").get("status", {}).get("certificate")
            if certificate:
                return base64.b64decode(certificate)
            time.sleep(_POLL_SECONDS)
        raise JoinRefused(f"nobody approved and signed {name}")

    def register(self, provider_id: str = "") -> Any:
        """Create the Node, as the kubelet does; by default without a provider ID."""
        own = {"providerID": provider_id} if provider_id else {}
        spec = {**own, "taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}, "spec": spec}
        return self.api.request("POST", "/api/v1/nodes", body)

    def report_address(self, address: str) -> None:
        """Write the Node's internal address into its status, as the kubelet does."""
        patch = {"status": {"addresses": [{"type": "InternalIP", "address": address}]}}
        media = "application/strategic-merge-patch+json"
        self.api.request("PATCH", f"/api/v1/nodes/{self.name}/status", patch, media)


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
