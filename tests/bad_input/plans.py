"""What plans are made of: table lists, fleets, statistics, and plans themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bad_input.case import JUNK, Case, cutting, editing, replacing, writing


def _list(given: str, text: str | bytes, *says: str) -> Case:
    command = "embark plan --tables a.yaml"
    return Case(given, command, ("a.yaml: ", *says), writing("a.yaml", text))


ROWS = "{rows: 1, dim: 4}"

TABLE_LISTS = [
    Case(
        "a file that is not there",
        "embark plan --tables t18",
        ("t18: no such file, and no published model; did you mean t180?",),
    ),
    Case("a folder", "embark plan --tables raw", ("raw: Is a directory",)),
    _list("bytes that are no text", JUNK, "is not UTF-8 text"),
    _list("a number", "7", "must be a list of tables or a mapping with tables, is 7"),
    _list("no list", "{}", "table list: has no tables"),
    _list("a list of nothing", "[]", "tables is [], must be a list of at least one"),
    _list("a table that is a number", "- 5", "entry 0: is 5, must be a mapping"),
    _list("a table without dim", "- {rows: 3}", "table list, entry 0: has no dim"),
    _list(
        "half a column",
        f"[{ROWS}, {{rows: 3, dim: 4.5}}]",
        "entry 1: dim is 4.5, must be a whole number",
    ),
    _list("yes for a number", "- {rows: 1, dim: true}", "dim is True, must be a whole"),
    _list(
        "negative rows", "- {rows: -1, dim: 4}", "entry 0: rows is -1, must be great"
    ),
    _list("bags of text", "- {rows: 1, dim: 4, hotness: x}", "hotness is 'x', must be"),
    _list(
        "no bags", "- {rows: 1, dim: 4, hotness: []}", "hotness is [], must be a who"
    ),
    _list(
        "a key misspelt",
        "- {rows: 1, dim: 4, hotnes: 1}",
        "has an unknown key 'hotnes'; did you mean hotness?",
    ),
    _list("an unknown key", f"tables: [{ROWS}]\nzipf: 1", "unknown key 'zipf'"),
    _list(
        "an unknown key of the layers",
        f"tables: [{ROWS}]\ndense: {{tops: [1]}}",
        "table list, dense: has an unknown key 'tops'",
    ),
    _list("a key twice", f"tables: [{ROWS}]\nx: 1\nx: 2", "line 3: YAML error"),
    _list(
        "a name twice",
        "[{name: a, rows: 1, dim: 4}, {name: a, rows: 2, dim: 4}]",
        "table list: table name 'a' is used 2 times, must be unique",
    ),
    Case(
        "of a model to simulate",
        "embark simulate --tables a.yaml",
        ("a.yaml: is not UTF-8 text",),
        writing("a.yaml", JUNK),
    ),
    Case(
        "of a model to make data for",
        "embark data synth --model a.yaml --rows 9 --out new",
        ("a.yaml: table list, entry 0: rows is 0, must be",),
        writing("a.yaml", "- {rows: 0, dim: 4}"),
    ),
]


def _fleet(given: str, old: str, new: str, *says: str) -> Case:
    command = "embark plan --tables tables.yaml --fleet fleet.yaml"
    says = ("fleet: fleet.yaml", *says)
    return Case(given, command, says, replacing("fleet.yaml", old, new))


FLEETS = [
    Case(
        "an unknown name",
        "embark plan tiny.yaml fleet=dgx-h10",
        ("fleet is 'dgx-h10'", "did you mean dgx-h100?"),
    ),
    Case(
        "a file that is not there",
        "embark plan tiny.yaml fleet=my.yaml",
        ("fleet: my.yaml: No such file",),
    ),
    Case(
        "bytes that are no text",
        "embark plan tiny.yaml fleet=fleet.yaml",
        ("fleet: fleet.yaml: is not UTF-8 text",),
        writing("fleet.yaml", JUNK),
    ),
    _fleet(
        "a figure left out", "  flops_per_s: 100e9\n", "", "device.flops_per_s: miss"
    ),
    _fleet("a figure in words", "20e9", "fast", "memory_bytes_per_s: 'fast' given"),
    _fleet("a negative latency", "us: 45", "us: -1", "efficiency.launch_us: -1 given"),
    _fleet("a key misspelt", "shared:", "sharde:", "did you mean shared?"),
]


def _statistics(given: str, change: Callable[[Any], Any], *says: str) -> Case:
    command = "embark plan tiny.yaml --stats stats.json"
    return Case(given, command, says, editing("stats.json", change))


STATISTICS = [
    Case(
        "half a file",
        "embark plan tiny.yaml --stats stats.json",
        ("stats.json: not statistics of `embark data stats`",),
        cutting("stats.json", 100),
    ),
    Case(
        "bytes that are no text",
        "embark plan tiny.yaml --stats stats.json",
        ("stats.json: is not UTF-8 text",),
        writing("stats.json", JUNK),
    ),
    _statistics(
        "another version", lambda s: s.update(version=9), "version: is 9, must be 1"
    ),
    _statistics("no tables", lambda s: s.pop("tables"), "tables: missing"),
    _statistics(
        "fewer accesses than rows",
        lambda s: s["tables"]["user"].update(bins=[[200, 3]]),
        "200 rows seen 3 times",
    ),
    Case(
        "of other tables",
        "embark plan tiny.yaml embedding.tables.user.rows=301 --stats stats.json",
        ("statistics: table 'user' has 300 rows, the model's 301",),
    ),
]


def _plan(given: str, change: Callable[[Any], Any], *says: str) -> Case:
    command = "embark train tiny.yaml --plan plan.json --workdir new"
    return Case(given, command, ("plan.json: ", *says), editing("plan.json", change))


def _file(given: str, damage: Callable[[], Any], *says: str) -> Case:
    command = "embark train tiny.yaml --plan plan.json --workdir new"
    return Case(given, command, ("plan.json: ", *says), damage)


def _placement(plan: Any) -> Any:
    return plan["placements"][0]


PLANS = [
    _file("a file that is not there", Path("plan.json").unlink, "No such file"),
    _file("half a file", cutting("plan.json", 100), "Unterminated string"),
    _file("bytes that are no text", writing("plan.json", JUNK), "is not UTF-8 text"),
    _file("a list", writing("plan.json", "[]"), "not a plan of version"),
    _plan("another version", lambda p: p.update(version=0), "not a plan of version"),
    _plan("no features", lambda p: p.pop("features"), "features: missing"),
    _plan("an unknown key", lambda p: p.update(colour=1), "colour: unknown key"),
    _plan(
        "an unknown key of a placement",
        lambda p: _placement(p).update(row_shard=2),
        "placements.0.row_shard: unknown key",
    ),
    _plan(
        "an unknown cluster",
        lambda p: _placement(p).update(cluster="xx"),
        "placements.0.cluster: 'xx' given, must be 'dp', 'rb' or 'ub'",
    ),
    _plan(
        "no row shards",
        lambda p: _placement(p).update(row_shards=0),
        "table 'user': row_shards is 0, must be >= 1",
    ),
    _plan(
        "negative column shards",
        lambda p: _placement(p).update(column_shards=-1),
        "table 'user': column_shards is -1, must be >= 1",
    ),
    _plan(
        "shards without owners",
        lambda p: _placement(p).update(cluster="rb"),
        "devices names 0 owners, must name one for each of its 1 × 1 shards",
    ),
    _plan(
        "owners that are not there",
        lambda p: _placement(p).update(cluster="rb", devices=[7]),
        "table 'user': devices [7] must lie in 0..0",
    ),
    _plan(
        "text for rows",
        lambda p: _placement(p)["table"].update(rows="300"),
        "placements.0.table.rows: '300' given, must be a valid integer",
    ),
    _plan(
        "no GPUs", lambda p: p.update(gpus_per_node=0), "gpus_per_node is 0, must be"
    ),
    _plan("half a node", lambda p: p.update(nodes=0.5), "nodes: 0.5 given, must be a"),
    _plan(
        "capacities of nothing",
        lambda p: p.update(capacities={"rb_4": 3}),
        "capacities are given for ['rb_4']",
    ),
    _plan(
        "capacities of no id",
        lambda p: (
            _placement(p).update(cluster="rb", devices=[0]),
            p.update(capacities={"rb_4": 0}),
        ),
        "capacities {'rb_4': 0} must be positive integers",
    ),
    Case(
        "of other tables",
        "embark train tiny.yaml embedding.tables.user.rows=301 --plan plan.json",
        ("plan.json: plan is for another model: table 'user': plan has",),
    ),
    Case(
        "of another mesh and batch",
        "embark train tiny.yaml mesh.gpus_per_node=2 train.batch_size=64 "
        "--plan plan.json",
        ("mesh.gpus_per_node 1, the config says 2", "train.batch_size 32, the"),
    ),
]

ENTRANCES = {
    "table lists": TABLE_LISTS,
    "fleets": FLEETS,
    "statistics": STATISTICS,
    "plan files": PLANS,
}
