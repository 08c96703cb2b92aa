"""The package's functions and classes."""

import json
from collections.abc import Callable
from typing import Any

import embark_jax as ej
from tests.bad_input.case import Case

BAGS = {"mean_hotness": 1.0, "max_hotness": 1, "ids_seen": 9}
OTHERS = json.dumps(
    {"version": 2, "samples": 9, "features": {"item": BAGS}, "tables": {}}
)
"""Statistics of a feature that the model does not have."""

TABLE, FEATURE = ej.TableSpec("user", 300, 4), ej.FeatureSpec("user")


def _spec(given: str, call: Callable[[], Any], *says: str) -> Case:
    return Case(given, call, says)


def _plan(given: str, *says: str, **options: Any) -> Case:
    """``ej.plan`` of one table, with these arguments."""
    request: dict[str, Any] = {
        "tables": [TABLE],
        "features": [FEATURE],
        "fleet": ej.fleets.this_machine(),
        "batch": 32,
    }
    return Case(given, lambda: ej.plan(**request | options), says)


def _forced(given: str, force: Any, *says: str) -> Case:
    return _plan(given, *says, forced={"user": force})


SPECS = [
    _spec("a table without a name", lambda: ej.TableSpec("", 3, 4), "table name ''"),
    _spec(
        "a name that is a path",
        lambda: ej.TableSpec("a/b", 3, 4),
        "table name 'a/b': must be non-empty text, without '/'",
    ),
    _spec("a number for a name", lambda: ej.TableSpec(7, 3, 4), "table name 7: must"),
    _spec("no rows", lambda: ej.TableSpec("a", 0, 4), "rows is 0, must be a whole"),
    _spec(
        "half a row", lambda: ej.TableSpec("a", 2.5, 4), "rows is 2.5, must be a who"
    ),
    _spec("text for rows", lambda: ej.TableSpec("a", "9", 4), "rows is '9', must be a"),
    _spec("yes for a dim", lambda: ej.TableSpec("a", 3, True), "dim is True, must be"),
    _spec(
        "initial rows that are not numbers",
        lambda: ej.TableSpec("a", 3, 4, init_scale=float("nan")),
        "init_scale is nan, must be a finite number >= 0",
    ),
    _spec(
        "bags of half an id",
        lambda: ej.FeatureSpec("a", hotness=1.5),
        "feature 'a': hotness is 1.5, must be a whole number >= 1",
    ),
    _spec(
        "an unknown pooling",
        lambda: ej.FeatureSpec("a", pooling="max"),
        "pooling is 'max', must be one of sum, mean, none",
    ),
    _spec(
        "a table for its name",
        lambda: ej.FeatureSpec("a", table=TABLE),
        "feature 'a': table is TableSpec",
        "must be of type str",
    ),
    _spec(
        "text for a fleet's device",
        lambda: ej.Fleet("dgx-h100"),
        "fleet: device is 'dgx-h100', must be a DeviceSpec",
    ),
    _spec(
        "half a machine",
        lambda: ej.fleets.dgx_h100(nodes=1.5),
        "fleet: nodes is 1.5, must be a whole number >= 1",
    ),
    _spec(
        "synthetic data without dense features",
        lambda: ej.SyntheticClicks([TABLE], [FEATURE], dense_features=-1),
        "dense_features is -1, must be >= 0",
    ),
    _spec(
        "an unknown table list", lambda: ej.load_table_list("t18"), "did you mean t180"
    ),
]

PLANS = [
    _plan("no tables", "tables: none given", tables=[]),
    _plan("no features", "features: none given", features=[]),
    _plan("a name for a table", "tables: 'user' among them", tables=["user"]),
    _plan(
        "a table twice",
        "table name 'user' is used 2 times, must be unique",
        tables=[TABLE, TABLE],
    ),
    _plan("an unknown fleet", "did you mean dgx-h100?", fleet="dgx-h10"),
    _plan("half a sample", "batch size is 32.5, must be a whole number", batch=32.5),
    _plan("no samples", "batch size is 0, must be a whole number >= 1", batch=0),
    _plan("a negative skew", "zipf_exponent is -1, must be", zipf_exponent=-1),
    _plan("no room for ids", "capacity_slack is 0, must be", capacity_slack=0),
    _plan("an unknown optimizer", "optimizer is 'lamb'", optimizer="lamb"),
    _plan("an unknown implementation", "kernels is 'cuda'", kernels="cuda"),
    _plan("text for a wire", "wire is 'bfloat16', must be such", wire="bfloat16"),
    _plan(
        "statistics of another model",
        "statistics: feature 'item' is not in the model",
        statistics=ej.Statistics.from_json(OTHERS),
    ),
    _plan(
        "a placement of an unknown table",
        "placements are forced for unknown tables ['item']",
        forced={"item": ej.ForcedPlacement("dp")},
    ),
    _forced("text for a placement", "dp", "table 'user': 'dp' is forced, must be such"),
    _forced(
        "an unknown cluster",
        ej.ForcedPlacement("xx"),
        "cluster is 'xx', must be one of dp, rb",
    ),
    _forced(
        "no row shards", ej.ForcedPlacement("rb", row_shards=0), "row_shards is 0, must"
    ),
    _forced(
        "no column shards",
        ej.ForcedPlacement("rb", column_shards=0),
        "column_shards is 0, must be >= 1",
    ),
    _forced(
        "shards of what is replicated",
        ej.ForcedPlacement("dp", row_shards=2),
        "cluster dp is replicated, takes no shards",
    ),
    _plan(
        "tables beyond all memory",
        "memory is short on the device",
        tables=[ej.TableSpec("user", 10**12, 64)],
    ),
]

ENTRANCES = {"specs, fleets and data in Python": SPECS, "planning in Python": PLANS}
