"""embark_jax: sharded embedding tables and recommendation models in JAX.

Tables, features and a fleet make a plan. The plan makes an ``EmbeddingCollection``,
which makes a ``Trainer`` together with a Flax model and two optimizers.
"""

import ast
import pkgutil
from typing import TYPE_CHECKING

import embark_kernels.optimizers as optimizers

if TYPE_CHECKING:
    from embark_kernels.optimizers import *  # noqa: F403

    import embark_jax.models as models
    import embark_jax.plans.fleet as fleets
    import embark_jax.report.figures as figures
    import embark_jax.simulator as simulator
    from embark_jax.checkpoint import Checkpointer as Checkpointer
    from embark_jax.config import ExperimentConfig as ExperimentConfig
    from embark_jax.config.reading import load as load_config
    from embark_jax.config.reading import load_table_list as load_table_list
    from embark_jax.config.table_lists import read_table_list as read_table_list
    from embark_jax.data import Batch as Batch
    from embark_jax.data import BatchChecker as BatchChecker
    from embark_jax.data import Jagged as Jagged
    from embark_jax.data import PreparedData as PreparedData
    from embark_jax.data import SyntheticClicks as SyntheticClicks
    from embark_jax.data import by_frequency as by_frequency
    from embark_jax.embedding.collection import (
        EmbeddingCollection as EmbeddingCollection,
    )
    from embark_jax.embedding.logical import TableRows as TableRows
    from embark_jax.embedding.logical import export_table as export_table
    from embark_jax.embedding.rules import RowRules as RowRules
    from embark_jax.export.id_scorer import IdScorer as IdScorer
    from embark_jax.export.id_scorer import load_id_scorer as load_id_scorer
    from embark_jax.export.scorer import Scorer as Scorer
    from embark_jax.export.scorer import load_scorer as load_scorer
    from embark_jax.metrics.pointwise import evaluate as evaluate
    from embark_jax.metrics.retrieval import ItemIndex as ItemIndex
    from embark_jax.models import FunctionModel as FunctionModel
    from embark_jax.models import ModelWithLoss as ModelWithLoss
    from embark_jax.planner import plan as plan
    from embark_jax.plans.fleet import Fleet as Fleet
    from embark_jax.plans.forced import ForcedPlacement as ForcedPlacement
    from embark_jax.plans.plan import Plan as Plan
    from embark_jax.plans.tables import FeatureSpec as FeatureSpec
    from embark_jax.plans.tables import TableSpec as TableSpec
    from embark_jax.plans.wire import Wire as Wire
    from embark_jax.run.accesses import sample_accesses as sample_accesses
    from embark_jax.run.experiment import Experiment as Experiment
    from embark_jax.run.loading import load_run as load_run
    from embark_jax.statistics.accesses import Statistics as Statistics
    from embark_jax.train.trainer import Trainer as Trainer

if not TYPE_CHECKING:
    # The imports above are the one list of public names. Each is imported when it is
    # first asked for: JAX takes seconds, and planning, reading data and watching over
    # processes do without.
    _PLACES = {
        alias.asname: f"{node.module}:{alias.name}"
        if isinstance(node, ast.ImportFrom)
        else alias.name
        for node in ast.walk(ast.parse(__loader__.get_source(__name__)))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if alias.asname and alias.asname not in globals()
    }
    _PLACES |= {name: f"{optimizers.__name__}:{name}" for name in optimizers.__all__}

    def __getattr__(name: str):
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in ("Plan", "plan"):
            pkgutil.resolve_name("embark_jax.report")  # by which plans show themselves
        globals()[name] = value = pkgutil.resolve_name(_PLACES[name])
        return value

    def __dir__():
        return sorted(_PLACES)
