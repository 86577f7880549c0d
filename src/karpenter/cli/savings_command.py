"""``karpenter savings FILE``: what was spent and saved, from the history that a controller keeps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

import typer

from karpenter.cli.output_formats import OutputOption, Printable, write_output
from karpenter.cli.terminal import WRONG_INPUT, exit_with_error, write_text

_MOST_DAYS = 366
_MAX_SAMPLES, _MAX_NAMES, _MAX_DECISIONS = 1_000_000, 100_000, 100_000
Export = Literal["csv", "opencost", "focus"]


def savings(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="History file of a controller (--history-file).")],
    days: Annotated[int, typer.Option(min=1, max=_MOST_DAYS, help="Number of days, up to now.")] = 7,
    export: Annotated[
        Export | None,
        typer.Option(help="csv: everything; opencost: JSON of its allocation API, by namespace; focus: FOCUS columns."),
    ] = None,
    cluster: Annotated[str, typer.Option(metavar="NAME", help="Name of the cluster in exports.")] = "kubernetes",
    output: OutputOption = "table",
) -> None:
    """Show what was spent per day and on what, what decisions saved, and what classic packing would have paid.

    Figures are estimates from listed prices. Read-only.
    """
    from karpenter.cli import render_savings
    from karpenter.history.history_store import HistoryUnreadable, readable_history
    from karpenter.history.ledger_exports import LedgerExport, exported
    from karpenter.history.stored_ledger import LedgerBounds, ledger_document, stored_ledger
    from karpenter.model.budget_windows import TimeSpan

    now = datetime.now(UTC).replace(microsecond=0)
    period = TimeSpan(now - timedelta(days=days), now)
    try:
        store = readable_history(file)
    except HistoryUnreadable as error:
        exit_with_error(f"karpenter savings: {error}", WRONG_INPUT)
    ledger = stored_ledger(store, period, LedgerBounds(_MAX_SAMPLES, _MAX_NAMES, _MAX_DECISIONS))
    if export is not None:
        write_text(exported(ledger, LedgerExport(export), cluster))
        return
    printable = Printable(
        document=lambda: ledger_document(ledger),
        page=lambda out: render_savings.write(ledger, out),
        names=lambda: [saving.decision.decision_id for saving in ledger.decisions],
    )
    write_output(output, printable)
