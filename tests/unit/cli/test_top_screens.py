"""The whole screen of ``karpenter top``, tab by tab, beside the text that is kept of it."""

from __future__ import annotations

import pytest

from support.examples import series
from support.top_screens import KEPT, SIZES, kept_file, screens


@pytest.mark.parametrize("size", series(SIZES, SIZES[0]), ids=lambda size: "{}x{}".format(*size))
async def test_every_screen_is_as_it_is_kept(size: tuple[int, int]) -> None:
    """OPS-800 to OPS-805. `python tools/top_screens.py` renews the texts; what changed is part of the change."""
    shown = await screens(size)
    columns, lines = size
    for name, text in shown.items():
        assert text == kept_file(name, size).read_text(encoding="utf-8"), name
        assert len(text.splitlines()) == lines
        assert max(map(len, text.splitlines())) <= columns
    kept = {file.name for file in KEPT.glob(f"*-{columns}x{lines}.txt")}
    assert kept == {kept_file(name, size).name for name in shown}
