"""Looks up the rules of the behaviour specification (``docs/spec``): which exist, who cites them, which have no test.

``python tools/spec.py`` lists the rules that no test cites. ``python tools/spec.py check`` fails if a cited rule does not exist.
``python tools/spec.py --rule SCH-231`` prints a rule. ``docs/spec/README.md`` says how IDs are written.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SPEC = Path("docs/spec")
CITING = ("src", "tests", "bench", "tools", "docs")
#: The document and the section that name the rules which this project leaves out.
LEFT_OUT = (Path("docs/compatibility.md"), "## Rules without an implementation")
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".toml", ".go", ".sh"}

_SERIES = r"(?:(?:SCH|DIS|OPS|API|AWS|K15)-[A-Z]?|S-)"
_NUMBER = r"\d{1,3}[a-z]?"
_ID = _SERIES + _NUMBER
_CELL = re.compile(rf"\| (?P<id>{_ID}) \|")
_PARAGRAPH = re.compile(rf"(?:\* )?\*\*(?P<id>{_ID})\*\*")
_TABLE_RULE = re.compile(r"\|[-|: ]+\|$")

# After an ID, a list ("API-082, 083") or a range ("OPS-361 to OPS-363") may follow. Numbers without a prefix have three digits
# there, so that "AWS-321, 12 types" cites one rule.
_CITATION = re.compile(rf"(?<![\w-])(?P<series>{_SERIES})(?P<number>{_NUMBER})(?!\w)")
_JOINT = r"(?P<joint>, and | and | or |, |/| to |\u2013|\u2026)"
_NEXT = re.compile(
    rf"{_JOINT}(?P<series>{_SERIES})?(?P<letter>[A-Z]?)(?P<number>(?(series)\d{{1,3}}|\d{{3}})[a-z]?)(?![\w%]|[.,]\d|-\d)"
)
_RANGE = {" to ", "\u2013", "\u2026"}
#: A line without one of these cites nothing: a cheap test before the expressions above.
_MARKS = ("S-", "SCH-", "API-", "K15-")


@dataclass(frozen=True, order=True)
class Place:
    """A line of a file, relative to the repository."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class Rule:
    """A rule and the text that defines it."""

    id: str
    place: Place
    text: str


@dataclass(frozen=True)
class Citation:
    """An ID named outside its definition; the members of a range count as cited but only its ends must exist."""

    id: str
    place: Place
    inferred: bool = False


