"""Settings of the history that the controller keeps."""
# ruff: noqa: RUF009 - what `setting` returns is a dataclass field, as `field` does

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from karpenter.model import setting_kinds as kinds
from karpenter.model.setting_kinds import setting

#: The ledger takes a longer gap than 15 min between samples for time in which no controller ran (``history_records.MAX_GAP``).
LONGEST_HISTORY_INTERVAL = timedelta(minutes=10)


@dataclass(frozen=True)
class HistorySettings:
    """History."""

    history_file: str = setting(
        kinds.FILE,
        "",
        "SQLite file for the history of decisions and spending, shown by the console; empty means that none is kept.",
    )
    history_max_age: timedelta = setting(
        kinds.INTERVAL, "720h", "Older entries of the history are deleted. 720h are 30 days."
    )
    history_max_bytes: int = setting(
        kinds.POSITIVE,
        "67108864",
        "Size of the history file from which on the oldest entries are deleted.",
        unit="bytes",
    )
    history_cost_label: str = setting(kinds.TEXT, "team", "Label of pods by whose value the history splits spending.")
    history_interval: timedelta = setting(
        kinds.INTERVAL, "1m", "How often nodes, prices and pending pods are sampled for the history; at most 10m."
    )
