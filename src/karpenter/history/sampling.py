"""A sample of a cluster: its price, what the price is split by, and what it is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from karpenter.console.classic_price import classic_price_per_hour
from karpenter.console.console_input import ConsoleInput
from karpenter.console.console_view import ConsoleView
from karpenter.console.node_rows import fill_of_nodes
from karpenter.console.pending_pods import PendingPod
from karpenter.console.price_bound import price_bound_per_hour
from karpenter.console.spending import label_spending, unused_capacity
from karpenter.history.history_records import ClusterSample, PendingReason, SpendingPart
from karpenter.model import resources as res

#: The dimension of what no pod requests, by why it is there; the dimension of a label is ``label`` and its key.
UNUSED_DIMENSION, LABEL_DIMENSION = "unused", "label"
#: So many reasons are stored of a sample; the pods of all others count together.
_MAX_REASONS = 50
_MAX_REASON_LENGTH = 500
#: So many values of a label are stored of a sample, the dearest; all others count together.
_MAX_LABEL_VALUES = 200


@dataclass(frozen=True)
class ComparedPrices:
    """USD per hour for the pods on the nodes of NodePools, None where it is not known: the lower bound, and classic packing."""

    bound_per_hour: float | None = None
    classic_per_hour: float | None = None


def compared_prices(given: ConsoleInput) -> ComparedPrices:
    """The prices to compare with. They cost a linear program and a plan, and change slowly."""
    if not given.indexes:
        return ComparedPrices()
    return ComparedPrices(price_bound_per_hour(given) or None, classic_price_per_hour(given))


def cluster_sample(view: ConsoleView, compared: ComparedPrices, cost_label: str = "") -> ClusterSample:
    """A sample of the cluster as it is in the view. ``cost_label`` splits the price by values of a label of pods; empty: not."""
    return ClusterSample(
        at=view.now,
        price_per_hour=view.price_per_hour,
        managed_price_per_hour=view.managed_price_per_hour,
        bound_per_hour=compared.bound_per_hour,
        classic_per_hour=compared.classic_per_hour,
        nodes=len(view.nodes),
        pending_pods=len(view.pending),
        cpu_fill=fill_of_nodes(view.nodes, res.CPU),
        memory_fill=fill_of_nodes(view.nodes, res.MEMORY),
        parts=tuple(_parts(view, cost_label)),
        pending=tuple(pending_reasons(view.pending)),
    )


def _parts(view: ConsoleView, cost_label: str) -> Iterator[SpendingPart]:
    for dimension, rows in view.spending.rows.items():
        yield from (SpendingPart(dimension.value, row.name, row.price_per_hour, row.count) for row in rows)
    for row in unused_capacity(view.nodes, view.given.state_nodes):
        yield SpendingPart(UNUSED_DIMENSION, row.name, row.price_per_hour, row.count)
    if not cost_label:
        return
    dimension_name, by_label = (
        f"{LABEL_DIMENSION} {cost_label}",
        label_spending(view.nodes, view.given.state_nodes, cost_label),
    )
    for row in by_label[:_MAX_LABEL_VALUES]:
        yield SpendingPart(dimension_name, row.name, row.price_per_hour, row.count)
    if others := by_label[_MAX_LABEL_VALUES:]:
        price = sum(row.price_per_hour for row in others)
        yield SpendingPart(dimension_name, "(others)", price, sum(row.count for row in others))


def pending_reasons(pending: Iterable[PendingPod]) -> Iterable[PendingReason]:
    """How many pods wait for which reason, most frequent first; rare ones beyond fifty count as ``other``."""
    counts = Counter(pod.reason[:_MAX_REASON_LENGTH] for pod in pending).most_common()
    yield from (PendingReason(reason, count) for reason, count in counts[:_MAX_REASONS])
    if others := sum(count for _, count in counts[_MAX_REASONS:]):
        yield PendingReason("other", others)
