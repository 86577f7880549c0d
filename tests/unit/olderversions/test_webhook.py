"""The conversion webhook's certificate and its place in the CRDs, on the in-memory API server (API-851)."""

from __future__ import annotations

import asyncio
import json
import ssl
from base64 import b64decode
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from controlplane.ports import free_port
from karpenter.api import crds
from karpenter.api.control_plane import Secret
from karpenter.api.core import Namespace
from karpenter.api.kinds import CUSTOM_RESOURCE_DEFINITION, KINDS, NAMESPACE, SECRET
from karpenter.api.meta import ObjectMeta
from karpenter.conversion.options import ConversionOptions
from karpenter.olderversions.conversion_webhook import (
    CERTIFICATE_SECRET,
    DEFINITIONS,
    PATH,
    ConversionWebhook,
    ServerTls,
    WebhookPlace,
    conversion_page,
)
from karpenter.olderversions.webhook_certificate import LIFETIME, RENEWAL_MARGIN, is_usable, new_certificate
from karpenter.runtime.http_server import HttpServer, ListenAddress
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.builders import NOW
from support.manual_clock import ManualClock


@pytest.fixture
def port() -> int:
    return free_port()


PLACE = WebhookPlace("karpenter", "scaler", 8443)
HOST = "scaler.karpenter.svc"


async def cluster(clock: ManualClock) -> MemoryKube:
    kube = MemoryKube(MemoryServer(clock, kinds=(*KINDS.values(), SECRET)))
    await kube.create(NAMESPACE, Namespace(metadata=ObjectMeta(name="karpenter")))
    for definition in crds.custom_resource_definitions():
        body = json.dumps(definition).encode()
        await kube.create(CUSTOM_RESOURCE_DEFINITION, CUSTOM_RESOURCE_DEFINITION.decode(body))
    return kube


async def client_config(kube: MemoryKube, name: str) -> dict[str, object]:
    definition = await kube.get(CUSTOM_RESOURCE_DEFINITION, name)
    return msgspec.json.decode(definition.spec)["conversion"]["webhook"]["clientConfig"]


async def trusted(kube: MemoryKube) -> bytes:
    (bundle,) = {str((await client_config(kube, name))["caBundle"]) for name in DEFINITIONS}
    return b64decode(bundle)


async def secret(kube: MemoryKube) -> Secret:
    return await kube.get(SECRET, CERTIFICATE_SECRET, "karpenter")


async def test_the_first_replica_makes_the_certificate_and_writes_it_into_the_crds() -> None:
    clock, tls = ManualClock(NOW), ServerTls()
    kube = await cluster(clock)
    webhook = ConversionWebhook(kube, clock, PLACE, tls)
    assert await webhook.reconcile() == 5.0
    assert tls.is_loaded
    assert await webhook.reconcile() == 60.0
    assert await trusted(kube) == b64decode((await secret(kube)).data["tls.crt"])
    for name in DEFINITIONS:
        service = {"name": "scaler", "namespace": "karpenter", "path": PATH, "port": 8443}
        assert (await client_config(kube, name))["service"] == service


async def test_all_replicas_share_one_certificate() -> None:
    clock = ManualClock(NOW)
    kube = await cluster(clock)
    await asyncio.gather(*(ConversionWebhook(kube, clock, PLACE, ServerTls()).reconcile() for _ in range(3)))
    kept = (await secret(kube)).data
    assert await ConversionWebhook(kube, clock, PLACE, ServerTls()).reconcile() == 60.0
    assert (await secret(kube)).data == kept


async def test_a_renewed_certificate_is_served_once_the_crds_trust_it() -> None:
    """The bundle holds the old certificate, too: another replica still serves it."""
    clock, tls = ManualClock(NOW), ServerTls()
    kube = await cluster(clock)
    webhook = ConversionWebhook(kube, clock, PLACE, tls)
    for _ in range(2):
        await webhook.reconcile()
    first, served = await trusted(kube), tls._loaded
    clock.time += LIFETIME - RENEWAL_MARGIN + timedelta(minutes=1)
    assert await webhook.reconcile() == 5.0
    assert tls._loaded == served
    assert await webhook.reconcile() == 60.0
    assert tls._loaded != served
    both = await trusted(kube)
    assert both.endswith(first)
    assert both != first


