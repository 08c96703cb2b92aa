"""Where two artefacts differ: by value, by name, and by order where that matters."""

from embark_jax._base.agreement import differences, parts


def test_values_differ_by_dotted_path():
    theirs = {"model": {"kind": "dlrm", "top": [1, 2]}, "seed": 0}
    ours = {"model": {"kind": "dlrm", "top": [2, 1]}, "seed": 0, "labels": ["a"]}
    assert differences(theirs, ours, "there") == [
        "labels is nothing there, ['a'] here",
        "model.top is [1, 2] there, [2, 1] here",
    ]


def test_the_order_of_features_counts_and_that_of_tables_does_not():
    one, other = {"user": 3, "item": 4}, {"item": 4, "user": 3}
    assert differences({"tables": one}, {"tables": other}, "there") == []
    assert differences({"features": one}, {"features": other}, "there") == [
        "the order of features is ['user', 'item'] there, ['item', 'user'] here"
    ]
    renamed = differences({"features": one}, {"features": {"user": 3}}, "there")
    assert renamed == ["features.item is 4 there, nothing here"]


def test_parts_are_chosen_by_dotted_path():
    """One that is missing is missing: it is not one that is null."""
    artefact = {"seed": None, "tables": {"a": {"dim": 4, "rows": 9}, "b": {"dim": 8}}}
    fields = ("seed", "tables.*.dim", "tables.*.dtype", "model")
    expected = {"seed": None, "tables": {"a": {"dim": 4}, "b": {"dim": 8}}}
    assert parts(artefact, fields) == expected
    assert parts(artefact, ["tables"]) == {"tables": artefact["tables"]}
    assert parts({}, ["tables.*.dim"]) == {}
    theirs = {"tables": {"a": {"dim": 4}}, "model": None}
    assert differences(parts(theirs, fields), expected, "there") == [
        "model is None there, nothing here",
        "seed is nothing there, None here",
        "tables.b is nothing there, {'dim': 8} here",
    ]
