"""A chain of exports of dynamic tables, which a scorer follows."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from embark_jax.export import load_scorer
from embark_jax.export.chain import Chain
from embark_jax.plans.tables import DYNAMIC_KEYS
from tests.days import DAYS, config_of, prepare_table, table_of
from tests.runs import done

TABLES = {
    "grows": "{slots: 16, max_slots: 400, dtype: bfloat16}",
    "forgets": "{slots: 44, max_slots: 44, evicted: discard}",
    "admits": "{slots: 40, max_slots: 80, admit_after: 2, expire_after: 2}",
}


@pytest.fixture(scope="module")
def days(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("days")
    keys = {"hash_columns": {"user": DYNAMIC_KEYS, "item": DYNAMIC_KEYS}}
    for day in range(DAYS):
        prepare_table(folder / "raw", table_of(day), folder / f"days/{day}", **keys)
    return folder / "days"


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_scorer_follows_dynamic_tables(days, tmp_path, table):
    """One export after each day; each is, by key, the whole model of that day, also
    where rows were forgotten since."""
    run, chain = tmp_path / "run", tmp_path / "chain"
    tables = f"embedding.tables={{user: {table}, item: {{slots: 8, max_slots: 100}}}}"
    config = config_of(tmp_path, days)
    done("train", config, tables, "train.keep_checkpoints=9", "--workdir", run)
    steps = sorted(int(path.name) for path in (run / "checkpoints").glob("[0-9]*"))
    rows = tmp_path / "rows.parquet"
    pq.write_table(table_of(1), rows)
    scorer, forgotten = None, 0
    for day in range(DAYS):
        whole = tmp_path / f"whole {day}"
        at = "--step", str(steps[day]), "--no-onnx", "--out"
        done("export", run, *at, whole)
        done("export", run, *at, chain, "--append")
        expected = load_scorer(whole)
        if scorer is None:
            scorer = load_scorer(chain)
        else:
            assert scorer.refresh() == 1
        assert scorer.step == expected.step == steps[day]
        np.testing.assert_array_equal(scorer.predict(rows), expected.predict(rows))
        link = Chain.read(chain).last
        followed = Chain.read(chain).table("user")
        keys = load_scorer(whole)._model.tables["user"].keys
        assert keys is not None
        assert followed.keys is not None
        forgotten += len(np.setdiff1d(followed.keys, keys))
        assert link.description.step == steps[day]
    assert (forgotten > 0) == ("discard" in table)
    assert scorer is not None
    later = load_scorer(shutil.copytree(chain, tmp_path / "copy"))
    np.testing.assert_array_equal(later.predict(rows), scorer.predict(rows))
