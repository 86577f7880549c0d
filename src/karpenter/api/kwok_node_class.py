"""KWOKNodeClass (``karpenter.kwok.sh/v1alpha1``): the node class of the simulated provider (API-380)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta

from karpenter.api.karpenter import DURATION_PATTERN
from karpenter.api.meta import Condition, ObjectMeta, Wire

#: Simulated instances need no preparation, so their class is ready without a controller (OPS-250).
READY_CONDITION = Condition(
    type="Ready", status="True", reason="Ready", last_transition_time=datetime(2024, 1, 1, 1, 1, 1, tzinfo=UTC)
)


class KWOKNodeClassSpec(Wire, frozen=True, kw_only=True):
    """How simulated instances behave."""

    node_registration_delay: Annotated[str, Meta(pattern=DURATION_PATTERN)] | None = None


class KWOKNodeClassStatus(Wire, frozen=True, kw_only=True):
    """Always Ready unless the status says otherwise (OPS-250)."""

    conditions: tuple[Condition, ...] = (READY_CONDITION,)


class KWOKNodeClass(Wire, frozen=True, kw_only=True):
    """Node class of simulated instances."""

    metadata: ObjectMeta = ObjectMeta()
    spec: KWOKNodeClassSpec = KWOKNodeClassSpec()
    status: KWOKNodeClassStatus = KWOKNodeClassStatus()
