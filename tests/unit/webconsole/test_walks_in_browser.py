"""Walks through the console in a real browser: with the keyboard, by links, after signing in, on thousands of nodes.

`make soak` installs what they need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from karpenter.console.console_input import ClusterWires
from karpenter.history.history_records import DecisionRecord, InterruptionRecord, NodeFacts
from karpenter.history.history_store import HistoryBounds, HistoryStore
from karpenter.webconsole.viewer_access import ANSWER_SECONDS, KubernetesAccess
from support.browser import TIMEOUT_MS, Visit, served
from support.builders import NOW, seconds
from support.console_cases import StagedSource, console_input
from support.disruption_cases import pool, running
from support.reviewing_server import CLUSTER, NAMESPACES, Clock, ReviewingServer
from support.top_screens import cluster

pytestmark = pytest.mark.soak
TITLES = ("Overview", "Nodes", "Pending", "Decisions", "NodePools", "Spending", "Savings", "What if")
DETAILS = ("node/held", "pod/default/huge", "decision/DECISION", "pools?do=freeze:np", "what-if?drain=half")
DIALOG = "dialog[open] pre"
#: Seconds within which a page of thousands of nodes answers; a figure is in `python -m bench console`.
USABLE_SECONDS = 10.0


@pytest.fixture(scope="module")
def busy() -> Iterator[str]:
    """The address of a console on a cluster that has something of everything, and stays as it is."""
    with served(StagedSource(cluster())) as address:
        yield address


# -- accessibility and figures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", DETAILS)
def test_pages_about_one_object_and_dialogs_are_accessible(chromium: Any, busy: str, place: str) -> None:
    """axe-core's rules of WCAG 2.2 AA, in both colour schemes."""
    for scheme in ("light", "dark"):
        visit = Visit(chromium, busy, scheme=scheme)
        decision = visit.page.evaluate("async () => (await (await fetch('api/view')).json()).decisions[0].id")
        visit.page.evaluate("place => { location.hash = '#/' + place }", place.replace("DECISION", decision))
        visit.page.wait_for_selector(_landmark(place), timeout=TIMEOUT_MS)
        assert visit.violations() == []
        assert visit.complaints == []
        visit.close()


def _landmark(place: str) -> str:
    """What is there once the page is."""
    if "do=" in place:
        return DIALOG
    return {"node": "#explanation[aria-busy=false]", "pod": "#explanation", "decision": ".picture"}.get(
        place.partition("/")[0], ".verdict"
    )


def test_every_table_has_the_rows_and_figures_of_the_api(chromium: Any, busy: str) -> None:
    visit = Visit(chromium, busy)
    view = visit.page.evaluate("async () => (await fetch('api/view')).json()")
    visit.go("nodes")
    expected = {
        (row["name"], row["pool"], row["type"], str(row["pods"]), dollars(row["price"])) for row in view["nodes"]
    }
    assert {(row[0], row[1], row[2], row[8], row[9]) for row in _cells(visit, "nodes")} == expected
    for grouping, field, none in (("zone", "zone", "(no zone)"), ("pool", "pool", "(no NodePool)")):
        visit.page.select_option("#main select", grouping)
        groups = [heading.inner_text() for heading in visit.page.locator(".group h3").all()]
        assert [text.split("  ")[0].split(" ")[0] for text in groups] == [
            name.split(" ")[0] for name in sorted({row[field] or none for row in view["nodes"]})
        ]
    visit.go("pending")
    assert {(row[0], row[4]) for row in _cells(visit, "pods")} == {
        (row["pod"], row["reason"]) for row in view["pending"]
    }
    visit.go("pools")
    pools = {(row["name"], str(row["nodes"]), dollars(row["price"]), str(row["drifted"])) for row in view["pools"]}
    assert {(row[0], row[1], row[2], row[5]) for row in _cells(visit, "pools")} == pools
    spans = visit.page.evaluate("async () => (await fetch('api/budgets?days=7')).json()")
    calendar = {f"{span['pool']}: {span['reason'].lower()}" for span in spans}
    visit.page.wait_for_selector(".calendar tbody tr", timeout=TIMEOUT_MS)
    assert {head.inner_text() for head in visit.page.locator(".calendar tbody th").all()} == calendar
    assert visit.page.locator(".calendar .span").count() == len(spans)
    assert visit.page.locator(".calendar .closed").count() == sum(span["allowed"] == 0 for span in spans) > 0
    visit.go("decisions")
    decided = {(row["kind"], row["text"], row["reason"], dollars(row["saving"])) for row in view["decisions"]}
    assert {(row[1], row[2], row[3], row[4]) for row in _cells(visit, "decisions")} == decided
    visit.go("spend")
    for dimension, rows in view["spending"].items():
        shown = {(row[0], row[1]) for row in _cells(visit, dimension.replace(" ", "-").lower())}
        assert shown == {(row["name"], dollars(row["price"])) for row in rows}, dimension
    visit.close()


