"""What budgets and freezes will allow: a period cut into stretches within which nothing about them changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from karpenter.model.budgets import Allowance
from karpenter.model.freezes import Freeze
from karpenter.model.pool_rules import PoolRules
from karpenter.model.windows import Span


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time, what may go in it by reason, and the freeze that is on."""

    span: Span
    allowances: Mapping[str, Allowance]
    freeze: Freeze | None


def timeline(rules: PoolRules, nodes: int, period: Span, reasons: Sequence[str]) -> tuple[Stretch, ...]:
    """The stretches of a period (UTC), in order and without gaps, for a pool of ``nodes`` all along."""
    return tuple(_joined(_stretches(rules, nodes, period, reasons)))


def _stretches(rules: PoolRules, nodes: int, period: Span, reasons: Sequence[str]) -> Iterator[Stretch]:
    moments = sorted({period.begin, period.end, *rules.edges(period)})
    for begin, end in pairwise(moments):
        allowances = {reason: rules.allowance(nodes, reason, begin) for reason in reasons}
        yield Stretch(Span(begin, end), allowances, rules.freeze(begin))


def _joined(stretches: Iterator[Stretch]) -> Iterator[Stretch]:
    """A budget that comes or goes under a stricter one changes nothing."""
    last: Stretch | None = None
    for stretch in stretches:
        if last is not None and (last.allowances, last.freeze) == (stretch.allowances, stretch.freeze):
            last = replace(last, span=Span(last.span.begin, stretch.span.end))
            continue
        if last is not None:
            yield last
        last = stretch
    if last is not None:
        yield last
