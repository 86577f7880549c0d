"""Writes ``docs/settings.md`` from the declared settings. ``python tools/settings_doc.py > docs/settings.md``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from karpenter.model.setting_kinds import Profile, Setting
from karpenter.runtime.intervals import INTERVALS
from karpenter.settings import SETTING_GROUPS

_HEAD = """# Settings

Generated from the declarations by `python tools/settings_doc.py`; edit those. `karpenter run --help` prints the same.

A flag wins over an environment variable, which wins over the default. An empty variable counts as not set. A value that
cannot be parsed stops the start with one line. `karpenter run --check` prints all settings with their sources and exits.
`karpenter plan`, `explain`, `budgets`, `freeze`, `thaw` and `doctor` take those of these settings that they use. Where the
profile `karpenter` has another default, it follows in brackets; `karpenter profiles` prints both profiles side by side.
"""
_INTERVALS = """## Intervals

From the environment only: they are part of the documented behaviour. Change them in tests or in an emergency.
"""


def page() -> str:
    """The document."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _HEAD
    for heading, group in SETTING_GROUPS.items():
        yield f"## {heading}\n"
        yield from _table(group, flags=True)
    yield _INTERVALS
    yield from _table(INTERVALS, flags=False)


def _table(group: Mapping[str, Setting], *, flags: bool) -> Iterator[str]:
    headings = ["environment variable", "default", "value", "meaning"]
    yield _row(["flag", *headings] if flags else headings)
    yield _row(["---"] * (len(headings) + flags))
    for setting in group.values():
        names = ", ".join(f"`{flag}`" for flag in (setting.spelling.flag, *setting.spelling.aliases))
        cells = [f"`{setting.spelling.variable}`", _default(setting), setting.expected, setting.help]
        yield _row([names, *cells] if flags else cells)
    yield ""


def _default(setting: Setting) -> str:
    default, karpenter = (setting.default_in(profile) for profile in Profile)
    shown = f"`{default}`" if default else ""
    return shown if karpenter == default else f"{shown} (`{karpenter}`)"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
