"""The interface that all steps of the NodeClaim life cycle share."""

from __future__ import annotations

from typing import Protocol

from karpenter.runtime.nodeclaim_draft import NodeClaimDraft


class NodeClaimSubreconciler(Protocol):
    """One step of ``NodeClaimLifecycle``: it reads the cluster and changes the draft, which the lifecycle writes once."""

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Reconcile one claim. Raises ``KubeError`` or ``ProviderError``; the steps after it still run."""

    def forget(self, name: str) -> None:
        """The claim of this name is gone: drop its cached data. Subreconcilers without a cache inherit this method."""
        return