def dollars(usd: float | None) -> str:
    """A price as the page writes it."""
    return "\u2013" if usd is None else f"${usd:.4f}"


def _cells(visit: Visit, table: str) -> list[list[str]]:
    visit.page.wait_for_selector(f"#{table} tbody tr", timeout=TIMEOUT_MS)
    return visit.page.evaluate(
        "id => [...document.querySelectorAll(`#${id} tbody tr`)]"
        ".map((row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent))",
        table,
    )


# -- the keyboard -------------------------------------------------------------------------------------------------------------


def _tab_to(visit: Visit, condition: str) -> None:
    """Press Tab until the focused element ``e`` fulfils a condition of JavaScript."""
    for _ in range(120):
        visit.page.keyboard.press("Tab")
        if visit.page.evaluate(f"(() => {{ const e = document.activeElement; return {condition}; }})()"):
            return
    raise AssertionError(f"the keyboard does not reach {condition}")


def test_every_page_is_reached_and_left_with_the_keyboard_alone(chromium: Any, busy: str) -> None:
    visit = Visit(chromium, busy)
    page = visit.page
    for title in TITLES[1:]:
        _tab_to(visit, f"e.closest('nav') !== null && e.textContent === '{title}'")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", "the focus can be seen"
        page.keyboard.press("Enter")
        page.wait_for_function("title => document.title.startsWith(title)", arg=title)
        assert page.evaluate("document.activeElement.id") == "main"
    assert visit.complaints == []
    visit.close()


def test_tables_questions_and_actions_work_with_the_keyboard_alone(chromium: Any, busy: str) -> None:
    visit = Visit(chromium, busy)
    page = visit.page
    visit.go("nodes")
    _tab_to(visit, "e.type === 'search'")
    page.keyboard.type("spot")
    page.wait_for_function("() => document.querySelectorAll('#nodes tbody tr').length === 2")
    _tab_to(visit, "e.closest('th') !== null && e.textContent.startsWith('pods')")
    page.keyboard.press("Enter")
    page.wait_for_selector("th[aria-sort=ascending]")
    visit.go("what-if")
    _tab_to(visit, "e.getAttribute('list') === 'node-names'")
    page.keyboard.type("half")
    page.keyboard.press("Enter")
    page.wait_for_selector(".verdict", timeout=TIMEOUT_MS)
    assert page.url.endswith("#/what-if?drain=half")
    visit.go("pools")
    _tab_to(visit, "e.textContent === 'Freeze np'")
    page.keyboard.press("Enter")
    page.wait_for_selector(DIALOG)
    _tab_to(visit, "e.maxLength === 200")
    page.keyboard.type("the sale")
    page.wait_for_function("() => document.querySelector('dialog[open] pre').textContent.includes('the sale')")
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.querySelector('dialog[open]') === null")
    assert page.evaluate("document.activeElement.textContent") == "Freeze np", "the focus is where it was"
    assert visit.complaints == []
    visit.close()


