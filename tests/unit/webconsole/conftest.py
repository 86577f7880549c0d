"""A real browser, and a console on the demo, for the tests that need them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from support.browser import AXE, ROOT
from support.installed_program import KARPENTER


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    found = shutil.which("chromium")
    assert found is not None, "install the package chromium"
    assert importlib.util.find_spec("playwright") is not None, "run make soak, which installs the group browser"
    assert AXE.exists(), "run npm ci in console-web"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def demo_console() -> Iterator[str]:
    """The address of a console on the demo, after most of its steps."""
    command = [KARPENTER, "demo", "--console", "--pods", "80", "--speed", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()
