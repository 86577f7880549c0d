"""The webhook that an API server asks for ``v1beta1`` forms of our objects (API-851): its certificate, its place in the CRDs.

Every replica serves it, leader or not, and every replica keeps certificate and CRDs in order. Replicas that write at the same
time do not disturb each other: the Secret is written against the version that was read, and all write the same into the CRDs.
``v1`` is the stored version. An API server that cannot reach the webhook refuses ``v1beta1`` requests and nothing else, but its
cache of ``v1beta1`` lists all objects again every second.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import structlog

from karpenter.api.control_plane import Secret
from karpenter.api.kinds import CUSTOM_RESOURCE_DEFINITION, EC2_NODE_CLASS, NODE_CLAIM, NODE_POOL, SECRET
from karpenter.api.meta import ObjectMeta
from karpenter.conversion.conversion_review import answer_review
from karpenter.conversion.options import ConversionOptions
from karpenter.kube.errors import AlreadyExists, Conflict, NotFound
from karpenter.kube.protocol import JsonObject, Kube
from karpenter.model.clock import Clock
from karpenter.runtime.http_server import HttpRequest, HttpResponse, PageHandler, text_response

if TYPE_CHECKING:
    from karpenter.olderversions.webhook_certificate import ServingCertificate

CERTIFICATE_SECRET = "karpenter-cert"
PATH = "/conversion"
DEFINITIONS = tuple(f"{kind.plural}.{kind.group}" for kind in (NODE_POOL, NODE_CLAIM, EC2_NODE_CLASS))
#: Pauses between two checks: while something changes, and else.
_CHANGING_SECONDS = 5.0
_CHECK_SECONDS = 60.0
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WebhookPlace:
    """Where the API server finds the webhook: a Service of the cluster, or a URL for a controller outside of it."""

    #: The namespace of the certificate's Secret and of the Service.
    namespace: str
    service: str = ""
    port: int = 8443
    url: str = ""

    @property
    def host(self) -> str:
        """The host name that the API server expects in the certificate."""
        return urlsplit(self.url).hostname or "" if self.url else f"{self.service}.{self.namespace}.svc"

    def client_config(self, trusted: bytes) -> JsonObject:
        """How a CRD names it, as a merge patch."""
        bundle = b64encode(trusted).decode()
        if self.url:
            return {"url": self.url.rstrip("/") + PATH, "service": None, "caBundle": bundle}
        service: JsonObject = {
            "name": self.service,
            "namespace": self.namespace,
            "path": PATH,
            "port": self.port,
        }
        return {"url": None, "service": service, "caBundle": bundle}


class _ClientConfig(msgspec.Struct, frozen=True, rename="camel"):
    url: str | None = None
    service: dict[str, object] | None = None
    ca_bundle: str = ""


class _Webhook(msgspec.Struct, frozen=True, rename="camel"):
    client_config: _ClientConfig = _ClientConfig()


class _Conversion(msgspec.Struct, frozen=True):
    strategy: str = "None"
    webhook: _Webhook = _Webhook()


class _Version(msgspec.Struct, frozen=True):
    name: str


class _DefinitionSpec(msgspec.Struct, frozen=True):
    versions: tuple[_Version, ...] = ()
    conversion: _Conversion = _Conversion()


class ServerTls:
    """The TLS context of the webhook's server; a certificate that is loaded counts for all later connections."""

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded: ServingCertificate | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether there is a certificate."""
        return self._loaded is not None

    def load(self, certificate: ServingCertificate) -> None:
        """Serve this one from now on."""
        if certificate == self._loaded:
            return
        _load_from_memory(self.context, certificate.certificate + certificate.key)
        self._loaded = certificate
        _log.info("conversion webhook has a new certificate")


def _load_from_memory(context: ssl.SSLContext, chain: bytes) -> None:
    """OpenSSL reads files only. A pod's file system is read-only, so the file is in memory where the system can do that."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "chain.pem")
            file.touch(mode=0o600)
            file.write_bytes(chain)
            context.load_cert_chain(file)
        return
    descriptor = os.memfd_create("webhook")
    try:
        os.write(descriptor, chain)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


