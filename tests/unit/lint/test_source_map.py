"""Lines of fields, and the comments beside them."""

from __future__ import annotations

from karpenter.lint.source_map import LineSpan, parent_path, source_maps

TEXT = b"""# head
a: 1
b:
  c: [x,
      y]  # beside c
  # above d
  d.example/e: |
    # no comment
    text
f: "# no comment"
---
---
g:
- h: 1
  # above i
  i: 2
-  j
"""


def test_fields_have_their_lines_and_items_theirs() -> None:
    first, empty, third = source_maps(TEXT)
    assert first.span("") == LineSpan(2, 10)
    assert (first.span("b"), first.span("b.c"), first.span("b.c[1]")) == (
        LineSpan(3, 9),
        LineSpan(4, 5),
        LineSpan(5, 5),
    )
    assert first.span("b[d.example/e]") == LineSpan(7, 9)
    assert third.span("g[0].i") == LineSpan(16, 16)
    assert third.span("g[1]") == LineSpan(17, 17)
    assert empty.span("anything") == LineSpan(12, 12)


def test_a_field_that_is_not_written_has_the_lines_of_the_one_around_it() -> None:
    first, _, _ = source_maps(TEXT)
    assert first.span("b.missing[3].field") == first.span("b")


def test_comments_stand_beside_or_above_and_never_in_texts() -> None:
    first, _, third = source_maps(TEXT)
    assert (first.comment("b.c"), first.comment("b[d.example/e]"), first.comment("f")) == ("beside c", "above d", "")
    assert third.comment("g[0].i") == "above i"
    assert first.comments.alone == frozenset({1, 6, 15})


def test_aliases_and_malformed_ends_do_not_hinder() -> None:
    assert [source_map.span("b.x") for source_map in source_maps(b"a: &n {x: 1}\nb: *n\n")] == [LineSpan(1, 1)]
    assert len(source_maps(b"a: 1\n---\nb: [\n")) == 1
    assert source_maps(b"") == []


def test_json_is_read_like_yaml() -> None:
    (source_map,) = source_maps(b'{\n\t"a": {\n\t\t"b": 1\n\t}\n}\n')
    assert source_map.span("a.b") == LineSpan(3, 3)


def test_a_path_loses_one_step_at_a_time() -> None:
    paths = ["metadata.annotations[karpenter.sh/x].y[0]"]
    while paths[-1]:
        paths.append(parent_path(paths[-1]))
    assert paths[1:] == [
        "metadata.annotations[karpenter.sh/x].y",
        "metadata.annotations[karpenter.sh/x]",
        "metadata.annotations",
        "metadata",
        "",
    ]
