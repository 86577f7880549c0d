"""The pages in a real browser, on the demo and on a cluster full of markup. `make soak` installs what they need."""

from __future__ import annotations

from typing import Any

import pytest

from support.browser import TIMEOUT_MS, Visit

pytestmark = pytest.mark.soak
PAGES = ("overview", "nodes", "pending", "decisions", "pools", "spend", "savings", "what-if?pods=40&cpu=1&memory=2Gi")
WIDTHS = (360, 800, 1280)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_demo_is_accessible_and_without_a_complaint(chromium: Any, demo_console: str, page: str) -> None:
    """axe-core's rules of WCAG 2.2 AA, contrast included, in both colour schemes."""
    for scheme in ("light", "dark"):
        visit = Visit(chromium, demo_console, scheme=scheme)
        visit.go(page)
        assert visit.violations() == []
        assert visit.complaints == []
        own = demo_console.split("/?")[0]
        assert all(url.startswith(own) for url in visit.requests), "nothing is loaded from elsewhere"
        visit.close()


def test_the_figures_of_the_page_are_those_of_the_api(chromium: Any, demo_console: str) -> None:
    """§9.2: active nodes, pending pods, CPU and memory, timeline, instance types."""
    visit = Visit(chromium, demo_console)
    equal = """async () => {
        const view = await (await fetch('api/view')).json();
        const shown = (id) => document.querySelector(`[data-figure="${id}"] .value`)?.textContent;
        const types = (view.spending['instance type'] ?? []).slice(0, 12).map((row) => row.name).join();
        const items = [...document.querySelectorAll('.shares li > span:first-child')];
        const listed = items.map((item) => item.textContent).join();
        return shown('nodes') === String(view.nodes.length)
            && shown('pending') === String(view.pods.pending)
            && shown('cpu') === `${Math.round(view.fill.cpu * 100)} %`
            && shown('memory') === `${Math.round(view.fill.memory * 100)} %`
            && shown('price') === `$${view.price.toFixed(3)}`
            && document.querySelectorAll('a.box').length === view.nodes.length
            && view.nodes.length > 0 && types === listed;
    }"""
    visit.until(equal)
    visit.go("decisions")
    for kind in ("launch", "disruption", "interruption"):
        visit.until(f"() => document.querySelector('#decisions tbody')?.textContent.includes('{kind}')")
    visit.go("nodes")
    assert visit.page.locator("#nodes tbody tr").count() == visit.page.locator("a.box").count()
    visit.close()


def test_a_node_is_found_explained_and_kept_with_the_keyboard_alone(chromium: Any, demo_console: str) -> None:
    visit = Visit(chromium, demo_console)
    page = visit.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('box')"):
            break
    name = page.evaluate("document.activeElement.dataset.node")
    page.keyboard.press("Enter")
    explained = "() => document.getElementById('explanation')?.textContent.startsWith('Node ')"
    page.wait_for_function(explained, timeout=TIMEOUT_MS)
    assert page.url.endswith(f"#/node/{name}")
    assert page.evaluate("document.activeElement.id") == "main", "the focus follows"
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.startsWith('Keep node')"):
            break
    page.keyboard.press("Enter")
    line = f"kubectl annotate --overwrite node {name} karpenter.sh/do-not-disrupt=true"
    page.wait_for_function("line => document.querySelector('dialog[open] pre')?.textContent === line", arg=line)
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    assert visit.complaints == []
    visit.close()


def test_a_link_opens_the_same_view_for_another_user(chromium: Any, demo_console: str) -> None:
    visit = Visit(chromium, demo_console)
    visit.go("nodes")
    visit.page.select_option("select", "zone")
    visit.page.fill("input[type=search]", "us-east")
    visit.page.locator("#nodes thead").get_by_role("button", name="pods").click()
    link = visit.page.url.split("#")[1]
    rows = visit.page.locator("#nodes tbody tr").count()
    visit.close()
    other = Visit(chromium, demo_console)
    other.page.evaluate("hash => { location.hash = hash }", link)
    other.page.wait_for_selector("#nodes")
    assert other.page.input_value("select") == "zone"
    assert other.page.input_value("input[type=search]") == "us-east"
    assert other.page.get_attribute("th[aria-sort=ascending]", "aria-sort") == "ascending"
    assert other.page.locator("#nodes tbody tr").count() == rows
    other.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_is_wider_than_the_screen(chromium: Any, demo_console: str, width: int) -> None:
    visit = Visit(chromium, demo_console, width)
    for page in PAGES:
        visit.go(page)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width, page
    visit.close()
