"""The time of a compiled step, from a program of four lines."""

import pytest

from embark_jax.planner import Workload
from embark_jax.plans import fleet
from experiments.step_bytes.hlo import Program
from experiments.step_bytes.timeline import program_times

PROGRAM = """HloModule step, is_scheduled=true

%product (a: bf16[64,8], b: bf16[8,32]) -> f32[64,32] {
  %a = bf16[64,8]{1,0} parameter(0)
  %b = bf16[8,32]{1,0} parameter(1)
  ROOT %dot = f32[64,32]{1,0} dot(%a, %b), lhs_contracting_dims={1}
}

ENTRY %main (x: bf16[64,8], y: bf16[8,32], z: f32[1000]) -> f32[64,32] {
  %x = bf16[64,8]{1,0} parameter(0)
  %y = bf16[8,32]{1,0} parameter(1)
  %z = f32[1000]{0} parameter(2)
  %start = f32[1000]{0} all-reduce-start(%z), replica_groups={{0,1}}, to_apply=%add
  %made = f32[64,32]{1,0} fusion(%x, %y), calls=%product, OF_DENSE
  %done = f32[1000]{0} all-reduce-done(%start)
  ROOT %copy = f32[64,32]{1,0} copy(%made), OF_UPDATE
}
"""
for phase in ("dense", "update"):
    named = f'metadata={{op_name="jit(step)/{phase}/x"}}'
    PROGRAM = PROGRAM.replace(f"OF_{phase.upper()}", named)


def test_kernels_run_in_turn_and_collectives_beside_them():
    device = fleet.DeviceSpec("toy", 1e9, 1e9, 1e6, 1e9, 1e9)
    efficiency = fleet.Efficiency(1.0, 1.0, 1.0, 40_000.0, 0.0, 0.0, kernel_us=1000.0)
    machines = fleet.Fleet(device, gpus_per_node=2, efficiency=efficiency)
    times = program_times(Program(PROGRAM).moved(), Workload(machines, 2))
    # 2 · 64 · 8 · 32 operations at 1e6 a second, more than its bytes take.
    assert times["dense"] == pytest.approx(32.768 + 1)
    # 8,192 bytes there and back.
    copy_ms = 2 * 8192 / 1e6 + 1
    assert times["row gradients, update"] == pytest.approx(copy_ms)
    # A launch, and half of 4,000 bytes twice.
    assert times["links"] == pytest.approx(40 + 0.004)
    assert times["waiting for links"] == pytest.approx(40.004 - 33.768)
    assert times["step"] == pytest.approx(40.004 + copy_ms)
