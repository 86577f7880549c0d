"""A cluster full of markup in a real browser: known attacks, and random ones. `make soak` installs what they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karpenter.api.core import Node, Pod
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import Wire
from karpenter.console.console_input import ConsoleInput
from support.browser import TIMEOUT_MS, Visit, served
from support.builders import pod
from support.console_cases import StagedSource, console_input, event
from support.disruption_cases import pool, running

pytestmark = pytest.mark.soak
PAGES = ("overview", "nodes", "pending", "decisions", "pools", "spend", "savings", "what-if?pods=4&cpu=1&memory=2Gi")
#: Each would set ``window.pwned`` where it became markup, an address or a script.
MARKUP = (
    "<img src=x onerror=window.pwned=1>",
    "<script>window.pwned=1</script>",
    "'\"><svg onload=window.pwned=1>",
    "javascript:window.pwned=1",
    "{{window.pwned=1}}${window.pwned=1}",
    "</pre></td><iframe srcdoc='<script>parent.pwned=1</script>'>",
    "\u202e\u0000\ud7ff%3Cscript%3E&lt;b&gt;",
)
#: Pieces that attacks are made of, in any order.
PIECES = (
    *MARKUP,
    *"<>&'\"`=/\\;(){}[]#\n\t\u0000\u2028\u202e",
    "<a href=javascript:window.pwned=1>",
    "onload=window.pwned=1 ",
    "<style>*{background:url(//x/)}</style>",
    "<!--",
    "-->",
    "]]>",
    "<math><mtext>",
    "&#60;script&#62;",
    "%3Cimg%20src=x%3E",
    "data:text/html,",
    "__proto__",
    "constructor",
)
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), min_size=1, max_size=8).map("".join)


def _marked(text: str, at: int) -> list[Wire]:
    """A node with a pod, a NodePool and a waiting pod, with this text wherever one fits."""
    found: list[Wire] = []
    for obj in (pool(f"np{at}"), *running(f"n{at}", "m", 1, pool=f"np{at}"), pod(f"w{at}", {"cpu": "100"})):
        meta = obj.metadata  # type: ignore[attr-defined]
        labels = {**meta.labels, "app": text}
        changes: dict[str, Any] = {"labels": labels, "annotations": {**meta.annotations, "karpenter.sh/freeze": text}}
        if isinstance(obj, Pod):
            changes |= {"name": f"{text}{meta.name}", "namespace": text}
        if isinstance(obj, Node):
            changes["labels"] = {
                **labels,
                "topology.kubernetes.io/zone": text,
                "node.kubernetes.io/instance-type": text,
            }
        if isinstance(obj, NodePool):
            changes["name"] = meta.name
        found.append(msgspec.structs.replace(obj, metadata=msgspec.structs.replace(meta, **changes)))
    return found


def _cluster(texts: Sequence[str]) -> ConsoleInput:
    """These texts in names, labels and annotations of objects, and in events."""
    objects = [obj for at, text in enumerate(texts) for obj in _marked(text, at)]
    events = [
        event(reason, "NodeClaim", f"{text}{at}", text)
        for at, text in enumerate(texts)
        for reason in ("SpotInterrupted", "DisruptionTerminating", "InsufficientCapacityError", "Unconsolidatable")
    ]
    return console_input(*objects, events=events)


def test_markup_in_names_labels_and_messages_executes_nothing(chromium: Any) -> None:
    source = StagedSource(_cluster(MARKUP), MARKUP[0], MARKUP[1])
    with served(source, MARKUP[2]) as address:
        visit = Visit(chromium, address)
        places = [*PAGES, *(f"node/n{at}" for at in range(len(MARKUP)))]
        for place in places:
            visit.page.evaluate("place => { location.hash = '#/' + place }", place)
            visit.page.wait_for_timeout(300)
            assert visit.page.evaluate("window.pwned") is None, place
        for text in MARKUP:
            for page in ("node", "pod", "decision", "what-if"):
                query = f"#/{page}?drain=" if page == "what-if" else f"#/{page}/"
                visit.page.evaluate("([at, text]) => { location.hash = at + encodeURIComponent(text) }", [query, text])
                visit.page.wait_for_timeout(100)
        assert visit.page.evaluate("window.pwned") is None
        assert visit.page.locator("iframe, img, object, embed, main script").count() == 0
        visit.go("pending")
        assert MARKUP[0] in visit.page.inner_text("#pods"), "it is shown as text"
        visit.close()


def test_random_markup_executes_nothing_and_no_page_fails(chromium: Any) -> None:
    """Three texts at a time; a page that fails to render complains on the console of the browser."""
    source = StagedSource(console_input())
    with served(source) as address:
        visit = Visit(chromium, address)
        rounds = iter(range(1_000_000))

        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(TEXTS, min_size=1, max_size=3))
        def holds(texts: list[str]) -> None:
            source.title = f"round {next(rounds)},"
            source.given = _cluster(texts)
            visit.page.wait_for_function(
                "title => document.querySelector('.title')?.textContent.startsWith(title)",
                arg=source.title,
                timeout=TIMEOUT_MS,
            )
            subjects = [f"{page}/" for page in ("node", "pod", "decision")]
            for place in (*PAGES, *subjects):
                asked = [f"#/{place}", texts[0] if place in subjects else ""]
                visit.page.evaluate("([at, text]) => { location.hash = at + encodeURIComponent(text) }", asked)
                visit.page.wait_for_timeout(30)
                assert visit.page.evaluate("window.pwned") is None, place
                assert visit.page.locator("iframe, img, object, embed, main script, main style").count() == 0, place
            broken = [said for said in visit.complaints if "Failed to load resource" not in said]
            assert broken == [], "what is asked about names that are not there is refused, and nothing else is said"

        holds()
        visit.close()
