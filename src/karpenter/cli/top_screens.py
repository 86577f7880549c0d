"""The windows over the tables of ``karpenter top``: help, and the explanation of a node or pod."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

HELP = """\
Keys

  1 to 6, tab          choose a tab; or click it
  arrows, page up/down move; home and end go to the first and last row
  enter                explain the node or pod under the cursor
  /                    search: rows with all of the words; escape ends the search
  s                    sort by the next column; click a title to sort by it
  r                    reverse the order
  p                    write the screen as an SVG file
  ?                    this help
  q                    quit

Nodes

  Bars show what pods request of what is allocatable: green above 90 %, yellow above
  60 %, red below. A full node is good. A node that has not registered shows what its
  NodeClaim requests.

  launching       the NodeClaim has no instance yet
  launched        the instance runs, the Node is not there yet
  registered      the Node is there and not initialized yet
  initialized     ready for pods
  consolidatable  its consolidateAfter period is over
  disrupting      tainted; its replacement may still start
  terminating     being drained and deleted
  unmanaged       no NodeClaim that can be seen: not launched by Karpenter, or no right

  Prices are those of the instance types; a month has 730 hours. "x bound" compares them
  with what a perfect fleet for the same pods would cost at least.
"""


class TextWindow(ModalScreen[None]):
    """A text over the tables; any of the usual keys closes it."""

    BINDINGS = [("escape,q,enter,question_mark", "dismiss", "Close")]
    CSS = """
    TextWindow { align: center middle; }
    TextWindow > VerticalScroll { width: 90%; height: 80%; border: round $primary; padding: 0 1; background: $surface; }
    """

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """The frame with the text."""
        with VerticalScroll() as frame:
            frame.border_title = Text(self._title).markup
            yield Static(Text(self._text), id="window-text")

    def show(self, text: str) -> None:
        """Replace the text."""
        self.query_one("#window-text", Static).update(Text(text))