# -- links --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("pools?do=freeze:", "kubectl create configmap karpenter-freeze --namespace kube-system"),
        ("pools?do=thaw:", "kubectl delete configmap karpenter-freeze --namespace kube-system"),
        (
            "pools?do=freeze:np&for=8&because=the+sale",
            "kubectl annotate --overwrite nodepool np 'karpenter.sh/freeze=the sale' karpenter.sh/freeze-until=",
        ),
        ("pools?do=thaw:np", "kubectl annotate --overwrite nodepool np karpenter.sh/freeze- "),
        ("pools?do=wake:np&for=nonsense", "kubectl annotate --overwrite nodepool np "),
        ("node/half?do=keep-node:half", "kubectl annotate --overwrite node half karpenter.sh/do-not-disrupt=true"),
        ("what-if?drain=half&do=drain-node:claim-half", "kubectl delete nodeclaim claim-half --wait=false"),
    ],
)
def test_a_link_proposes_an_action_and_does_nothing_by_itself(chromium: Any, busy: str, place: str, line: str) -> None:
    visit = Visit(chromium, busy)
    sent: list[str] = []
    visit.page.on("request", lambda request: request.method == "POST" and sent.append(request.post_data))
    visit.page.evaluate("place => { location.hash = '#/' + place }", place)
    visit.page.wait_for_function(
        "line => document.querySelector('dialog[open] pre')?.textContent.startsWith(line)", arg=line, timeout=TIMEOUT_MS
    )
    assert visit.page.locator("dialog[open]").count() == 1
    assert sent
    assert all('"confirmed":false' in body for body in sent)
    visit.page.get_by_role("button", name="Close").click()
    visit.page.wait_for_function("() => document.querySelector('dialog[open]') === null")
    assert "do=" not in visit.page.url
    visit.close()


def test_an_opened_action_is_the_link_to_it(chromium: Any, busy: str) -> None:
    visit = Visit(chromium, busy)
    visit.go("pools")
    visit.page.get_by_role("button", name="Wake np").click()
    visit.page.locator("dialog[open] select").select_option("24")
    visit.page.locator("dialog[open] input").fill("load test")
    visit.page.wait_for_function("() => document.querySelector('dialog[open] pre').textContent.includes('load test')")
    link = visit.page.url.split("#")[1]
    assert link == "/pools?do=wake%3Anp&for=24&because=load+test"
    visit.close()


# -- history ------------------------------------------------------------------------------------------------------------------


def test_decisions_of_a_history_are_shown_beside_interruptions_and_failures(chromium: Any, tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "history.db", HistoryBounds(timedelta(days=90), 2**30))
    before, after = (NodeFacts("gone", "np", "l", "z1", "spot", 4.0, 7, 0.5),), (NodeFacts("new", "np", "m"),)
    text = "-1 node +1 node (underutilized)"
    store.add_decisions(
        [
            DecisionRecord(
                "cmd", seconds(-3600), "disruption", "Underutilized", text, "succeeded", "", NOW, 7, 1.5, before, after
            )
        ]
    )
    store.add_interruptions([InterruptionRecord(seconds(-1800), "SpotInterrupted", "lost", "two minutes' notice")])
    with served(StagedSource(cluster()), history=store) as address:
        visit = Visit(chromium, address)
        visit.go("decisions")
        visit.page.wait_for_function(f"() => document.querySelector('#decisions')?.textContent.includes('{text}')")
        rows = {row[2]: row for row in _cells(visit, "decisions")}
        assert rows[text][4:7] == ["$1.5000", "7", "succeeded"]
        assert rows["two minutes' notice"][1] == "interruption"
        assert rows["no m in z1"][1] == "failure"
        visit.page.get_by_role("link", name="two minutes' notice").last.click()
        visit.page.wait_for_selector(".picture", timeout=TIMEOUT_MS)
        assert visit.page.locator(".picture .host.gone strong").inner_text() == "lost"
        assert visit.complaints == []
        visit.close()


# -- signing in ---------------------------------------------------------------------------------------------------------------


