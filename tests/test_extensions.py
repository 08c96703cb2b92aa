"""A new cluster, exchange and row store need so many files of the package, which a copy
of it changes: the rows that they train are those of the ones that they stand for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import embark_jax

PACKAGE = Path(embark_jax.__file__).parent
ROOT = PACKAGE.parent
PATCHES = {
    "exchange": {
        "plans/clusters.py": {
            'Literal["flat", "hierarchical"]': 'Literal["flat", "hierarchical", "toy"]',
            '= ("flat", "hierarchical")': '= ("flat", "hierarchical", "toy")',
            '    "flat": Ex': '    "toy": ExchangeProperties(),\n    "flat": Ex',
        },
        "embedding/exchange.py": {
            "EXCHANGES: ": "class Toy(FlatExchange):\n    pass\n\n\nEXCHANGES: ",
            '    "flat": Flat': '    "toy": Toy,\n    "flat": Flat',
        },
    },
    "cluster": {
        "plans/clusters.py": {
            'Literal["dp", ': 'Literal["toy", "dp", ',
            '    "ub": ClusterP': """    "toy": ClusterProperties(
        {"mosaic_gpu": IdTraffic(4, 27, 4, 12), "xla": IdTraffic(4, 35, 0, 38)},
        unique_ids=True,
    ),
    "ub": ClusterP""",
        },
        "embedding/toy.py": {
            "": "from embark_jax.embedding.unique import UniqueBased\n\n\n"
            "class Toy(UniqueBased):\n    pass\n"
        },
        "embedding/collection.py": {
            "from embark_jax.embedding.unique": "from embark_jax.embedding.toy import "
            "Toy\nfrom embark_jax.embedding.unique",
            '    "ub": U': '    "toy": Toy,\n    "ub": U',
        },
        "simulator/step.py": {
            '    "ub": ("row exchange", "lookup")': '    "toy": ("row exchange", '
            '"lookup"),\n    "ub": ("row exchange", "lookup")',
            '    "ub": ("gradients", ': '    "toy": ("gradients", "gradient exchange", '
            '"square exchange", "update"),\n    "ub": ("gradients", ',
        },
    },
    "row store": {
        "plans/options.py": {'["device", "host", ': '["device", "toy", "host", '},
        "cache/toy.py": {
            "": "from embark_jax.cache.row_log import RowLog\n\n\n"
            "class Toy(RowLog):\n    pass\n"
        },
        "cache/row_store.py": {
            "from embark_jax.cache.row_log": "from embark_jax.cache.toy import Toy\n"
            "from embark_jax.cache.row_log",
            '    "disk": RowLog,\n}': '    "disk": RowLog,\n    "toy": Toy,\n}',
        },
    },
}
FILES = {"exchange": 2, "cluster": 4, "row store": 3}
PROGRAM = """
import numpy as np
import embark_jax as ej
from embark_jax.plans.storage import Placement
from tests.builders import make_plan, make_trainer, losses

def trained(cluster, exchange, tier):
    slots = 32 if tier != "device" else None
    table = ej.TableSpec("t", 60, 4, tier=tier, slots=slots)
    plan = make_plan(
        [ej.FeatureSpec("t")], [Placement(table, cluster, 1, 1, (0,), exchange)],
        1, 1, 8,
    )
    trainer = make_trainer(plan)
    data = ej.SyntheticClicks([table], plan.features, dense_features=2)
    return losses(trainer.iterate(data, 3)), trainer.table("t").rows

for toy in (GIVEN):
    expected = trained("ub", "flat", "host" if toy[2] == "toy" else "device")
    for found, one in zip(trained(*toy), expected, strict=True):
        np.testing.assert_array_equal(found, one)
"""
GIVEN = {
    "exchange": ("ub", "toy", "device"),
    "cluster": ("toy", "flat", "device"),
    "row store": ("ub", "flat", "toy"),
}


def test_they_need_so_many_files():
    assert {kind: len(files) for kind, files in PATCHES.items()} == FILES


@pytest.mark.slow
def test_they_train_in_a_copy_of_the_package(tmp_path):
    copy = shutil.copytree(PACKAGE, tmp_path / "embark_jax", symlinks=True)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    for files in PATCHES.values():
        for name, changes in files.items():
            text = (copy / name).read_text() if (copy / name).exists() else ""
            for old, new in changes.items():
                assert text.count(old) == 1, (name, old)
                text = text.replace(old, new)
            (copy / name).write_text(text)
    search = [str(tmp_path), str(ROOT / "kernels")]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("GIVEN", str([*GIVEN.values()]))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
