"""``--html``: one page with the same figures as the JSON, and nothing to load from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app
from karpenter.cli.terminal import check_writable
from support.manifest_builders import type_of

POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  template:
    spec:
      requirements: []
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
"""
SCENARIO = "days: 0.05\nworkloads:\n  - {kind: drips, name: jobs, perHour: 12, runMinutes: 20, cpu: 1500m}\n"
#: A name that would break the page if it were not escaped.
POLICY_NAME = "a<b>&c"


class Cells(HTMLParser):
    """The rows of the tables in sections (legends of charts are tables, too), and what the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.loaded: list[str] = []
        self._in_section = self._in_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value for name, value in attrs if name in ("src", "href") and value is not None]
        self._in_section = self._in_section or tag == "section"
        if tag == "tr" and self._in_section:
            self.rows.append([])
        self._in_cell = self._in_section and tag in ("td", "th")
        if self._in_cell:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = False
        self._in_section = self._in_section and tag != "section"

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The page of two policies, and the JSON printed beside it."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "pools.yaml").write_text(POOL)
    (folder / "drips.yaml").write_text(SCENARIO)
    (folder / f"{POLICY_NAME}.yaml").write_text("consolidationPolicy: WhenEmpty\n")
    (folder / "types.json").write_text(json.dumps([type_of("a.small", 2, 4, 0.1)]))
    files = ("-f", str(folder / "pools.yaml"), "--instance-types", str(folder / "types.json"))
    policies = f"lean,{folder / POLICY_NAME}.yaml"
    page = folder / "page.html"
    arguments = ("simulate", *files, "--scenario", str(folder / "drips.yaml"), "--compare", policies)
    result = CliRunner().invoke(app, [*arguments, "--html", str(page), "-o", "json"], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    return page, json.loads(result.stdout)


def read(page: str) -> Cells:
    cells = Cells()
    cells.feed(page)
    return cells


def assert_tables_equal(rows: list[list[str]], document: dict[str, Any]) -> None:
    reports = document["reports"]
    figures = {row[0]: row[1:] for row in reversed(rows)}
    assert figures[""] == ["lean", POLICY_NAME]
    assert figures["cost"] == [f"${report['cost']['usd']:,.2f}" for report in reports]
    assert figures["restarts"] == [str(report["restarts"]["total"]) for report in reports]


def test_the_page_shows_the_figures_of_the_json_and_carries_it(written: tuple[Path, dict[str, Any]]) -> None:
    path, document = written
    page = path.read_text()
    assert_tables_equal(read(page).rows, document)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1]) == document


def test_the_page_loads_nothing_from_elsewhere(written: tuple[Path, dict[str, Any]]) -> None:
    page = written[0].read_text()
    assert read(page).loaded == []
    assert "@import" not in page
    assert "url(" not in page


def test_a_page_that_cannot_be_written_is_refused_before_the_simulation(tmp_path: Path) -> None:
    target = tmp_path / "nowhere" / "page.html"
    result = CliRunner().invoke(app, ["simulate", "--scenario", "web", "--html", str(target)])
    assert result.exit_code == 2
    assert result.stderr == f"--html {target}: cannot be written (No such file or directory)\n"


def test_a_link_to_a_page_that_is_not_there_yet_stays(tmp_path: Path) -> None:
    link = tmp_path / "page.html"
    link.symlink_to(tmp_path / "target.html")
    check_writable("--html", link)
    assert link.is_symlink()
    assert not link.exists()


@pytest.mark.soak
def test_a_browser_draws_the_charts_without_an_error(written: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Chromium (Debian package ``chromium``) is part of what `make soak` needs."""
    path, document = written
    browser = shutil.which("chromium")
    assert browser is not None, "install the package chromium"
    picture = tmp_path / "page.png"
    arguments = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}")
    shown = subprocess.run(
        [browser, *arguments, "--enable-logging=stderr", "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in shown.stderr
    assert len(re.findall(r"<canvas", shown.stdout)) == 6
    assert_tables_equal(read(shown.stdout).rows, document)
    subprocess.run(
        [browser, *arguments, f"--screenshot={picture}", "--window-size=1000,3000", path.as_uri()],
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
