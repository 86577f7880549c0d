"""What there is to say about one node: as a tree for people, as plain data for programs."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TextIO

from rich.text import Text
from rich.tree import Tree

from karpenter.cli import render_disruption
from karpenter.cli.render_disruption import opening_text, when
from karpenter.cli.render_reasons import Json
from karpenter.cli.render_table import console_on, counted
from karpenter.decide.disrupt.daemons import Misfit
from karpenter.decide.disrupt.outlook import Outlook
from karpenter.decide.disrupt.why import Blocker, Cause, Standing
from karpenter.decide.explain.misses import amount
from karpenter.model import moments
from karpenter.model import resources as res

#: Where the output is no terminal every fact has one line, so that it can be searched.
_WIDTH_ELSEWHERE = 4096


class State(StrEnum):
    """What becomes of the node."""

    GOES = "goes"
    WAITS = "waits"
    BLOCKED = "blocked"
    NEEDED = "needed"


def state(found: Standing) -> State:
    """What becomes of the node; one that only other nodes go before waits."""
    if found.move is not None:
        return State.GOES
    if found.blockers:
        return State.BLOCKED
    return State.WAITS if found.waiting is not None else State.NEEDED


def headline(found: Standing) -> str:
    """The one sentence."""
    match state(found):
        case State.GOES:
            assert found.move is not None
            return f"would go now: {render_disruption.command_text(found.move)}"
        case State.BLOCKED:
            return f"stays: {counted(len(found.blockers), 'blocker')}"
        case State.WAITS:
            return "waits: other nodes of its NodePool go first, as budgets have it"
        case _:
            if found.expects:
                return f"stays: {counted(found.expects, 'pod')} of nodes that go are meant for it"
            return "stays: nothing forbids that it goes, but no move that takes it is possible or worth it"


# -- the tree -----------------------------------------------------------------------------------------------------------------


def write(found: Standing, seen: Outlook, out: TextIO) -> None:
    """Write the tree."""
    style = "yellow" if found.blockers else "green"
    tree = Tree(Text.assemble((f"Node {found.view.name}", "bold"), " ", (headline(found), style)))
    for item in found.blockers:
        tree.add(Text(_blocker(item)))
    for line in _lines(found, seen):
        tree.add(Text(line))
    console_on(out, _WIDTH_ELSEWHERE).print(tree)


def _blocker(item: Blocker) -> str:
    if item.cause in (Cause.BUDGET, Cause.FREEZE):
        until = f"; {when(item.until)}"
    else:
        until = f"; until {moments.text(item.until)}" if item.until is not None else ""
    return f"{item.cause.value}: {item.text}{until}"


def _lines(found: Standing, seen: Outlook) -> Iterator[str]:
    if found.waiting is not None:
        yield f"without budgets it would go: {render_disruption.command_text(found.waiting)}"
        openings = () if found.blockers else seen.openings  # a blocker has said it
        yield from (opening_text(item) for item in openings if item.pool == found.view.pool)
    if found.move is not None:
        yield from (f"{item.node} takes {counted(len(item.pods), 'pod')}" for item in found.move.placed)
    for misfit in found.misfits:
        yield misfit_text(misfit)
    if found.is_assumed_consolidatable:
        yield "assumed: its quiet time (consolidateAfter) is over, no condition says so yet"
    price = "not known" if found.price_per_hour is None else f"${found.price_per_hour:.4f} per hour"
    yield f"price {price}, asked for the reasons {', '.join(reason.value for reason in found.reasons)}"


def misfit_text(found: Misfit) -> str:
    """What a DaemonSet lacks."""
    short = ", ".join(amount(name, short) for name, short in sorted(found.short.items()))
    return f"DaemonSet {found.daemon_set} does not fit: {short} short"


# -- for programs -------------------------------------------------------------------------------------------------------------


def document(found: Standing, seen: Outlook) -> Json:
    """The answer as plain data. Money is USD per hour, times are in UTC."""
    move, waiting = found.move, found.waiting
    return {
        "node": found.view.name,
        "nodeClaim": found.view.claim.metadata.name if found.view.claim is not None else None,
        "nodePool": found.view.pool or None,
        "state": state(found).value,
        "text": headline(found),
        "price": found.price_per_hour,
        "reasons": [reason.value for reason in found.reasons],
        "blockers": [_blocker_data(item) for item in found.blockers],
        "move": render_disruption.command(move) if move is not None else None,
        "withoutBudgets": render_disruption.command(waiting) if waiting is not None else None,
        "openings": [
            render_disruption.opening(item)
            for item in seen.openings
            if waiting is not None and item.pool == found.view.pool
        ],
        "daemonSetsThatDoNotFit": [
            {"daemonSet": item.daemon_set, "short": res.to_wire(item.short), "text": misfit_text(item)}
            for item in found.misfits
        ],
        "assumedConsolidatable": found.is_assumed_consolidatable,
    }


def _blocker_data(item: Blocker) -> Json:
    return {
        "cause": item.cause.value,
        "text": item.text,
        "forbids": [reason.value for reason in item.forbids],
        "until": moments.text(item.until) if item.until is not None else None,
    }
