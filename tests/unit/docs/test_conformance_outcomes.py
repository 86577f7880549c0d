"""The table of conformance is made from the report Ginkgo writes."""

from __future__ import annotations

import json

from conformance.outcomes import Outcome, Spec, counts_text, markdown_page, read_report
from conformance.suites import VACUOUS


def _entry(text: str, state: str, **more: object) -> dict[str, object]:
    hierarchy = ["Integration", "Drift"]
    return {
        "LeafNodeType": "It",
        "LeafNodeText": text,
        "ContainerHierarchyTexts": hierarchy,
        "State": state,
        "RunTime": 2_500_000_000,
        **more,
    }


def _report(*entries: dict[str, object]) -> bytes:
    return json.dumps([{"SpecReports": list(entries)}]).encode()


def test_a_spec_has_its_group_outcome_duration_and_first_line_of_failure() -> None:
    failure = {"Message": "\n  Timed out after 300s.\nExpected\n"}
    report = _report(_entry("should drift", "passed"), _entry("should wait", "timedout", Failure=failure))
    assert read_report(report) == (
        Spec("Integration / Drift", "should drift", Outcome.PASSED, 2.5),
        Spec("Integration / Drift", "should wait", Outcome.FAILED, 2.5, "Timed out after 300s."),
    )


def test_specs_the_filter_left_out_and_nodes_that_are_no_specs_are_not_counted() -> None:
    suite_node = {**_entry("", "passed"), "LeafNodeType": "BeforeSuite"}
    assert read_report(_report(_entry("should drift", "skipped"), suite_node)) == ()


def test_a_spec_that_asserts_nothing_counts_as_neither_passed_nor_failed() -> None:
    (spec,) = read_report(_report(_entry(min(VACUOUS), "passed")))
    assert spec.outcome is Outcome.VACUOUS


def test_the_page_counts_outcomes_and_has_a_row_per_spec() -> None:
    specs = (Spec("A", "one | two", Outcome.PASSED, 2.5), Spec("A", "three", Outcome.FAILED, 61.0, "no node"))
    assert counts_text(specs) == "1 passed, 1 failed"
    assert markdown_page("regression", specs).splitlines()[2:] == [
        "1 passed, 1 failed.",
        "",
        "| Group | Spec | Outcome | Seconds |",
        "|---|---|---|---|",
        "| A | one \\| two | passed | 2 |",
        "| A | three | failed: no node | 61 |",
    ]


def test_no_spec_is_no_success() -> None:
    assert counts_text(()) == "no spec ran"


def test_a_spec_behind_a_failed_one_of_its_container_is_distinguished_from_one_that_skips_itself() -> None:
    behind = {"Message": "Spec skipped because an earlier spec in an ordered container failed"}
    itself = {"Message": "the scheduler is not configured"}
    report = _report(_entry("waits", "skipped", Failure=behind), _entry("needs more", "skipped", Failure=itself))
    assert [spec.is_behind_failure for spec in read_report(report)] == [True, False]
