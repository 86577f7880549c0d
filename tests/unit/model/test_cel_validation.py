"""The evaluator of CEL rules; the rules themselves are tested by the table of ``test_admission``."""

from __future__ import annotations

import re
import subprocess
import sys

from karpenter.api.cel_rules import CEL_RULES
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_POOL
from karpenter.model.crd_admission import admit
from support.admission_rows import built, req

REQUIREMENTS = "spec.template.spec.requirements"
RULES = [rule for rules in CEL_RULES.values() for rule in rules]


def test_no_pattern_depends_on_what_a_regular_expression_engine_takes_for_a_letter() -> None:
    r"""``\d``, ``\w`` and ``\s`` are ASCII for an API server and Unicode for the library evaluating the rules here."""
    assert [rule.expression for rule in RULES if re.search(r"\\[dws]", rule.expression, re.IGNORECASE)] == []


def test_a_rule_about_every_entry_says_for_one_entry_what_it_says_for_all() -> None:
    for rule in RULES:
        if rule.item:
            clash = rule.item.removeprefix("!(").removesuffix(")")
            forms = {f"self.all(x, {rule.item})", f"!self.exists(x, {clash})"}
            assert re.sub(r"\bk\b", "x", rule.expression) in forms


def test_a_finding_names_the_entry_its_field_and_what_stands_there() -> None:
    """API-034"""
    pool = built("NodePool", {REQUIREMENTS: [req("Exists"), req("Gt", "1", "2"), req("Gt", "x"), req("Gt", "3")]})
    assert [str(finding) for finding in admit(NODE_POOL, pool)] == [
        f"{REQUIREMENTS}[{index}].values: requirements with operator 'Gt', 'Lt', 'Gte' or 'Lte' must have a single "
        f"positive integer value ({values})"
        for index, values in ((1, '["1","2"]'), (2, '["x"]'))
    ]


def test_a_missing_field_is_reported_once_by_the_schema() -> None:
    """API-034: the rules about the family cannot be evaluated without the terms."""
    node_class = built("EC2NodeClass", {"spec": {"role": "node", "amiFamily": "AL2"}})
    assert {finding.code for finding in admit(EC2_NODE_CLASS, node_class)} == {"required"}


def test_the_library_is_imported_with_the_first_rule_to_evaluate() -> None:
    code = "import sys; import karpenter.model.runtime_validation; print('cel' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_rule_is_evaluated_without_the_librarys_command_line() -> None:
    code = (
        "import sys; from karpenter.model import cel_library\n"
        "cel_library.compile_expression('1 < 2').execute(cel_library.context({}, {}))\n"
        "print('cel' in sys.modules, 'prompt_toolkit' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
