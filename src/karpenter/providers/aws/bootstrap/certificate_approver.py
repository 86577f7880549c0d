"""Approves serving certificates of kubelets on our instances (AWS-937)."""

from __future__ import annotations

import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.kube.errors import Conflict, NotFound
from karpenter.kube.protocol import Kube
from karpenter.model.clock import Clock
from karpenter.providers.aws.aws_context import AwsClusterView
from karpenter.providers.aws.bootstrap.bootstrap_objects import CERTIFICATE_SIGNING_REQUEST, CertificateSigningRequest
from karpenter.providers.aws.bootstrap.serving_certificates import (
    SERVING_SIGNER,
    is_undecided,
    refusal,
    requesting_node,
)
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