class ConversionWebhook:
    """Keeps the certificate and the CRDs in order, and answers the API server."""

    def __init__(self, kube: Kube, clock: Clock, place: WebhookPlace, tls: ServerTls) -> None:
        self._kube = kube
        self._clock = clock
        self._place = place
        self._tls = tls

    async def reconcile(self) -> float:
        """One check; returns the seconds until the next. Raises ``KubeError``.

        A new certificate is served only once a later check finds it trusted by all CRDs, so no request meets one that is not.
        """
        certificate = await self._certificate()
        in_order = [await self._write_place(name, certificate.trusted) for name in DEFINITIONS]
        if all(in_order) or not self._tls.is_loaded:
            self._tls.load(certificate)
        return _CHECK_SECONDS if all(in_order) else _CHANGING_SECONDS

    async def _certificate(self) -> ServingCertificate:
        """The certificate that all replicas share; a new one where there is none, or not for long."""
        # Not with this module: the library for certificates would delay the start of processes by a tenth.
        from karpenter.olderversions import webhook_certificate as certificates

        now, host = self._clock.now(), self._place.host
        try:
            secret = await self._kube.get(SECRET, CERTIFICATE_SECRET, self._place.namespace)
        except NotFound:
            return await self._create(certificates.new_certificate(host, now))
        kept = certificates.ServingCertificate.from_secret_data(secret.data)
        if kept is not None and certificates.is_usable(kept, host, now):
            return kept
        renewed = certificates.new_certificate(host, now, kept)
        patch: JsonObject = {"data": renewed.as_secret_data()}
        version = secret.metadata.resource_version
        try:
            await self._kube.patch(SECRET, CERTIFICATE_SECRET, patch, self._place.namespace, resource_version=version)
        except Conflict:
            return await self._certificate()
        return renewed

    async def _create(self, made: ServingCertificate) -> ServingCertificate:
        metadata = ObjectMeta(name=CERTIFICATE_SECRET, namespace=self._place.namespace)
        try:
            await self._kube.create(
                SECRET, Secret(metadata=metadata, type="kubernetes.io/tls", data=made.as_secret_data())
            )
        except AlreadyExists:
            return await self._certificate()
        return made

    async def _write_place(self, name: str, trusted: bytes) -> bool:
        """Write into a CRD where the webhook is; whether the CRD said so already. A CRD without ``v1beta1`` needs none."""
        try:
            definition = await self._kube.get(CUSTOM_RESOURCE_DEFINITION, name)
        except NotFound:
            return True
        spec = msgspec.json.decode(definition.spec, type=_DefinitionSpec)
        if "v1beta1" not in (version.name for version in spec.versions):
            return True
        wanted = self._place.client_config(trusted)
        written = spec.conversion.webhook.client_config
        present = {"url": written.url, "service": written.service, "caBundle": written.ca_bundle}
        if spec.conversion.strategy == "Webhook" and present == wanted:
            return True
        conversion: JsonObject = {
            "strategy": "Webhook",
            "webhook": {"clientConfig": wanted, "conversionReviewVersions": ["v1"]},
        }
        await self._kube.patch(CUSTOM_RESOURCE_DEFINITION, name, {"spec": {"conversion": conversion}})
        return False


def conversion_page(options: Callable[[], ConversionOptions]) -> PageHandler:
    """Answers reviews in a thread: an API server may send the objects of a whole page of a list."""

    async def convert(request: HttpRequest) -> HttpResponse:
        try:
            body = await asyncio.to_thread(answer_review, request.body, options())
        except msgspec.DecodeError as error:
            return text_response(f"no ConversionReview: {error}", HTTPStatus.BAD_REQUEST)
        return HttpResponse(body, content_type="application/json")

    return convert
