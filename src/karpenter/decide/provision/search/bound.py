"""The least that pods could cost: a linear programme over parts of machines, and what it says each pod is worth.

Machines may be bought in parts, and pods split over the machines they fit on, but all a pod requests comes from the same kind
of machine; rules between pods play no part. No plan can be cheaper. The programme has, for every kind of machine worth it, how
much of it to buy, and for every crowd how many of it go there; the prices of its rows are what the search goes by: of a pod of
each crowd, and of each resource on each kind of machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from karpenter.decide.provision.search.linear import Columns, Flags, Floats, minimise
from karpenter.decide.provision.search.wares import Rows, by_price


@dataclass(frozen=True, eq=False)
class Crowds:
    """Pods by what they request and their taste: how many, what each needs, and the number of the taste."""

    counts: Floats
    needs: Floats
    tastes: Sequence[int]


@dataclass(frozen=True, eq=False)
class Relaxed:
    """The outcome: USD per hour at least, what a pod of each crowd is worth, and each resource on the kinds in ``rows``."""

    cost: float
    worths: Floats
    rows: Rows
    opens: Flags
    weights: Floats


def relaxed(crowds: Crowds, rows: Rows, fee: float, units: Mapping[int, int]) -> Relaxed | None:
    """The least cost, each machine costing a fee beside its price; None where somebody fits nowhere.

    ``units``: what is left of each numbered reservation.
    """
    fits = (crowds.needs[None, :, :] <= rows.rooms[:, None, :]).all(axis=2)
    opens = rows.accepts[:, np.array(crowds.tastes, dtype=np.intp)] & fits
    dear = Rows(rows.rooms, rows.prices + fee, rows.accepts, rows.reservation)
    kept = by_price(dear, opens)
    dear, opens = dear.pick(kept), opens[kept]
    if not opens.any(axis=0).all():
        return None
    solution = _solve(crowds, dear, opens, units)
    if solution is None:
        return None
    cost, worths, weights = solution
    return Relaxed(cost, worths, dear, opens, weights)


def _solve(crowds: Crowds, rows: Rows, opens: Flags, units: Mapping[int, int]) -> tuple[float, Floats, Floats] | None:
    """Columns: pods of a crowd in a kind, then machines of a kind. Rows: crowds, resources of kinds, reservations."""
    number, kinds, resources = len(crowds.counts), len(rows.prices), crowds.needs.shape[1]
    scale = np.maximum(crowds.needs.max(axis=0), 1.0)
    kind, crowd = np.nonzero(opens)
    places = np.arange(resources)
    inside = np.column_stack([crowd, number + kind[:, None] * resources + places])
    amounts = np.column_stack([np.ones(len(kind)), (crowds.needs / scale)[crowd]])
    marks = sorted(units)
    reserved = np.array([marks.index(int(mark)) if mark in units else -1 for mark in rows.reservation], dtype=np.intp)
    base = number + kinds * resources
    machine_rows = [number + np.arange(kinds)[:, None] * resources + places]
    machine_values = [-rows.rooms / scale]
    if marks:
        machine_rows.append(np.where(reserved >= 0, base + reserved, base)[:, None])
        machine_values.append((reserved >= 0).astype(np.float64)[:, None])
    of_machine, of_machine_values = np.column_stack(machine_rows), np.column_stack(machine_values)
    width = of_machine.shape[1]
    starts = np.concatenate(
        [np.arange(len(kind)) * (resources + 1), len(kind) * (resources + 1) + np.arange(kinds + 1) * width]
    )
    columns = Columns(
        starts,
        np.concatenate([inside.ravel(), of_machine.ravel()]),
        np.concatenate([amounts.ravel(), of_machine_values.ravel()]),
    )
    least = np.full(kinds * resources + len(marks), -np.inf)
    most = np.concatenate([np.zeros(kinds * resources), np.array([float(units[mark]) for mark in marks])])
    found = minimise(
        np.concatenate([np.zeros(len(kind)), rows.prices]),
        columns,
        np.concatenate([crowds.counts, least]),
        np.concatenate([np.full(number, np.inf), most]),
    )
    if found is None:
        return None
    weights = -found.duals[number:base].reshape(kinds, resources) / scale
    return found.objective, found.duals[:number], weights
