"""When a decision would change although nothing happens: only because time passes.

Who has decided and finds the cluster unchanged needs no new decision before the first of these moments.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from karpenter.cluster.snapshot import Snapshot
from karpenter.model import calm, labels, pods
from karpenter.model.pool_rules import rules_of
from karpenter.model.windows import Span


def changes_by_time(snapshot: Snapshot, now: datetime, within_seconds: float) -> Iterator[datetime]:
    """Moments after ``now`` at which budgets open or close, freezes end, machines come of age or protections run out."""
    end = now + timedelta(seconds=within_seconds)
    youth: dict[str, timedelta] = {}
    for pool in snapshot.pools:
        yield from (edge for edge in rules_of(pool, snapshot.freeze).edges(Span(now, end)) if edge > now)
        youth[pool.metadata.name] = calm.of_pool(pool).minimum_node_age
    for view in snapshot.nodes:
        created = view.claim.metadata.creation_timestamp if view.claim is not None else None
        age = youth.get(view.pool)
        if created is not None and age is not None and now - created < age < end - created:
            yield created + age
        for pod in view.pods:
            if labels.DO_NOT_DISRUPT in pod.metadata.annotations:
                found = pods.protection(pod, now)
                if found is not None and found.active and found.until is not None:
                    yield found.until
