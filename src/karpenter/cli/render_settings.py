"""Settings as tables: those in force with their sources (``run --check``), and the defaults of both profiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from rich.table import Table
from rich.text import Text

from karpenter.cli.render_common import SEARCHABLE_WIDTH, Json, console_for, print_line, print_table
from karpenter.model.setting_kinds import Profile, Setting
from karpenter.settings import SETTING_GROUPS, SETTINGS

_EMPTY = "(empty)"
_PAGE_WIDTH = 120
#: Columns from which on meanings stand beside the defaults; below them every meaning would be a tall column of words.
_MEANINGS_WIDTH = 100


def write_settings(values: Mapping[str, str], sources: Mapping[str, str], notes: tuple[str, ...], out: TextIO) -> None:
    """Write every setting with its value and where that comes from; below them the notes."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for name, setting in SETTINGS.items():
        source = f"[{sources[name]}]" if sources[name] else ""
        table.add_row(setting.spelling.flag, Text(values[name] or _EMPTY), Text(source, style="yellow"))
    print_table(table, out, SEARCHABLE_WIDTH)
    for note in notes:
        print_line(console_for(out, SEARCHABLE_WIDTH), Text(f"note: {note}", style="yellow"))


def profile_settings() -> Mapping[str, Mapping[str, Setting]]:
    """The settings whose defaults differ between the profiles, by the heading of their group."""
    return {
        heading: different
        for heading, group in SETTING_GROUPS.items()
        if (different := {name: setting for name, setting in group.items() if _differs(setting)})
    }


def _differs(setting: Setting) -> bool:
    return len({setting.default_in(profile) for profile in Profile}) > 1


def write_profiles(out: TextIO) -> None:
    """Write the defaults of both profiles side by side, and where there is room what each setting means."""
    console = console_for(out, _PAGE_WIDTH)
    with_meanings = console.width >= _MEANINGS_WIDTH
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in ("setting", *(f"{profile}" for profile in Profile)):
        table.add_column(heading, no_wrap=heading == "setting")
    if with_meanings:
        table.add_column("meaning")
    for group in profile_settings().values():
        for setting in group.values():
            defaults = (Text(setting.default_in(profile) or _EMPTY) for profile in Profile)
            table.add_row(setting.spelling.flag, *defaults, *([Text(setting.help)] if with_meanings else []))
    print_table(table, out, _PAGE_WIDTH)
    if not with_meanings:
        print_line(console, "-o wide shows what each setting means.")


def profiles_document() -> Json:
    """The same as plain data: by flag, the default of each profile."""
    return {
        setting.spelling.flag: {f"{profile}": setting.default_in(profile) for profile in Profile}
        for group in profile_settings().values()
        for setting in group.values()
    }
