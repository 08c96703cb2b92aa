"""Dense layers: operations as published, times by hand."""

import dataclasses

import pytest

from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.request.dense import dlrm_network
from embark_jax.plans import fleet
from embark_jax.plans.products import Product
from tests.planner import published

# EMBark's Table 1, millions a sample.
MFLOPS = {"DLRM-DCNv2": 96, "T180": 308, "T200": 387, "T510": 1015, "T7": 25}


@pytest.mark.parametrize("name", MFLOPS)
def test_operations_are_the_published_ones(name):
    workload = published.workload(published.table_list(name), fleet.dgx_h100())
    operations = 6 * workload.dense.layers.parameters
    assert operations / 1e6 == pytest.approx(MFLOPS[name], rel=0.025)


def test_products_of_a_small_network():
    network = dlrm_network(10, 3, (4, 2), (5, 1), cross_layers=2, cross_rank=3)
    assert network.bottom == (Product(3, 4), Product(4, 2))
    assert network.cross == (Product(12, 3), Product(3, 12)) * 2
    assert network.top == (Product(12, 5), Product(5, 1))
    # 12 + 8; 4 · 36; 60 + 5.
    assert network.parameters == 20 + 144 + 65
    # Two embeddings and the bottom's output make three pairs.
    assert dlrm_network(4, 3, (4, 2), (5, 1), dotted=2).top[0] == Product(5, 5)


def test_the_time_of_a_product():
    device = fleet.DeviceSpec("toy", 1e9, 1e9, 1e9, 1e9, 1e9)
    efficiency = fleet.Efficiency(0.5, 1, 0.5, 0, 0, 0, kernel_us=7.0)
    rates = Rates(fleet.Fleet(device, efficiency=efficiency))
    # 2 · 100 · 20 · 30 operations at 5e8 a second are 240 µs; the 2 · (100 · 20 +
    # 20 · 30 + 100 · 30) bytes at 5e8 a second only 22.4.
    product = rates.product_ms(100, Product(20, 30))
    assert product == pytest.approx(0.240 + 0.007)
    # TF32 at half the rate.
    wide = rates.product_ms(100, Product(20, 30), "float32")
    assert wide == pytest.approx(0.480 + 0.007)
    # By a column of one: 2 · 100 operations, but 2 · 201 bytes.
    thin = rates.product_ms(100, Product(1, 1))
    assert thin == pytest.approx(402 / 5e8 * 1e3 + 0.007)
    ideal = dataclasses.replace(efficiency, kernel_us=0.0)
    faster = Rates(fleet.Fleet(device, efficiency=ideal))
    assert faster.product_ms(100, Product(20, 30)) == pytest.approx(0.240)
