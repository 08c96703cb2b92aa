"""A new model, source of data, row optimizer, cluster, exchange, row store and kernel
need so few files of the packages, which a copy of them changes: help, planning,
training, exports and scoring follow, and the parts train what those train that they
stand for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KERNELS = "../embark_kernels/"
MODEL = '''\
"""A toy model."""

from typing import Annotated

import jax.numpy as jnp
from flax import nnx
from pydantic import Field

from embark_jax.models.interface import in_order, pooled_dims
from embark_jax.models.layers import MLP
from embark_jax.models.options import ComputeDtype, Dropout, Widths


class Toy(nnx.Module):
    """An MLP, whose logit grows by a bonus.

    Args:
      bonus: what is added to each logit.
      hidden: hidden widths.
    """

    def __init__(
        self,
        embedding_shapes,
        dense_features,
        bonus: Annotated[float, Field(examples=[3.0])],
        hidden: Widths = (6,),
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: bool = False,
        *,
        rngs,
    ):
        self.dims = pooled_dims(embedding_shapes)
        width = dense_features + sum(dim for _, dim in self.dims)
        self.mlp = MLP(
            width,
            (*hidden, 1),
            last_relu=False,
            compute_dtype=compute_dtype,
            dropout=dropout,
            batch_norm=batch_norm,
            rngs=rngs,
        )
        self.bonus = bonus

    def __call__(self, dense, embeddings):
        rows = jnp.concatenate([dense, *in_order(embeddings, self.dims)], axis=1)
        return self.mlp(rows)[:, 0] + self.bonus
'''
RULE = '''\
@dataclasses.dataclass(frozen=True)
class Sign(RowOptimizer):
    """``row -= learning_rate * sign(gradient)``, unless it is small."""

    least: Annotated[float, Ge(0), Doc("Smallest gradient that counts.")] = 0.25

    def state_widths(self, width):
        return {"counts": width, "last": 1}

    def rule(self, row, states, gradient, mean_square, rate, factors, math):
        sign = math.where(gradient > 0, 1.0, -1.0)
        sign = math.where(gradient * gradient > self.least**2, sign, 0.0)
        counts = states["counts"] + sign * sign
        return rate * sign, {"counts": counts, "last": states["last"]}


'''
SOURCE = """\
import numpy as np

from embark_jax.data.batch import Batch
from embark_jax.data.source import Description
from embark_jax.plans.tables import FeatureSpec


class Counting:
    table_rows, features, dense_features = {"n": 10}, (FeatureSpec("n"),), 0

    def __init__(self, samples):
        self.train_samples = samples

    def train_batch(self, step, batch_size):
        ids = (step * batch_size + np.arange(batch_size)) % 10
        labels = (ids % 2).astype(np.float32)
        return Batch(np.zeros((batch_size, 0), np.float32), {"n": ids[:, None]}, labels)


class CountingSource:
    def __init__(self, section, embedding):
        self._samples = section.samples

    def open(self, seed):
        dataset = Counting(self._samples)
        return dataset, Description.of(dataset, order={"samples": self._samples})

    def absent(self):
        return None
"""
PATCHES = {
    "source of data": {
        "data/counting.py": {"": SOURCE},
        "config/data.py": {
            "SOURCES: dict[type[Config], str] = {\n": '''\
class CountingConfig(Config):
    """Samples that are counted."""

    kind: Literal["counting"] = "counting"
    samples: PositiveInt = 8
    """Samples of an epoch."""


SOURCES: dict[type[Config], str] = {
    CountingConfig: "embark_jax.data.counting:CountingSource",
'''
        },
    },
    "model": {
        "models/toy.py": {"": MODEL},
        "config/models.py": {
            "MODELS = {\n": 'MODELS = {\n    "toy": "embark_jax.models.toy:Toy",\n'
        },
    },
    "row optimizer": {
        KERNELS + "optimizers.py": {
            "ROW_OPTIMIZERS: dict[str, type[RowOptimizer]] = {\n": RULE
            + "ROW_OPTIMIZERS: dict[str, type[RowOptimizer]] = {\n"
            '    "sign": Sign,\n',
            "__all__ = [\n": '__all__ = [\n    "Sign",\n',
        }
    },
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
    "source of data": 2,
    "model": 2,
    "row optimizer": 1,
    "kernel": 3,
    "exchange": 2,
    "table property": 3,
    "planner move": 1,
    "cluster": 4,
    "row store": 3,
}
TOY = """\
data: {kind: synthetic, dense_features: 2, train_samples: 64, test_samples: 32}
model: {kind: toy, bonus: 2.5}
embedding: {dim: 4, features: {user: {}}, tables: {user: {rows: 90}}}
train: {batch_size: 32, steps: 2}
"""
OF_MODEL = """
import sys
from pathlib import Path

from docs import site_reference
page = site_reference.config_keys()
assert "`model` (`kind: toy`)" in page
assert "| `bonus` | number | required, such as `3.0` |" in page

import numpy as np
import embark_jax as ej
from embark_jax import models
from embark_jax.export import load_id_scorer
from tests import runs
from tests.models import small