@pytest.mark.parametrize(
    "data",
    [{}, {"tls.crt": "?", "tls.key": "", "ca.crt": ""}, {"tls.crt": "YQ==", "tls.key": "YQ==", "ca.crt": "YQ=="}],
)
async def test_an_unreadable_secret_is_replaced(data: dict[str, str]) -> None:
    clock = ManualClock(NOW)
    kube = await cluster(clock)
    webhook = ConversionWebhook(kube, clock, PLACE, ServerTls())
    await webhook.reconcile()
    await kube.patch(
        SECRET,
        CERTIFICATE_SECRET,
        {"data": {name: data.get(name) for name in ("tls.crt", "tls.key", "ca.crt")}},
        "karpenter",
    )
    await webhook.reconcile()
    assert await webhook.reconcile() == 60.0
    assert (await secret(kube)).data["tls.crt"] != data.get("tls.crt")


async def test_a_crd_that_lost_the_webhook_gets_it_back_and_one_without_v1beta1_stays() -> None:
    clock = ManualClock(NOW)
    kube = await cluster(clock)
    webhook = ConversionWebhook(kube, clock, PLACE, ServerTls())
    await webhook.reconcile()
    first, second, third = DEFINITIONS
    await kube.patch(CUSTOM_RESOURCE_DEFINITION, first, {"spec": {"conversion": {"strategy": "None", "webhook": None}}})
    await kube.patch(CUSTOM_RESOURCE_DEFINITION, second, {"spec": {"conversion": None, "versions": [{"name": "v1"}]}})
    await kube.delete(CUSTOM_RESOURCE_DEFINITION, third)
    assert await webhook.reconcile() == 5.0
    assert (await client_config(kube, first))["caBundle"]
    assert "conversion" not in msgspec.json.decode((await kube.get(CUSTOM_RESOURCE_DEFINITION, second)).spec)
    assert await webhook.reconcile() == 60.0


def test_a_certificate_is_for_one_host_and_ends() -> None:
    made = new_certificate(HOST, NOW)
    assert is_usable(made, HOST, NOW)
    assert not is_usable(made, "other.karpenter.svc", NOW)
    assert not is_usable(made, HOST, NOW + LIFETIME - RENEWAL_MARGIN)
    assert is_usable(new_certificate("10.0.0.1", NOW), "10.0.0.1", NOW)


def test_a_url_takes_the_place_of_the_service() -> None:
    place = WebhookPlace("karpenter", url="https://scaler.example:9443/")
    assert place.host == "scaler.example"
    config = place.client_config(b"pem")
    assert (config["url"], config["service"]) == ("https://scaler.example:9443/conversion", None)


async def test_conversion_reviews_are_answered_over_tls(port: int) -> None:
    tls, made = ServerTls(), new_certificate("localhost", datetime.now(UTC))
    tls.load(made)
    page = conversion_page(lambda: ConversionOptions())
    server = HttpServer(ListenAddress(port, "--webhook-port", "no"), {}, {PATH: page}, tls.context)
    serving = asyncio.create_task(server.run())
    try:
        trust = ssl.create_default_context(cadata=made.trusted.decode())
        pool = {"apiVersion": "karpenter.sh/v1beta1", "kind": "NodePool", "metadata": {"name": "a"}, "spec": {}}
        review = {"request": {"uid": "1", "desiredAPIVersion": "karpenter.sh/v1", "objects": [pool]}}
        answer = await post(port, trust, json.dumps(review).encode())
        assert b" 200 " in answer
        assert b'"apiVersion":"karpenter.sh/v1"' in answer
        assert b" 400 " in await post(port, trust, b"nonsense")
        assert await post(port, trust, b"", size=2**40) == b""
    finally:
        serving.cancel()


async def post(port: int, trust: ssl.SSLContext, body: bytes, size: int | None = None) -> bytes:
    async with asyncio.timeout(10):
        while True:
            try:
                reader, writer = await asyncio.open_connection("localhost", port, ssl=trust)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0)
        head = f"POST {PATH} HTTP/1.1\r\nContent-Length: {len(body) if size is None else size}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        return answer
