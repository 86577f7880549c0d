"""``docs/settings.md`` is what the declarations say."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_settings_document_is_generated_from_the_declarations() -> None:
    written = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert written == runpy.run_path(str(ROOT / "tools" / "settings_doc.py"))["page"](), (
        "run: python tools/settings_doc.py > docs/settings.md"
    )
