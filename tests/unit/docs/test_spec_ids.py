"""The behaviour specification in ``docs/spec`` and the IDs by which code and tests refer to it."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOWHERE = "tests/unit/test_none.py"


def load_tool() -> ModuleType:
    module_spec = importlib.util.spec_from_file_location("spec_tool", ROOT / "tools" / "spec.py")
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # dataclasses look their module up
    module_spec.loader.exec_module(module)
    return module


spec = load_tool()


@pytest.fixture(scope="module")
def rules() -> list:
    return spec.rules()


@pytest.fixture(scope="module")
def citations() -> list:
    """Everything that is cited: reading the whole tree takes seconds."""
    return list(spec.citations())


def test_every_id_is_defined_once(rules):
    counts = Counter(rule.id for rule in rules)
    assert len(counts) > 1500
    assert [f"{rule.place}: {rule.id}" for rule in rules if counts[rule.id] > 1] == []


def test_every_id_cited_in_code_tests_and_documents_is_defined(rules, citations):
    wrong = spec.unknown(rules, citations)
    assert [f"{citation.place}: {citation.id}" for citation in wrong] == []


def test_rules_refer_only_to_rules_that_exist(rules):
    wrong = spec.unknown(rules, spec.citations(folders=["docs/spec"]))
    assert [f"{citation.place}: {citation.id}" for citation in wrong] == []


def test_every_file_of_the_specification_is_in_its_table_of_contents():
    contents = (ROOT / "docs/spec/README.md").read_text(encoding="utf-8")
    assert [path.name for path in (ROOT / "docs/spec").glob("*.md") if f"({path.name})" not in contents] == [
        "README.md"
    ]


# The IDs are put together so that the examples are no citations themselves.
API, AWS, OPS, SCH, S, T = "API" + "-", "AWS" + "-", "OPS" + "-", "SCH" + "-", "S" + "-", "AWS" + "-T"
K15 = "K15" + "-"


@pytest.mark.parametrize(
    ("line", "named", "implied"),
    [
        (f"{SCH}231, 260 and {S}017", [f"{SCH}231", f"{SCH}260", f"{S}017"], []),
        (f"{SCH}582 to 585", [f"{SCH}582", f"{SCH}585"], [f"{SCH}583", f"{SCH}584"]),
        (f"{SCH}582 to {SCH}584", [f"{SCH}582", f"{SCH}584"], [f"{SCH}583"]),
        (f"{OPS}S1 to {OPS}S4, {OPS}L2", [f"{OPS}S1", f"{OPS}S4", f"{OPS}L2"], [f"{OPS}S2", f"{OPS}S3"]),
        (f"{API}S030, S032", [f"{API}S030", f"{API}S032"], []),
        (f"{SCH}123, 250f", [f"{SCH}123", f"{SCH}250f"], []),
        (f"{T}147-39", [f"{T}147"], []),
        (f"{AWS}315, 12 types; {AWS}316: 100%", [f"{AWS}315", f"{AWS}316"], []),
        (f"{S}004-gated", [f"{S}004"], []),
        (f"{K15}001, 003 and {K15}A34", [f"{K15}001", f"{K15}003", f"{K15}A34"], []),
        (f"X{SCH}231 {SCH}2310", [], []),
    ],
)
def test_lists_and_ranges_of_ids_are_understood(line, named, implied):
    cited = list(spec.cited(line, spec.Place(NOWHERE, 1)))
    assert [citation.id for citation in cited if not citation.inferred] == named
    assert [citation.id for citation in cited if citation.inferred] == implied


def test_a_citation_of_an_unknown_rule_is_reported_with_file_and_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs/spec").mkdir(parents=True)
    (tmp_path / "docs/spec/rules.md").write_text(f"| ID | Rule |\n|---|---|\n| {SCH}001 | wait |\n\n**{SCH}002** Go.\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/code.py").write_text(f"# {SCH}001\n# {SCH}002 and {SCH}003\n")
    monkeypatch.setattr(spec.rules, "__defaults__", (tmp_path,))
    monkeypatch.setattr(spec.citations, "__defaults__", (tmp_path, spec.CITING))
    assert spec.main(["check"]) == 1
    assert capsys.readouterr().out == f"src/code.py:2: {SCH}003 is not defined in docs/spec\n"


def test_a_rule_is_printed_with_its_table_header_and_its_citations(capsys):
    rule = SCH + "250f"
    assert spec.main(["--rule", rule]) == 0
    printed = capsys.readouterr().out
    assert "| ID | Applies when | Effect |" in printed
    assert f"| {rule} |" in printed
    assert "cited: tests/" in printed


def test_the_list_of_rules_without_a_test_counts_them_per_file(capsys):
    assert spec.main([]) == 0
    assert "docs/spec/scheduling.md: " in capsys.readouterr().out


def test_a_rule_is_left_out_or_tested_and_never_both(rules, citations):
    """The list of rules without an implementation ends with the first test that cites one of them."""
    skipped = spec.left_out()
    tested = {rule.id for rule in rules} - {rule.id for rule in spec.untested(rules, citations)}
    assert len(skipped) > 150
    assert sorted(skipped & tested) == []
