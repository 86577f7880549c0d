"""The documents: generated pages are fresh, tables are complete, examples and commands work."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from karpenter.cli.main import app
from karpenter.model import labels
from karpenter.providers.aws.interruption import interruption_handling as notices
from support import yaml_text
from support.examples import series

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "karpenter"
PICTURES = runpy.run_path(str(ROOT / "tools" / "pictures.py"))
REFERENCE = runpy.run_path(str(ROOT / "tools" / "reference_docs.py"))["PAGES"]
#: Pages for users. The specification and the design notes show fragments.
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
PAGES += sorted(
    page
    for folder in ("getting-started", "concepts", "how-to", "migrate", "operations")
    for page in (DOCS / folder).glob("*.md")
)
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
_FENCE = re.compile(r"^ *```(\w+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", list(REFERENCE))
def test_a_generated_page_is_what_the_code_says(page: str) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == REFERENCE[page](), "run: python tools/reference_docs.py"


def test_every_event_reason_in_the_code_is_in_the_table_of_events() -> None:
    page = (DOCS / "reference" / "events.md").read_text(encoding="utf-8")
    assert [reason for reason in sorted(set(_event_reasons())) if f"`{reason}`" not in page] == []


def test_every_annotation_and_label_of_ours_is_in_the_table_of_annotations() -> None:
    page = (DOCS / "reference" / "annotations.md").read_text(encoding="utf-8")
    names = [value for value in vars(labels).values() if isinstance(value, str) and value.startswith("karpenter.sh/")]
    names += [notices.REBALANCE_ANNOTATION, notices.SCHEDULED_CHANGES_ANNOTATION, notices.REPLACE_FOR_ANNOTATION]
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    "module",
    ["scheduling/explain/reason_messages.py", "disruption/decide/blocker_messages.py", "termination/blockers.py"],
)
def test_every_sentence_about_a_waiting_pod_or_a_staying_node_is_found_in_troubleshooting(module: str) -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    missing = [pieces for pieces in _sentences(SOURCE / module) if not any(piece in page for piece in pieces)]
    assert missing == []


def _sentences(module: Path) -> Iterator[list[str]]:
    """The literal pieces of each sentence that a module returns or has in a table; three words or more."""
    for expression in _expressions(ast.parse(module.read_text(encoding="utf-8"))):
        texts = [
            part.value
            for part in ast.walk(expression)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        pieces = [piece.strip(" :,;=>") for text in texts for piece in re.split(r"[\"()]", text)]
        if any(len(piece.split()) >= 3 for piece in pieces):
            yield [piece for piece in pieces if len(piece.split()) >= 3]


def _expressions(module: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(module):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value
        elif isinstance(node, ast.Dict):
            yield from node.values


def _event_reasons() -> Iterator[str]:
    """Reasons that stand as literals where events are made."""
    for module in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and _called(node) in ("ObjectEvent", "normal", "warning")
                and len(node.args) > 2
            ):
                reason = node.args[2]
                if isinstance(reason, ast.Constant) and re.fullmatch(r"([A-Z][a-z]+){2,}", str(reason.value)):
                    yield str(reason.value)


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def test_every_example_is_in_the_list_of_examples() -> None:
    page = (DOCS / "how-to" / "examples.md").read_text(encoding="utf-8")
    assert [file.name for file in EXAMPLES if f"`{file.name}`" not in page] == []
    assert len(EXAMPLES) >= 15


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_a_plan_of_an_example_serves_every_pod_that_can_be_served(file: Path) -> None:
    """Only the example about pods that fit nowhere leaves pods out."""
    outcome = CliRunner().invoke(app, ["plan", "-f", str(file)])
    assert outcome.exit_code == 0, outcome.output
    assert ("Unschedulable pods" in outcome.output) == (file.stem == "shop"), outcome.output


def _blocks(language: str) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for found, text in _FENCE.findall(page.read_text(encoding="utf-8")):
            if found == language:
                yield page, text


def _commands() -> Iterator[tuple[str, list[str]]]:
    """Page and words of every call of the command line in a shell block, pipes and continuation lines resolved."""
    for page, text in _blocks("sh"):
        for line in text.replace("\\\n", " ").splitlines():
            for part in re.split(r" \| |> ", line):
                words = shlex.split(part, comments=True)
                if words and words[0] in ("karpenter", ".venv/bin/karpenter"):
                    yield page.name, words[1:]


COMMANDS = list(dict.fromkeys((page, tuple(words)) for page, words in _commands()))


def test_the_documents_show_commands() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[f"{page}: {' '.join(words)}" for page, words in COMMANDS])
def test_a_command_in_a_document_has_only_options_that_exist(
    page: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTER_NAME", "shop")  # the guide for AWS exports both
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    group: Any = typer.main.get_command(app)
    group.commands[words[0]].make_context(words[0], list(words[1:]))


#: `doctor` reads AWS.
OFFLINE = {
    words
    for _, words in COMMANDS
    if any(word == "examples" or word.startswith("examples/") for word in words) and words[0] != "doctor"
}
OFFLINE |= {("profiles",)}


#: Seconds of CPU each. What they show is shown by ``test_examples`` and ``test_simulation`` as well.
LONG = {words for words in OFFLINE if words[:3] == ("plan", "-f", "examples") or words[0] == "simulate"}


@pytest.mark.parametrize("words", series(sorted(OFFLINE), *(OFFLINE - LONG)), ids=" ".join)
def test_a_command_that_a_document_runs_on_an_example_succeeds(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    outcome = CliRunner().invoke(app, words)
    assert outcome.exit_code == 0, outcome.output


def test_manifests_in_documents_are_read_like_manifests_of_users(tmp_path: Path) -> None:
    for number, (page, text) in enumerate(_blocks("yaml")):
        documents = [document for document in yaml_text.documents(text) if isinstance(document, dict)]
        if any(document.get("kind") in ("NodePool", "EC2NodeClass") for document in documents):
            file = tmp_path / f"{number}.yaml"
            file.write_text(text)
            outcome = CliRunner().invoke(app, ["plan", "-f", str(file)])
            assert outcome.exit_code == 0, f"{page.name}: {outcome.output}"


def test_documents_and_manifests_name_the_version_of_the_package() -> None:
    """pyproject.toml has the version. Images in documents and manifests follow it."""
    version = metadata.version("karpenter")
    files = [*PAGES, *(ROOT / "deploy").rglob("*.yaml")]
    named = {
        found
        for file in files
        for found in re.findall(r"karpenter:(\d+\.\d+\.\d+)|newTag: (\S+)", file.read_text(encoding="utf-8"))
    }
    assert {image or tag for image, tag in named} == {version}


@pytest.mark.parametrize("name", list(PICTURES["PICTURES"]))
def test_a_picture_shows_what_the_command_prints_today(name: str) -> None:
    drawn = (DOCS / "pictures" / name).read_text(encoding="utf-8")
    assert drawn == PICTURES["picture"](PICTURES["PICTURES"][name]), "run: python tools/pictures.py"


def test_the_chart_of_the_demo_shows_what_it_pays_today() -> None:
    drawn = (DOCS / "pictures" / PICTURES["DEMO"]).read_text(encoding="utf-8")
    assert drawn == PICTURES["demo_chart"](), "run: python tools/pictures.py"


def test_every_older_event_reason_names_one_that_is_published_today() -> None:
    """OPS §6: the table of older reasons leads to reasons of the tables above it."""
    page = (DOCS / "reference" / "events.md").read_text(encoding="utf-8")
    above, _, table = page.partition("## Reasons of older releases")
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    present = {reason for row in rows for reason in re.findall(r"`(\w+)`", row[2])}
    older = {reason for row in rows for reason in re.findall(r"`(\w+)`", row[1])}
    published = set(re.findall(r"`(\w+)`", above))
    assert len(rows) >= 6
    assert present <= published
    assert older.isdisjoint(published)
