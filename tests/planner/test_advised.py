"""What a plan advises was tried, and holds when it is followed."""

import dataclasses
import json
import re

import pytest

import embark_jax as ej
from embark_jax._base.memory import bytes_text
from embark_jax.planner import Workload, plan_for
from tests.planner import published
from tests.planner.toy import h100
from tests.runs import done

MANY = [ej.TableSpec("ids", 4 * 2**31, 1)]
FEATURES = [ej.FeatureSpec("ids")]


def test_more_rows_than_numbers_are_the_reason_and_more_nodes_help():
    """Their memory would suffice: 34 GB of rows and accumulators on two devices."""
    machines = ej.fleets.dgx_h100(1, gpus_per_node=2)
    with pytest.raises(ValueError, match="numbers at most") as error:
        ej.plan(MANY, FEATURES, machines, 96, optimizer="sgd")
    text = str(error.value)
    assert "memory is short" not in text
    said = re.search(r"(\d+) nodes \((\S+) ms a step, (\S+ \S+) a device\)", text)
    assert said, text
    more = ej.fleets.dgx_h100(int(said[1]), gpus_per_node=2)
    followed = ej.plan(MANY, FEATURES, more, 96, optimizer="sgd").prediction
    assert f"{followed.step_ms:.3f}" == said[2]
    assert bytes_text(max(followed.device_bytes)) == said[3]


@pytest.mark.slow
def test_memory_that_hardly_costs_time_is_advised_and_can_be_had():
    listed = published.table_list("T180")
    tables, features = listed.specs()
    workload = published.workload(listed, ej.fleets.dgx_h100())
    advised = plan_for(workload, tables, features, advise=True).prediction
    (text,) = [text for text in advised.advice if "save" in text]
    longer, gb = re.search(r"step (\S+)% longer .* (\S+) GB a device", text).groups()
    assert float(gb) <= 0.95 * advised.device_bytes[0] / 1e9
    limited = dataclasses.replace(workload, memory_gb=float(gb) + 0.1)
    followed = plan_for(limited, tables, features, advise=True).prediction
    assert followed.step_ms <= (1.005 + float(longer) / 100) * advised.step_ms
    assert "save" not in " ".join(followed.advice)


def test_tables_that_leave_the_devices_are_counted():
    device = ej.fleets.DeviceSpec("toy", 1e8, 1e9, 1e9, 2e9, 1e9, host_bytes_per_s=1e9)
    workload = Workload(ej.fleets.Fleet(device, gpus_per_node=4), 64)
    large, there = (ej.TableSpec(name, 10**7, 16) for name in ("large", "there"))
    there = dataclasses.replace(there, tier="host")
    features = [ej.FeatureSpec("large"), ej.FeatureSpec("there")]
    auto = [dataclasses.replace(large, tier="auto"), there]
    made = plan_for(workload, [large, there], features, or_tables=auto)
    assert [table.tier for table in made.tables] == ["host", "host"]
    assert "1 of 2 tables are in another tier" in made.prediction.advice[0]


def test_the_function_and_the_command_have_one_price(tmp_path):
    entries = [{"name": f"t{i}", "rows": 10**6, "dim": 32} for i in range(3)]
    path = tmp_path / "tables.json"
    path.write_text(json.dumps(entries))
    keys = ("fleet=dgx-h100", "train.batch_size=4096")
    record = json.loads(done("plan", path, *keys, "--json").out)
    tables = [ej.TableSpec(f"t{i}", 10**6, 32) for i in range(3)]
    features = [ej.FeatureSpec(table.name) for table in tables]
    made = ej.plan(tables, features, ej.fleets.dgx_h100(), 4096).prediction
    assert (made.step_ms, made.overlap) == (record["step_ms"], record["overlap"])
    assert made.device_bytes[0] == record["per_device"][0]["memory_bytes"]
    alone = ej.plan(tables, features, ej.fleets.dgx_h100(), 4096, overlap=False)
    assert not alone.prediction.overlap


def test_an_unknown_table_that_is_forced_is_told_the_nearest():
    tables, features = [ej.TableSpec("item", 10, 4)], [ej.FeatureSpec("item")]
    workload = Workload(ej.fleets.dgx_h100(), 64)
    with pytest.raises(ValueError, match="did you mean item"):
        plan_for(workload, tables, features, forced={"itm": ej.ForcedPlacement("dp")})


def test_a_batch_that_devices_cannot_share_is_told_one():
    with pytest.raises(ValueError, match="such as 264"):
        ej.plan(MANY, FEATURES, ej.fleets.dgx_h100(33), 100)


def test_what_would_be_faster_is_so_when_it_is_done():
    """Of fewer nodes, 16 bits on the wire, and the rest the three best are named; a
    plan for each is at most as slow as said."""
    tables = [ej.TableSpec(f"t{i}", 10**7, 64) for i in range(4)]
    features = [ej.FeatureSpec(table.name, hotness=20) for table in tables]
    workload = Workload(h100(2), 8192)
    made = plan_for(workload, tables, features, advise=True).prediction
    (text,) = [text for text in made.advice if "faster" in text]
    said = dict(re.findall(r"(\S+=\S+) \((\S+) ms a step", text))
    assert len(said) == 3
    followed = {
        "mesh.nodes=1": {"fleet": h100(1)},
        "mesh.nodes=4": {"fleet": h100(4)},
        "train.batch_size=16384": {"batch_size": 16_384},
    }
    assert said.keys() == followed.keys()  # latency is most of so short a step
    for change, fields in followed.items():
        other = dataclasses.replace(workload, **fields)
        step_ms = plan_for(other, tables, features).prediction.step_ms
        assert step_ms <= float(said[change]) + 0.0005  # by which it is rounded
    assert not plan_for(workload, tables, features).prediction.advice


def test_a_laptop_is_not_told_to_buy_nodes():
    tables = [ej.TableSpec("t", 10**6, 16)]
    machine = ej.fleets.this_machine(gpus_per_node=2)
    with pytest.raises(ValueError, match="memory is short") as error:
        ej.plan(tables, [ej.FeatureSpec("t")], machine, 64, memory_gb=0.03)
    text = str(error.value)
    assert "need 34 MB or more on each, host CPU has 30 MB" in text
    assert "tier: auto" in text
    assert "nodes" not in text
