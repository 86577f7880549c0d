"""The conversion webhook of a controller process. It runs on every replica, leader or not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from karpenter.conversion.options import ConversionOptions
from karpenter.kube import config
from karpenter.kube.client import KubeClient
from karpenter.kube.config import Connection
from karpenter.metrics import Metrics
from karpenter.model.clock import SystemClock
from karpenter.model.token_bucket import TokenBucket
from karpenter.olderversions.cluster_conversion_options import ClusterConversionOptions
from karpenter.olderversions.conversion_webhook import PATH, ConversionWebhook, ServerTls, WebhookPlace, conversion_page
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
        if settings.disable_webhook or not (settings.karpenter_service or settings.webhook_url):
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
