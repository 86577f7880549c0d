"""The in-memory API server takes, completes and refuses our objects as the table says; a real one does in ``cluster``."""

from __future__ import annotations

import pytest

from support.admission import INVALID_STORED, ROWS
from support.admission_rows import Row
from support.admission_statuses import STATUS
from support.server_writes import Write, in_memory, in_memory_over


@pytest.mark.parametrize("row", [*ROWS, *STATUS], ids=lambda row: row.id)
def test_the_server_accepts_and_refuses_what_the_table_says(row: Row) -> None:
    """API-033"""
    answer = in_memory(Write.of(row))
    assert answer.accepted == row.accepted, answer.text
    if not row.accepted:
        assert answer.status in (400, 422)
        assert [word for word in row.words if word not in answer.text] == []


@pytest.mark.parametrize("row", INVALID_STORED, ids=lambda row: row.id)
def test_what_was_stored_as_it_is_does_not_stand_against_other_changes(row: Row) -> None:
    answer = in_memory_over(Write.of(row))
    assert answer.accepted == row.accepted, answer.text
