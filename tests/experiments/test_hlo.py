"""What instructions of a scheduled GPU program move, counted by hand."""

import pytest

from experiments.step_bytes.audit import phase_of
from experiments.step_bytes.hlo import CACHE_BYTES, SECTOR_BYTES, Program

HEADER = """
HloModule jit_f, is_scheduled=true

%put (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  ROOT %b = f32[] parameter(1)
}

%sum (a.1: f32[], b.1: f32[]) -> f32[] {
  %a.1 = f32[] parameter(0)
  %b.1 = f32[] parameter(1)
  ROOT %c.1 = f32[] add(%a.1, %b.1)
}
"""
ROWS, WIDTH, LISTED = 1_000_000, 16, 1000
TABLE, INDEX, PART = (
    f"f32[{ROWS},{WIDTH}]",
    f"s32[{LISTED},1]",
    f"f32[{LISTED},{WIDTH}]",
)
GATHERED = 4 * LISTED * WIDTH
assert 4 * ROWS * WIDTH > CACHE_BYTES


def moved(entry: str, others: str = ""):
    text = f"{HEADER}{others}\nENTRY %main (t: f32[]) -> f32[] {{\n{entry}\n}}\n"
    return [
        (each.name, each.read_bytes, each.written_bytes)
        for each in Program(text).moved()
    ]


def fusion(body: str, result: str) -> tuple[str, str]:
    called = f"\n%fused (x: f32[]) -> f32[] {{\n{body}\n}}\n"
    return f"  ROOT %f = {result} fusion(), kind=kLoop, calls=%fused", called


def test_a_kernel_reads_its_operands_and_writes_its_result():
    entry = """  %t = f32[1000]{0} parameter(0)
  %b = f32[10,100]{1,0} bitcast(%t)
  ROOT %n = bf16[10,100]{1,0} convert(%b), metadata={op_name="jit(f)/x"}"""
    assert moved(entry) == [("n", 4000, 2000)]


@pytest.mark.parametrize(
    ("rows", "width", "read_bytes"),
    [
        (ROWS, WIDTH, GATHERED),
        (100 * ROWS, 1, LISTED * SECTOR_BYTES),
        (10, WIDTH, 4 * 10 * WIDTH),  # from the cache
    ],
)
def test_a_gather_reads_the_rows_asked_for(rows, width, read_bytes):
    body = f"""  %x = f32[{rows},{width}]{{1,0}} parameter(0)
  %i = {INDEX}{{1,0}} parameter(1)
  %g = f32[{LISTED},1,{width}]{{2,1,0}} gather(%x, %i), slice_sizes={{1,{width}}}
  ROOT %r = f32[{LISTED},{width}]{{1,0}} bitcast(%g)"""
    call, called = fusion(body, f"f32[{LISTED},{width}]{{1,0}}")
    expected = read_bytes + 4 * LISTED, 4 * LISTED * width
    assert moved(call, called) == [("f", *expected)]


@pytest.mark.parametrize(("combined", "reads"), [("put", 0), ("sum", 1)])
def test_a_scatter_writes_the_rows_it_is_given(combined, reads):
    body = f"""  %x = {TABLE}{{1,0}} parameter(0)
  %i = {INDEX}{{1,0}} parameter(1)
  %u = f32[{LISTED},1,{WIDTH}]{{2,1,0}} parameter(2)
  ROOT %r = {TABLE}{{1,0}} scatter(%x, %i, %u), to_apply=%{combined}"""
    call, called = fusion(body, f"{TABLE}{{1,0}}")
    read_bytes = GATHERED + 4 * LISTED + reads * GATHERED
    assert moved(call, called) == [("f", read_bytes, GATHERED)]


def test_of_what_is_sliced_only_the_slice_is_computed():
    body = """  %x = f32[100,50]{1,0} parameter(0)
  %y = f32[100,50]{1,0} parameter(1)
  %z = f32[100,50]{1,0} add(%x, %y)
  ROOT %r = f32[100,10]{1,0} slice(%z), slice={[0:100], [0:10]}"""
    call, called = fusion(body, "f32[100,10]{1,0}")
    assert moved(call, called) == [("f", 2 * 4000, 4000)]


def test_a_loop_moves_in_every_turn():
    body = """
%body (p: (s32[], f32[100])) -> (s32[], f32[100]) {
  %p = (s32[], f32[100]{0}) parameter(0)
  %v = f32[100]{0} get-tuple-element(%p), index=1
  %w = f32[100]{0} negate(%v)
  ROOT %q = (s32[], f32[100]{0}) tuple(%v, %w)
}
"""
    entry = """  %t = (s32[], f32[100]{0}) parameter(0)
  ROOT %l = (s32[], f32[100]{0}) while(%t), condition=%sum, body=%body, \
backend_config={"known_trip_count":{"n":"24"}}"""
    assert moved(entry, body) == [("w", 24 * 400, 24 * 400)]


def test_a_sort_reads_and_writes_once_a_digit_and_counts_the_digits():
    entry = """  %k = u32[1000]{0} parameter(0)
  %v = s32[1000]{0} parameter(1)
  ROOT %s = (u32[1000]{0}, s32[1000]{0}) sort(%k, %v), dimensions={0}, to_apply=%sum"""
    assert moved(entry) == [("s", 4 * 8000 + 4000, 4 * 8000)]


def test_a_sort_that_makes_its_positions_is_a_sort():
    body = """  %k = u16[1000]{0} parameter(0)
  %i = s32[1000]{0} iota(), iota_dimension=0
  ROOT %s = (u16[1000]{0}, s32[1000]{0}) sort(%k, %i), dimensions={0}, to_apply=%sum"""
    call, called = fusion(body, "(u16[1000]{0}, s32[1000]{0})")
    assert moved(call, called) == [("f", 2 * 6000 + 2000, 2 * 6000)]


def test_a_kernel_moves_what_its_name_declares():
    entry = f"""  %t = {TABLE}{{1,0}} parameter(0)
  ROOT %k = f32[8]{{0}} custom-call(%t), custom_call_target="mosaic_gpu_v2", \
metadata={{op_name="jit(f)/lookup/reads 123 writes 45 bytes/kernel"}}"""
    assert moved(entry) == [("k", 123, 45)]


def test_collectives_read_what_is_sent_and_write_what_arrives():
    entry = """  %t = f32[100]{0} parameter(0)
  %s = (f32[100]{0}, f32[800]{0}) all-gather-start(%t), replica_groups=[1,8]<=[8]
  %d = f32[800]{0} all-gather-done(%s)
  ROOT %a = f32[800]{0} all-reduce(%d), to_apply=%sum"""
    assert moved(entry) == [("s", 400, 3200), ("a", 3200, 3200)]


@pytest.mark.parametrize(
    ("purpose", "phase"),
    [
        ("jit(train_step)/transpose(jvp(dense))/dot_general", "dense"),
        ("jit(train_step)/update/row_gradients/cond/branch_0_fun/add", "row_gradients"),
        ("jit(train_step)/update/gradients/add", "row_gradients"),
        ("jit(train_step)/update/gradient exchange/all_to_all", "update"),
        ("jit(train_step)/route/sort/id exchange/all_to_all", "route"),
        ("jit(train_step)/reshape", "other"),
        ("", "other"),
    ],
)
def test_the_innermost_scope_is_the_phase(purpose, phase):
    assert phase_of(purpose) == phase
