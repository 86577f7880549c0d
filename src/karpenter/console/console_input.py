"""What a console view is built from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from karpenter.api.core import Event, Pod
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.state.snapshot import ClusterSnapshot


@dataclass(frozen=True)
class ConsoleInput:
    """A cluster at a moment.

    ``pods``: all of them; the snapshot has only those that scheduling looks at. ``indexes``: instance types by NodePool.
    ``placements``: by namespace and name, what the next scheduling pass says about a pod (``pending_pods.pod_placements``);
    empty where no pass was computed.
    """

    snapshot: ClusterSnapshot
    now: datetime
    pods: Sequence[Pod] = ()
    events: Sequence[Event] = ()
    indexes: Mapping[str, TypeIndex] = field(default_factory=dict)
    placements: Mapping[tuple[str, str], str] = field(default_factory=dict)
