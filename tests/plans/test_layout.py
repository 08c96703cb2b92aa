"""One record of shards: all rows once, and a table's properties through its number."""

import dataclasses

import numpy as np
import pytest

import embark_jax as ej
from embark_jax.embedding.indexing import index_storage
from embark_jax.plans.layout import lay_out
from embark_jax.plans.placement import Placement

FEATURES = [ej.FeatureSpec(name, weighted=name == "a") for name in "abc"]
DEVICES = 4


def placed(table=ej.TableSpec) -> list[Placement]:
    return [
        Placement(table("a", 50, 8), "rb", 3, 2, (2, 0, 1, 3, 2, 2), hot_rows=4),
        Placement(table("b", 21, 4), "ub", 2, 1, (1, 2)),
        Placement(table("c", 9, 4, tier="host", slots=6), "ub", 4, 1, (0, 1, 2, 3)),
    ]


def test_each_value_of_a_table_has_one_place_and_no_two_share_one():
    storages = lay_out(placed(), FEATURES, DEVICES)
    for number, placement in enumerate(placed()):
        table = placement.table
        seen = np.zeros((table.rows, table.dim), int)
        for storage in storages:
            for shard in storage.shards[storage.shards["table"] == number]:
                rows = shard["first_row"] + shard["stride"] * np.arange(shard["rows"])
                columns = shard["first_column"] + np.arange(shard["columns"])
                seen[np.ix_(rows, columns)] += 1
        assert (seen == 1).all()
    for storage in storages:
        used = np.zeros((DEVICES, storage.rows_per_device), int)
        for shard in storage.shards:
            first = shard["first_slot"]
            used[shard["owner"], first : first + shard["rows"]] += 1
        assert used.max() == 1
        assert used.sum(axis=1).max() == storage.rows_per_device
    cached = next(storage for storage in storages if storage.cached)
    assert (cached.slots_per_device, cached.rows_per_device) == (2, 3)


@dataclasses.dataclass(frozen=True)
class Toy(ej.TableSpec):
    """A table with a property more; nothing else knows of it."""

    toy: str = "new"


@pytest.mark.parametrize("number", range(3))
def test_a_new_property_of_a_table_is_read_from_the_table(number):
    """It is a line of its class and a line where it is used: no type copies it."""
    storages = lay_out(placed(Toy), FEATURES, DEVICES)
    for storage in storages:
        index = index_storage(storage, FEATURES, DEVICES, 2)
        for shards in (storage.shards, *(block.shards for block in index.blocks)):
            for shard in shards[shards["table"] == number]:
                assert storage.tables[shard["table"]].toy == "new"