def rules(root: Path = ROOT) -> list[Rule]:
    """All definitions, in the order of files and lines; an ID defined twice is there twice."""
    defined: list[Rule] = []
    for path in sorted((root / SPEC).glob("*.md")):
        defined += _defined(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8").splitlines())
    return defined


def citations(root: Path = ROOT, folders: Iterable[str] = CITING) -> list[Citation]:
    """All IDs named in code, tests and documents. The specification's own references are those of the folder ``docs/spec``."""
    return [
        citation
        for folder in folders
        for path in sorted((root / folder).rglob("*"))
        if path.is_file() and path.suffix in SUFFIXES and _cites(folder, path.relative_to(root))
        for place in (path.relative_to(root).as_posix(),)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for citation in cited(line, Place(place, number))
    ]


def cited(line: str, place: Place) -> Iterator[Citation]:
    """The IDs a line names, with those that a list or a range implies."""
    if not any(mark in line for mark in _MARKS):
        return
    for match in _CITATION.finditer(line):
        series, number = match["series"], match["number"]
        yield Citation(series + number, place)
        end = match.end()
        while follower := _NEXT.match(line, end):
            end = follower.end()
            if follower["joint"] in _RANGE:
                yield from _between(series, number, follower["number"], place)
            if follower["series"]:
                break  # an ID in full is found on its own
            series = series.rstrip("AST") + follower["letter"] if follower["letter"] else series
            number = follower["number"]
            yield Citation(series + number, place)


def unknown(defined: Iterable[Rule], named: Iterable[Citation]) -> list[Citation]:
    """Citations of rules that do not exist."""
    ids = {rule.id for rule in defined}
    return [citation for citation in named if citation.id not in ids and not citation.inferred]


def untested(defined: Iterable[Rule], named: Iterable[Citation]) -> list[Rule]:
    """Rules that no file below ``tests`` cites."""
    tested = {citation.id for citation in named if citation.place.path.startswith("tests/")}
    return [rule for rule in defined if rule.id not in tested]


def left_out(root: Path = ROOT) -> set[str]:
    """Rules that the list of differences names as not implemented."""
    document, section = LEFT_OUT
    _, _, rest = (root / document).read_text(encoding="utf-8").partition(f"\n{section}\n")
    lines = rest.partition("\n## ")[0].splitlines()
    return {citation.id for line in lines for citation in cited(line, Place(document.as_posix(), 0))}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(
        description="Rules of docs/spec: which exist, which are cited, which have no test."
    )
    parser.add_argument("command", nargs="?", choices=("untested", "check"), default="untested")
    parser.add_argument("--rule", metavar="ID", help="print a rule and where it is cited")
    options = parser.parse_args(arguments)
    defined, named = rules(), citations()
    if options.rule:
        return _print_rule(options.rule, defined, named)
    return _check(defined, named) if options.command == "check" else _print_untested(defined, named)


def _cites(folder: str, path: Path) -> bool:
    return Path(folder) == SPEC or SPEC not in path.parents


def _defined(path: str, lines: list[str]) -> Iterator[Rule]:
    for index, line in enumerate(lines):
        if match := _CELL.match(line):
            yield Rule(match["id"], Place(path, index + 1), "\n".join((*_header(lines, index), line)))
        elif match := _PARAGRAPH.match(line):
            yield Rule(match["id"], Place(path, index + 1), "\n".join(_block(lines, index)))


def _header(lines: list[str], row: int) -> list[str]:
    while row > 0 and lines[row].startswith("|"):
        if _TABLE_RULE.match(lines[row]):
            return lines[row - 1 : row + 1]
        row -= 1
    return []


def _block(lines: list[str], start: int) -> Iterator[str]:
    """A paragraph up to the next definition or heading: lists, tables and Beyond lines below a rule belong to it."""
    fenced = False
    block: list[str] = []
    for index, line in enumerate(lines[start:]):
        if index and not fenced and (line.startswith("#") or _PARAGRAPH.match(line)):
            break
        fenced ^= line.startswith("```")
        block.append(line)
    while block and not block[-1].strip():
        block.pop()
    yield from block


def _between(series: str, first: str, last: str, place: Place) -> Iterator[Citation]:
    low, high = (int(re.sub(r"[a-z]", "", number)) for number in (first, last))
    width = 3 if len(first) >= 3 else 1
    for number in range(low + 1, high):
        yield Citation(f"{series}{number:0{width}}", place, inferred=True)


def _check(defined: list[Rule], named: list[Citation]) -> int:
    wrong = unknown(defined, named)
    for citation in wrong:
        _print(f"{citation.place}: {citation.id} is not defined in {SPEC}")
    return 1 if wrong else 0


def _print_untested(defined: list[Rule], named: list[Citation]) -> int:
    total = Counter(rule.place.path for rule in defined)
    skipped = left_out()
    without_test = untested(defined, named)
    missing = [rule for rule in without_test if rule.id not in skipped]
    for path, count in sorted(total.items()):
        here = [rule.id for rule in missing if rule.place.path == path]
        _print(f"{path}: {count} rules, {len(here)} without a test")
        for start in range(0, len(here), 12):
            _print("    " + " ".join(here[start : start + 12]))
    _print(
        f"{len(defined)} rules, {len(missing)} without a test, {len(without_test) - len(missing)} left out ({LEFT_OUT[0]})"
    )
    return 0


def _print_rule(wanted: str, defined: list[Rule], named: list[Citation]) -> int:
    matching = [rule for rule in defined if rule.id == wanted]
    if not matching:
        _print(f"{wanted} is not defined in {SPEC}")
        return 1
    for rule in matching:
        _print(f"{rule.place}\n{rule.text}")
    for citation in named:
        if citation.id == wanted:
            _print(f"cited: {citation.place}")
    return 0


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
