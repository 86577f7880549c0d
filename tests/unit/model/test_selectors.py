from __future__ import annotations

import pytest

from karpenter.api.meta import LabelSelector, LabelSelectorRequirement
from karpenter.model import selectors

LABELS = {"a": "b", "env": "prod", "empty": "", "count": "7"}


def expression(key: str, operator: str, *values: str) -> LabelSelector:
    return LabelSelector(match_expressions=(LabelSelectorRequirement(key=key, operator=operator, values=values),))


@pytest.mark.parametrize(
    ("selector", "want"),
    [
        (None, False),
        (LabelSelector(), True),
        (LabelSelector(match_labels={"a": "b"}), True),
        (LabelSelector(match_labels={"a": "b", "env": "test"}), False),
        (LabelSelector(match_labels={"absent": ""}), False),
        (expression("env", "In", "prod", "test"), True),
        (expression("env", "In"), False),
        (expression("absent", "In", ""), False),
        (expression("env", "NotIn", "prod"), False),
        (expression("absent", "NotIn", "prod"), True),
        (expression("empty", "Exists"), True),
        (expression("absent", "Exists"), False),
        (expression("absent", "DoesNotExist"), True),
        (expression("a", "DoesNotExist"), False),
        (expression("a", "Near", "b"), False),
    ],
)
def test_a_selector_matches_as_kubernetes_does(selector: LabelSelector | None, want: bool) -> None:
    assert selectors.selector_matches(selector, LABELS) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", True),
        ("  ", True),
        ("a=b", True),
        ("a==b,env!=test", True),
        (" a = b , env in ( prod , test ) ", True),
        ("a=b,env in (test)", False),
        ("absent!=x,absent notin (x),!absent", True),
        ("a notin (b,c)", False),
        ("absent=", False),
        ("empty=", True),
        ("empty in (,x)", True),
        ("a", True),
        ("absent", False),
        ("! a", False),
        ("in=x", False),
        ("count>6,count < 8", True),
        ("count>7", False),
        ("count<7", False),
        ("count>-1", True),
        ("a>1", False),
        ("absent<1", False),
    ],
)
def test_a_selector_text_matches_as_kubernetes_does(text: str, want: bool) -> None:
    assert selectors.parse_selector(text)(LABELS) == want


@pytest.mark.parametrize(
    "text", ["a,", ",a", "a,,b", "=b", "a in b", "a in (b", "a b", "a in (b!)", "a=b=c", "!", "a>b", "a<", "a=b!"]
)
def test_a_broken_selector_text_is_refused_with_its_rest(text: str) -> None:
    with pytest.raises(selectors.SelectorError) as error:
        selectors.parse_selector(text)
    assert repr(text) in str(error.value)