assert models.Toy.__name__ == "Toy"
assert "Toy" in dir(models)
assert small.small_config(small.KINDS["toy"]).bonus == 3.0
runs.done("train", "toy.yaml", "--workdir", "run")
runs.done("export", "run", "--out", "export")
setup, trainer = ej.load_run("run")
((batch, logits),) = trainer.predict([setup.training_data.train_batch(0, 32)])
scored = load_id_scorer("export").logits(batch.dense, batch.ids)
np.testing.assert_allclose(scored, logits, rtol=1e-5, atol=1e-6)
assert np.mean(scored) > 1
"""
OF_SOURCE = """
from pathlib import Path
from tests import runs

config = "data: {kind: counting, samples: 30}\\ntrain: {batch_size: 8}\\n"
Path("counting.yaml").write_text(config)
assert "Bags of 24 samples" in runs.done("data", "stats", "counting.yaml").out
unknown = runs.embark("data", "stats", "counting.yaml", "data.kind=countng")
assert "kind is 'counting' or 'synthetic' or" in unknown.err
"""
SIGN = """\
data: {kind: synthetic, dense_features: 2, train_samples: 64, test_samples: 32}
model: {kind: dlrm, bottom: [4], top: [1]}
embedding:
  dim: 4
  features: {user: {}}
  tables: {user: {rows: 90, optimizer: {least: 0.0}}}
  optimizer: {kind: sign, learning_rate: 0.5, least: 100.0}
train: {batch_size: 32, steps: 1}
"""
OF_RULE = """
import sys
from typer.testing import CliRunner
from embark_jax.cli import app
from embark_jax.planner.request.workload import STATE_VALUES

assert STATE_VALUES["sign"] == (1, 1)
assert "jax" not in sys.modules
assert "of kind sign" in CliRunner().invoke(app, ["keys", "embedding"]).output

import jax, numpy as np
import embark_jax as ej
from embark_jax.config import reading
from embark_jax.run import experiment

run = experiment.build(reading.load("sign.yaml"))
trainer = run.trainer()
assert trainer.optimizers.rows.named == {"user": ej.Sign(0.5, least=0.0)}
before = jax.tree.map(np.asarray, trainer.state.storages)
next(iter(trainer.iterate(run.dataset, 1)))
for name, rows in trainer.state.storages.items():
    moved = np.abs(np.asarray(rows) - before[name]).ravel()
    np.testing.assert_allclose(moved[moved > 0], 0.5, rtol=1e-5)
    assert moved.any()
"""
OF_PARTS = """
import jax
import numpy as np
import embark_jax as ej
from embark_jax.config.embedding import EmbeddingConfig
from embark_jax.planner.search.local_search import LocalSearch
from embark_jax.plans.storage import Placement
from tests.builders import make_plan, make_trainer, losses

jax.config.update("jax_num_cpu_devices", 4)

def trained(cluster, exchange, tier):
    slots = 32 if tier != "device" else None
    table = ej.TableSpec("t", 60, 4, tier=tier, slots=slots)
    plan = make_plan(
        [ej.FeatureSpec("t")], [Placement(table, cluster, 3, 1, (3, 0, 1), exchange)],
        2, 2, 8,
    )
    trainer = make_trainer(plan)
    data = ej.SyntheticClicks([table], plan.features, dense_features=2)
    return losses(trainer.iterate(data, 3)), trainer.table("t").rows

for toy in (
    ("ub", "toy", "device"), ("toy", "flat", "device"), ("ub", "flat", "toy")
):
    expected = trained("ub", "flat", "host" if toy[2] == "toy" else "device")
    for found, one in zip(trained(*toy), expected, strict=True):
        np.testing.assert_array_equal(found, one)

def initial(**properties):
    section = EmbeddingConfig(tables={"t": {"dim": 4, **properties}})
    placement = Placement(section.table("t", 60), "ub", 1, 1, (0,))
    plan = make_plan([ej.FeatureSpec("t")], [placement], 1, 1, 8)
    return make_trainer(plan).table("t")

np.testing.assert_array_equal(initial(toy=2.0).rows, 2 * initial().rows)

tables = [ej.TableSpec(f"t{i}", 1000 * (i + 1), 16) for i in range(4)]
features = [ej.FeatureSpec(table.name, hotness=5) for table in tables]
ej.plan(tables, features, ej.fleets.dgx_h100(), 8192)
assert LocalSearch.toys > 0

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


def test_they_need_so_many_files():
    assert {kind: len(files) for kind, files in PATCHES.items()} == FILES


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the packages with all patches."""
    folder = tmp_path_factory.mktemp("copy")
    for source in (ROOT / "embark_jax", ROOT / "kernels" / "embark_kernels"):
        shutil.copytree(source, folder / source.name, symlinks=True)
    for name in ("tests", "docs", "experiments", "configs"):
        (folder / name).symlink_to(ROOT / name)
    for files in PATCHES.values():
        for name, changes in files.items():
            path = folder / "embark_jax" / name
            text = path.read_text() if path.exists() else ""
            for old, new in changes.items():
                assert text.count(old) == 1, (name, old)
                text = text.replace(old, new)
            path.write_text(text)
    (folder / "toy.yaml").write_text(TOY)
    (folder / "sign.yaml").write_text(SIGN)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [OF_MODEL, OF_SOURCE, OF_RULE, OF_PARTS],
    ids=["model", "source of data", "row optimizer", "parts"],
)
def test_they_work_in_a_copy_of_the_package(program, copy):
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "500"},
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
