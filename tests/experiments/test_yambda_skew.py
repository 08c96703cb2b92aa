"""The skew of generated Yambda is the published one."""

import numpy as np
import pytest

from embark_jax.data.prepare.yambda_files import Yambda
from experiments.yambda import skew


@pytest.mark.slow
def test_generated_events_have_the_published_skew():
    of_devices = list(skew.steps(Yambda(), 32))
    for table, share in skew.PUBLISHED_UNIQUE.items():
        shares = [lookups[table].unique_share for lookups in of_devices]
        assert np.mean(shares) == pytest.approx(share, rel=0.2)
    for table, load in skew.PUBLISHED_LOAD.items():
        assert skew.row_wise_load(of_devices, table) == pytest.approx(load, rel=0.2)
    for table in skew.TABLES:
        assert skew.unique_load(of_devices, table) < 1.05
