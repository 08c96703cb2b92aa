"""Fleets: their files, and what is said of a bad one."""

import dataclasses

import pytest

from embark_jax._base.config import ConfigError
from embark_jax.plans import fleet

GOOD = """
device: {name: toy, memory_bytes: 8e9, memory_bytes_per_s: 4e9, flops_per_s: 1e9,
         node_link_bytes_per_s: 2e9, network_bytes_per_s: 1e9}
gpus_per_node: 4
efficiency: {memory: 1, link: 1, flops: 1, launch_us: 1, node_hop_us: 0,
             network_hop_us: 2}
"""


@pytest.fixture
def file(tmp_path):
    """Writes ``GOOD`` with one text replaced by another, as a file."""

    def write(old: str = "", new: str = "") -> str:
        assert old in GOOD
        path = tmp_path / "fleet.yaml"
        path.write_text(GOOD.replace(old, new, 1))
        return str(path)

    return write


def test_every_fleet_of_the_folder_has_a_name():
    assert {"dgx-h100", "gb200-nvl72", "this-machine"} < set(fleet.BY_NAME)
    for name in fleet.BY_NAME:
        assert fleet.load(name, 2, 3).devices == 6


def test_gpu_fleets_share_what_their_generation_does_not_change():
    shared = fleet.gpu_efficiency()
    for name in set(fleet.BY_NAME) - {"this-machine"}:
        own = fleet.load(name).efficiency
        assert dataclasses.replace(own, flops=shared.flops) == shared
        assert (own != shared) == ("b200" in name or "b300" in name)
    # NCCL's latencies are not those of host devices.
    cpu = fleet.this_machine().efficiency
    assert cpu.launch_us != fleet.gpu_efficiency().launch_us


def test_host_devices_divide_the_machine_among_them():
    one, eight = fleet.this_machine(), fleet.this_machine(2, 4)
    assert one.device.memory_bytes > 1e8
    for figure in ("memory_bytes", "memory_bytes_per_s", "flops_per_s"):
        whole = getattr(one.device, figure)
        assert getattr(eight.device, figure) == pytest.approx(whole / 8)


def test_a_file_is_a_fleet(file):
    machines = fleet.load(file(), nodes=3)
    assert (machines.nodes, machines.gpus_per_node) == (3, 4)
    assert machines.device == fleet.DeviceSpec("toy", 8e9, 4e9, 1e9, 2e9, 1e9)
    assert machines.efficiency == fleet.Efficiency(1, 1, 1, 1, 0, 2)
    assert fleet.load(file(), gpus_per_node=2).gpus_per_node == 2
    assert fleet.load(file("8e9", "this machine")).device.memory_bytes > 1e8


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("8e9", "-8e9", r"device.memory_bytes: -8000000000.0 given, must be greater"),
        ("8e9", "other machine", r"device.memory_bytes: 'other machine' given, must"),
        ("gpus_per_node: 4", "gpus_per_node: 0.5", r"gpus_per_node: 0.5 given, must"),
        ("4e9", ".inf", r"device.memory_bytes_per_s: inf given, must be a finite"),
        (GOOD, "[1, 2]", r"must be a mapping, is \[1, 2\]"),
    ],
)
def test_a_bad_file_is_refused(file, old, new, message):
    path = file(old, new)
    with pytest.raises(ConfigError, match=message) as error:
        fleet.load(path)
    assert path in str(error.value)


def test_an_efficiency_that_is_like_itself_is_refused(tmp_path):
    text = (fleet.FILES / "dgx_b200.yaml").read_text()
    (tmp_path / "own.yaml").write_text(text.replace("/blackwell", "/own"))
    (tmp_path / "efficiency").mkdir()
    (tmp_path / "efficiency" / "own.yaml").write_text("like: own.yaml\nflops: 0.3\n")
    with pytest.raises(ConfigError, match=r"efficiency\.like"):
        fleet.load(str(tmp_path / "own.yaml"))
