"""Takes the pictures of the console in docs: ``python tools/console_pictures.py``. Needs Chromium and the group ``browser``.

They show the demo, whose story takes its own time, so they differ from run to run and no test compares them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
#: File, page, width, colour scheme.
PICTURES: tuple[tuple[str, str, int, Literal["light", "dark"]], ...] = (
    ("console-overview", "overview", 1280, "light"),
    ("console-nodes", "nodes?group=zone", 1280, "dark"),
    ("console-what-if", "what-if?forbid=m5", 1280, "light"),
    ("console-decision", "decisions", 800, "light"),
    ("console-savings", "savings", 1280, "light"),
    ("console-phone", "overview", 360, "light"),
)
_PATIENCE = 120_000


def main() -> None:
    """Write all of them."""
    browser_path = shutil.which("chromium")
    command = [str(Path(sys.executable).with_name("karpenter")), "demo", "--console", "--pods", "120", "--speed", "25"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo, sync_playwright() as playwright:
        assert demo.stdout is not None
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        address = demo.stdout.readline().strip()
        page = browser.new_page()
        page.goto(address)
        # Until a consolidation has been decided the story has little to show.
        page.wait_for_function("() => document.querySelectorAll('.mark.disruption').length > 1", timeout=_PATIENCE)
        for name, place, width, scheme in PICTURES:
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            shown = context.new_page()
            shown.goto(address)
            shown.wait_for_selector("main .panel", timeout=_PATIENCE)
            shown.evaluate("place => { location.hash = '#/' + place }", place)
            if place == "decisions":
                shown.locator("#decisions tbody a").first.click()
            if place.startswith("what-if"):
                shown.wait_for_selector(".verdict", timeout=_PATIENCE)
            shown.wait_for_timeout(1500)
            shown.screenshot(path=FOLDER / f"{name}.png", full_page=width > 400)
            context.close()
        demo.terminate()


if __name__ == "__main__":
    main()
