"""The generated files and what writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from monitoring.alerts import RUNBOOKS, page, rules_yaml
from monitoring.decisions import DECISIONS
from monitoring.money import MONEY
from monitoring.overview import OVERVIEW
from monitoring.panels import to_json
from monitoring.series import exported_json

DASHBOARDS = (OVERVIEW, MONEY, DECISIONS)

#: Path within the repository -> its content.
FILES: Mapping[str, Callable[[], str]] = {
    **{f"charts/karpenter/dashboards/{board.name}.json": partial(to_json, board) for board in DASHBOARDS},
    "charts/karpenter/alerts/karpenter.yaml": rules_yaml,
    RUNBOOKS: page,
    "src/karpenter/lint/exported_series.json": exported_json,
}
