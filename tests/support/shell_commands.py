"""Commands that documents show: of shell blocks, of sessions with a prompt, and in running text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
#: Programs that running text shows commands of.
NAMED = ("aws", "eksctl", "helm", "karpenter", "kubeadm", "kubectl", "make")
_FENCE = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(rf"`((?:{'|'.join(NAMED)}) [a-z][^`\n]*)`")
_SUBSTITUTION = re.compile(r"[$<]\(([^()]*)\)")
_REDIRECTION = re.compile(r"(?<!\S)[12]?>{1,2} ?\S+|(?<!\S)< ?\S+")
_ASSIGNMENT = re.compile(r"(?<!\S)(?:export )?\w+=\S*")
_KEYWORDS = frozenset({"for", "do", "done", "then", "fi"})


class ShownCommand(NamedTuple):
    """One command: program and arguments, with the page and the line that show it. ``is_inline``: in running text."""

    page: str
    line: str
    words: tuple[str, ...]
    is_inline: bool = False

    @property
    def program(self) -> str:
        return Path(self.words[0]).name

    @property
    def text(self) -> str:
        return shlex.join(self.words)


def pages() -> list[Path]:
    """Every page for users and for contributors. The specification quotes commands of others."""
    docs = [page for page in sorted((ROOT / "docs").rglob("*.md")) if not page.is_relative_to(ROOT / "docs" / "spec")]
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [*top, *docs, *sorted((ROOT / "charts").rglob("*.md"))]


def fenced_blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of each block of a page."""
    for _, language, text in _FENCE.findall(page.read_text(encoding="utf-8")):
        yield language, text


def shell_lines(page: Path) -> Iterator[str]:
    """The lines that a reader types, continued lines as one, without comments."""
    for language, text in fenced_blocks(page):
        for line in text.replace("\\\n", " ").splitlines():
            stripped = re.split(r"(?:^|\s)#(?:\s|$)", line.strip())[0].strip()
            if language == "console":
                stripped = stripped.removeprefix("$ ") if stripped.startswith("$ ") else ""
            elif language != "sh":
                continue
            if stripped:
                yield stripped


def shown_commands() -> Iterator[ShownCommand]:
    """The commands of all pages, those of pipes and substitutions one by one."""
    for page in pages():
        name = str(page.relative_to(ROOT))
        for line in shell_lines(page):
            for words in commands_of(line):
                yield ShownCommand(name, line, words)
        prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
        for line in _INLINE.findall(prose):
            if not re.search(r"[…[\]]|\.\.\.", line):  # a form, not a command
                for words in commands_of(line):
                    yield ShownCommand(name, line, words, is_inline=True)


def commands_of(line: str) -> Iterator[tuple[str, ...]]:
    """The commands of one line, without redirections, assignments and keywords of the shell."""
    inner: list[str] = []

    def note(found: re.Match[str]) -> str:
        inner.append(found[1])
        return "SUBSTITUTED"

    outer = _SUBSTITUTION.sub(note, line)
    for text in (*inner, outer):
        for part in re.split(r"\s(?:\||&&)\s|;\s", text):
            words = shlex.split(_REDIRECTION.sub("", part))
            while words and (_ASSIGNMENT.fullmatch(words[0]) or words[0] == "export"):
                words.pop(0)
            if words and words[0] not in _KEYWORDS and words[0] != "SUBSTITUTED":
                yield tuple(words)
