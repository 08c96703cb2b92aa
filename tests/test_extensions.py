"""A new cluster, exchange, row store, kernel, property of tables and move of the
planner need so many files of the packages, which a copy of them changes: the rows that
they train, and the plans, are those of the ones that they stand for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import embark_kernels
import pytest

import embark_jax

PACKAGE = Path(embark_jax.__file__).parent
ROOT = PACKAGE.parent
KERNELS = "../embark_kernels/"
PATCHES = {
    "kernel": {
        KERNELS + "_toy.py": {
            "": """import jax
from embark_kernels._implementation import choose
from embark_kernels.lookup import sum_bags_between

def toy(table, ids, *, implementation=None):
    if choose(implementation, table.shape[1], table.dtype) == "xla":
        return table[ids].astype("float32")
    offsets = jax.numpy.arange(len(ids) + 1, dtype="int32")[None]
    return sum_bags_between(table, ids, offsets, None)[0]
"""
        },
        KERNELS + "_api.py": {
            "from embark_kernels.update import init": "from embark_kernels._toy import "
            "toy as toy\nfrom embark_kernels.update import init"
        },
        KERNELS + "check.py": {
            "from embark_kernels.update": "from embark_kernels._toy import toy\n"
            "from embark_kernels.update",
            '            "sum_groups": by': '            "toy": toy(table, slot, '
            '**options),\n            "sum_groups": by',
            '        "sum_groups": (*sums': '        "toy": (table[slots], '
            'np.zeros((IDS, 1)), 0.0),\n        "sum_groups": (*sums',
        },
    },
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
    "table property": {
        "plans/tables.py": {
            '"float32"\n\n    @': '"float32"\n    toy: float = 1.0\n\n    @'
        },
        "config/embedding.py": {
            "    optimizer: Mapping[": "    toy: float = 1.0\n    optimizer: Mapping["
        },
        "embedding/initial.py": {"[table.scale": "[table.toy * table.scale"},
    },
    "planner move": {
        "planner/search/local_search.py": {
            "    def fill(": """    def toy(self, assignment):
        LocalSearch.toys = getattr(LocalSearch, "toys", 0) + 1
        for table, candidate in enumerate(assignment.candidate.tolist()):
            self._change(assignment, table, candidate)

    def fill(""",
            "            self._pass(": "            self.toy(assignment)\n"
            "            self._pass(",
        }
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
FILES = {
    "kernel": 3,
    "exchange": 2,
    "table property": 3,
    "planner move": 1,
    "cluster": 4,
    "row store": 3,
}
PROGRAM = """
import numpy as np
import embark_jax as ej
from embark_jax.config.embedding import EmbeddingConfig
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

def initial(**properties):
    section = EmbeddingConfig(tables={"t": {"dim": 4, **properties}})
    placement = Placement(section.table("t", 60), "ub", 1, 1, (0,))
    plan = make_plan([ej.FeatureSpec("t")], [placement], 1, 1, 8)
    return make_trainer(plan).table("t")

np.testing.assert_array_equal(initial(toy=2.0).rows, 2 * initial().rows)

import embark_kernels
import jax
from embark_kernels import check

program, arguments, expected = check.make_program(32, "float32")
table, _, _, ids, *_ = arguments
rows = embark_kernels.toy(table, ids.clip(0, len(table) - 1))
np.testing.assert_array_equal(rows, expected["toy"][0])
checked = jax.eval_shape(program, *arguments)["toy"]
assert checked.shape == rows.shape, checked
"""
PLANNING = """
import embark_jax as ej
from embark_jax.planner.search.local_search import LocalSearch

tables = [ej.TableSpec(f"t{i}", 1000 * (i + 1), 16) for i in range(4)]
features = [ej.FeatureSpec(table.name, hotness=5) for table in tables]
made = ej.plan(tables, features, ej.fleets.dgx_h100(), 8192)
print(getattr(LocalSearch, "toys", 0) > 0, made.prediction.step_ms)
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
    kernels = Path(embark_kernels.__file__).parent
    shutil.copytree(kernels, tmp_path / "embark_kernels")
    for folder in ("tests", "configs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    for files in PATCHES.values():
        for name, changes in files.items():
            text = (copy / name).read_text() if (copy / name).exists() else ""
            for old, new in changes.items():
                assert text.count(old) == 1, (name, old)
                text = text.replace(old, new)
            (copy / name).write_text(text)
    run(tmp_path, PROGRAM.replace("GIVEN", str([*GIVEN.values()])))
    moved, step_ms = run(tmp_path, PLANNING).split()
    assert moved == "True"
    assert run(ROOT, PLANNING).split() == ["False", step_ms]


def run(folder: Path, program: str) -> str:
    """What a program prints, with the package in this folder."""
    search = os.pathsep.join([str(folder), str(ROOT / "kernels")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": search},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
