"""The console in a real browser: served by a thread, visited with a page that remembers what it complained about."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from karpenter.cli import planning_options
from karpenter.cli.top_answers import explain
from karpenter.console.viewer_source import ViewerSource
from karpenter.runtime.loopback_server import serving_on_loopback
from karpenter.settings import Settings
from karpenter.webconsole.console_app import ConsoleParts, console_app
from karpenter.webconsole.console_feed import ConsoleFeeds
from karpenter.webconsole.viewer_access import SecretLinkAccess, ViewerAccess

ROOT = Path(__file__).parents[2]
AXE = ROOT / "console-web" / "node_modules" / "axe-core" / "axe.min.js"
#: Milliseconds that the browser waits for what must come.
TIMEOUT_MS = 60_000
SECRET = "s3cret"
_POLL_MILLISECONDS = 300
#: Of WCAG 2.2 AA, contrast included.
_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


@contextmanager
def served(
    source: ViewerSource, user: str = "me", access: ViewerAccess | None = None, **further: object
) -> Iterator[str]:
    """The address of a console on this cluster, served by a thread. ``further``: parts of the console."""
    ready, over = threading.Event(), threading.Event()
    address: list[str] = []

    async def serve() -> None:
        options = planning_options.disruption_options(Settings())
        feeds = ConsoleFeeds(source, options)
        parts = ConsoleParts(feeds, access or SecretLinkAccess(SECRET, user), explain, **further)
        async with serving_on_loopback(console_app(parts)) as url:
            address.append(url if access is not None else f"{url}/?token={SECRET}")
            ready.set()
            await asyncio.to_thread(over.wait)
        await feeds.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield address[0]
    finally:
        over.set()
        thread.join(30)


class Visit:
    """A page with everything it complained about."""

    def __init__(
        self,
        chromium: Any,
        address: str,
        width: int = 1280,
        scheme: str = "light",
        shows: str = "main .panel",
        prepared: str = "",
        **context_options: str,
    ) -> None:
        """``shows``: what the page has once it is there. ``prepared``: JavaScript that runs before the page's own.

        ``context_options``: of the browser, such as ``timezone_id``.
        """
        viewport = {"width": width, "height": 900}
        context = chromium.new_context(viewport=viewport, color_scheme=scheme, **context_options)
        context.add_init_script(prepared)
        self.page = context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda said: said.type in ("error", "warning") and self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector(shows, timeout=TIMEOUT_MS)

    def go(self, place: str) -> None:
        self.page.evaluate("place => { location.hash = '#/' + place }", place)
        self.page.wait_for_function(
            "name => document.querySelector('nav a[aria-current]')?.getAttribute('href') === '#/' + name",
            arg=place.split("?")[0],
            timeout=TIMEOUT_MS,
        )
        if place.startswith("what-if?"):
            self.page.wait_for_selector(".verdict", timeout=TIMEOUT_MS)

    def until(self, asked: str) -> Any:
        """What the asynchronous function of JavaScript answers once that is true.

        Playwright's own ``wait_for_function`` takes the promise of an asynchronous function for a true value.
        """
        deadline = time.monotonic() + TIMEOUT_MS / 1000
        while not (answer := self.page.evaluate(asked)):
            assert time.monotonic() < deadline, f"never true: {asked}"
            self.page.wait_for_timeout(_POLL_MILLISECONDS)
        return answer

    def violations(self) -> list[tuple[str, str, str]]:
        """What axe-core finds on the page as it is now: the rule, the first element and what to do about it."""
        # Through the debugger, as the page itself may load no other script.
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("rules => axe.run(document, rules)", _RULES)
        return [(one["id"], one["nodes"][0]["html"], one["nodes"][0]["failureSummary"]) for one in found["violations"]]

    def close(self) -> None:
        self.page.context.close()