def test_people_sign_in_with_a_token_and_see_what_they_may_list(chromium: Any) -> None:
    """Anonymous, without rights, one namespace, everything; axe-core finds nothing on the way."""
    given = console_input(*CLUSTER)
    claims = tuple(view.claim for view in given.snapshot.nodes if view.claim is not None)
    given = replace(given, wires=ClusterWires(claims, given.snapshot.pools))
    access = KubernetesAccess(ReviewingServer(), lambda: NAMESPACES, monotonic)
    with served(StagedSource(given), access=access) as address:
        visit = Visit(chromium, address, shows="form")
        page = visit.page
        assert "sign in with a token" in page.inner_text("[role=alert]")
        assert visit.violations() == []
        for token, said in (("made-up", "does not accept this token"), ("nobody", "nobody may list none of")):
            page.fill("input[type=password]", token)
            page.keyboard.press("Enter")
            page.wait_for_function(
                "said => document.querySelector('[role=alert]')?.textContent.includes(said)", arg=said
            )
        for token, waiting in (("shopkeeper", ["shop/p-shop"]), ("admin", ["secret/p-secret", "shop/p-shop"])):
            page.fill("input[type=password]", token)
            page.keyboard.press("Enter")
            page.wait_for_selector("main .panel", timeout=TIMEOUT_MS)
            assert token in page.inner_text(".user")
            visit.go("pending")
            assert sorted(row[0] for row in _cells(visit, "pods")) == waiting
            visit.go("nodes")
            assert ("n-hidden" in page.inner_text("body")) is (token == "admin")
            assert visit.violations() == []
            page.get_by_role("button", name="Sign out").click()
            page.wait_for_selector("form", timeout=TIMEOUT_MS)
            visit.page.evaluate("location.hash = ''")
        assert page.evaluate("document.cookie + Object.keys(sessionStorage).join()") == ""
        visit.close()


def test_a_viewer_who_gets_rights_after_signing_in_tries_again_with_the_same_token(chromium: Any) -> None:
    server, clock = ReviewingServer(), Clock()
    given = console_input(*CLUSTER)
    access = KubernetesAccess(server, lambda: NAMESPACES, lambda: clock.now)
    with served(StagedSource(given), access=access) as address:
        visit = Visit(chromium, address, shows="form")
        page = visit.page
        assert page.get_by_role("button", name="Try again").count() == 0, "without a token it would be refused again"
        page.fill("input[type=password]", "nobody")
        page.keyboard.press("Enter")
        again = page.get_by_role("button", name="Try again")
        again.wait_for(timeout=TIMEOUT_MS)
        server.rights["nobody"] = frozenset({("pods", "shop")})
        clock.now += ANSWER_SECONDS + 1
        again.click()
        page.wait_for_selector("main .panel", timeout=TIMEOUT_MS)
        assert "nobody" in page.inner_text(".user")
        visit.close()


# -- size ---------------------------------------------------------------------------------------------------------------------


def test_five_thousand_nodes_are_filtered_and_opened(chromium: Any) -> None:
    nodes = [running(f"node-{number:04}", "m", 1, 1) for number in range(5000)]
    with served(StagedSource(console_input(pool(), nodes))) as address:
        visit = Visit(chromium, address)
        page = visit.page
        page.wait_for_function("() => document.querySelectorAll('a.box').length === 5000", timeout=TIMEOUT_MS)
        visit.go("nodes")
        page.wait_for_function("() => document.querySelectorAll('#nodes tbody tr').length === 5000", timeout=TIMEOUT_MS)
        begun = monotonic()
        page.fill("input[type=search]", "node-4321")
        page.wait_for_function("() => document.querySelectorAll('#nodes tbody tr').length === 1", timeout=TIMEOUT_MS)
        assert monotonic() - begun < USABLE_SECONDS
        begun = monotonic()
        page.locator("#nodes tbody a").click()
        page.wait_for_selector(".facts", timeout=TIMEOUT_MS)
        assert monotonic() - begun < USABLE_SECONDS
        assert page.url.endswith("#/node/node-4321")
        assert visit.complaints == []
        visit.close()
