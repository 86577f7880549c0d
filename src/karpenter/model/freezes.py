"""Freezes: orders to stop voluntary disruption (emptiness, drift, consolidation), whatever budgets allow.

A freeze stands on a NodePool, in annotations, or over the whole cluster, in one ConfigMap with a fixed place::

    kubectl annotate nodepool web karpenter.sh/freeze="release week" karpenter.sh/freeze-until=2026-12-27T00:00:00Z
    kubectl create configmap karpenter-freeze -n kube-system --from-literal=reason="audit"

Both parts may be left out: the reason is shown to users, and a freeze without an expiry lasts until it is removed. An unparseable
freeze is in effect, too, without an expiry. Expiration, interruption, node repair, fewer
replicas of a static pool and deletion by hand go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from karpenter.api.core import ConfigMap
from karpenter.api.karpenter import NodePool
from karpenter.model import clock, labels, structural_schema
from karpenter.model.structural_schema import Finding

#: The ConfigMap that freezes the whole cluster while it exists, and its namespace: one place, wherever the controller runs.
FREEZE_NAMESPACE = "kube-system"
FREEZE_CONFIG_MAP = "karpenter-freeze"
#: The members of its data.
REASON_KEY, UNTIL_KEY = "reason", "until"

#: How messages call the ConfigMap.
CLUSTER_SOURCE = f"ConfigMap {FREEZE_NAMESPACE}/{FREEZE_CONFIG_MAP}"
#: Where a pool says that it is frozen.
POOL_SOURCE = structural_schema.child_path("metadata.annotations", labels.FREEZE)
_UNTIL_PATH = structural_schema.child_path("metadata.annotations", labels.FREEZE_UNTIL)
#: A value that says no, as with other annotations.
_OFF = "false"
#: Values that say nothing but yes.
_WITHOUT_REASON = frozenset({"", "true"})
_LONGEST_REASON = 200
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Freeze:
    """A freeze: where it stands, what for, until when (None: without an end), and what of it could not be read."""

    source: str
    reason: str = ""
    until: datetime | None = None
    findings: tuple[Finding, ...] = ()

    def is_active(self, now: datetime) -> bool:
        """Whether it is on at an aware moment; at its very end it is not."""
        return self.until is None or now < self.until

    def __str__(self) -> str:
        end = f" until {clock.rfc3339(self.until)}" if self.until is not None else ""
        why = f": {self.reason}" if self.reason else ""
        unread = "".join(f" ({finding}; frozen until that is corrected)" for finding in self.findings)
        return f"frozen by {self.source}{end}{why}{unread}"


def active_freeze(pool: NodePool, cluster: Freeze | None, now: datetime) -> Freeze | None:
    """What freezes a pool at ``now``: of its own freeze and the cluster's the one that lasts longer; None where neither is on."""
    return longest_active(freezes_over(pool, cluster), now)


def freezes_over(pool: NodePool, cluster: Freeze | None) -> tuple[Freeze, ...]:
    """The freezes over a pool, on or not: the cluster's, then its own."""
    return tuple(freeze for freeze in (cluster, nodepool_freeze(pool)) if freeze is not None)


def longest_active(freezes: Iterable[Freeze], now: datetime) -> Freeze | None:
    """Of the freezes that are on at ``now`` the one that ends last; None where none is on."""
    return max((freeze for freeze in freezes if freeze.is_active(now)), key=_end_of, default=None)


def nodepool_freeze(pool: NodePool) -> Freeze | None:
    """The freeze a pool's annotations ask for, whether it is on or over; None where they ask for none."""
    notes = pool.metadata.annotations
    word, until = notes.get(labels.FREEZE), notes.get(labels.FREEZE_UNTIL)
    if word == _OFF or (word is None and until is None):
        return None
    return _parse_freeze(POOL_SOURCE if word is not None else _UNTIL_PATH, word or "", until, _UNTIL_PATH)


def cluster_freeze(config_map: ConfigMap) -> Freeze:
    """The freeze over the whole cluster, whether it is on or over. An unknown key may be a misspelt one."""
    data: Mapping[str, str] = config_map.data
    freeze = _parse_freeze(CLUSTER_SOURCE, data.get(REASON_KEY, ""), data.get(UNTIL_KEY), "data.until")
    strange = tuple(_unknown_keys(data))
    if not strange:
        return freeze
    return Freeze(CLUSTER_SOURCE, freeze.reason, None, (*freeze.findings, *strange))


def _unknown_keys(data: Mapping[str, str]) -> Iterator[Finding]:
    for name in sorted(data):
        if name not in (REASON_KEY, UNTIL_KEY):
            yield Finding(
                structural_schema.child_path("data", name),
                "unknown",
                f"is not known; expected {REASON_KEY} and {UNTIL_KEY}",
            )


def _parse_freeze(source: str, reason_text: str, until: str | None, path: str) -> Freeze:
    reason = "" if reason_text in _WITHOUT_REASON else _on_one_line(reason_text)
    try:
        return Freeze(source, reason, None if until is None else clock.parse_timestamp(until))
    except clock.TimestampError as error:
        return Freeze(source, reason, None, (Finding(path, "freeze", str(error)),))


def _on_one_line(text: str) -> str:
    """What people wrote, as it can stand in messages and on terminals."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(plain.split())[:_LONGEST_REASON]


def _end_of(freeze: Freeze) -> datetime:
    return freeze.until or _NEVER
