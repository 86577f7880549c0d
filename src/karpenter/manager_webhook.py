"""The conversion webhook of a controller process. It runs on every replica, leader or not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM, NODE_POOL, Kind
from karpenter.api.meta import Wire
from karpenter.conversion.options import ConversionOptions
from karpenter.kube import config
from karpenter.kube.client import KubeClient
from karpenter.kube.config import Connection
from karpenter.kube.protocol import Kube
from karpenter.metrics import Metrics
from karpenter.model.clock import SystemClock
from karpenter.model.token_bucket import TokenBucket
from karpenter.olderversions.cluster_conversion_options import ClusterConversionOptions
from karpenter.olderversions.conversion_webhook import PATH, ConversionWebhook, ServerTls, WebhookPlace, conversion_page
from karpenter.olderversions.storage_migration import FIRST_CHECK_SECONDS, StorageMigration
from karpenter.runtime.http_server import HttpServer, ListenAddress
from karpenter.runtime.reconciler import SingletonReconciler
from karpenter.settings import Settings

#: The webhook reads a Secret and three CRDs a minute.
_QPS = 10


def conversion_options(settings: Settings, kube: KubeClient) -> ClusterConversionOptions:
    """What conversions on this cluster take from the settings."""
    options = ConversionOptions(
        node_role=settings.default_node_role,
        instance_profile=settings.default_instance_profile,
        cluster_name=settings.cluster_name,
    )
    return ClusterConversionOptions(options, kube.version)


def storage_migration_loops(
    settings: Settings, kube: Kube, metrics: Metrics, node_class_kinds: Iterable[Kind[Wire]]
) -> Mapping[str, Callable[[], Awaitable[None]]]:
    """What the leader runs where there is a webhook: without one, objects of ``v1beta1`` cannot be read."""
    if not _has_webhook(settings):
        return {}
    served = {(kind.group, kind.name) for kind in node_class_kinds}
    kinds = cast("tuple[Kind[Wire], ...]", (NODE_POOL, NODE_CLAIM, EC2_NODE_CLASS))
    own = [kind for kind in kinds if kind.name != EC2_NODE_CLASS.name or (kind.group, kind.name) in served]
    migration = StorageMigration(kube, own)
    loop = SingletonReconciler(
        "storage.migration", migration.reconcile, metrics, initial_delay=lambda: FIRST_CHECK_SECONDS
    )
    return {loop.name: loop.run}


def _has_webhook(settings: Settings) -> bool:
    """Whether there is one that the API server can find."""
    return not settings.disable_webhook and bool(settings.karpenter_service or settings.webhook_url)


@dataclass(frozen=True)
class WebhookProcess:
    """What the webhook needs of its process."""

    settings: Settings
    connection: Connection
    options: ClusterConversionOptions
    metrics: Metrics

    def loops(self, namespace: str) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """What has to run; no webhook where the API server could not find it. ``namespace`` is the process's own."""
        settings = self.settings
        refresh = SingletonReconciler("conversion.options", self.options.reconcile, self.metrics).run
        if not _has_webhook(settings):
            return {"conversion.options": refresh}
        place = WebhookPlace(namespace, settings.karpenter_service, settings.webhook_port, settings.webhook_url)
        tls = ServerTls()
        address = ListenAddress(settings.webhook_port, "--webhook-port", "v1beta1 cannot be served")
        server = HttpServer(address, {}, {PATH: conversion_page(self.options.current)}, tls.context)

        async def keep_in_order() -> None:
            # A client of its own, without the write fence: replicas that do not lead serve the webhook, too.
            async with config.connect(self.connection, TokenBucket(_QPS, _QPS)) as kube:
                webhook = ConversionWebhook(kube, SystemClock(), place, tls)
                await SingletonReconciler("conversion.webhook", webhook.reconcile, self.metrics).run()

        return {"conversion.options": refresh, "conversion.webhook": keep_in_order, "conversion": server.run}
