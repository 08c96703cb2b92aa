"""The emulator itself, on code written for it: instructions against Python's numbers,
and everything that it must not let pass."""

import numpy as np
import pytest

from tests.kernels.emulator.machine import KernelError, Machine
from tests.kernels.emulator.memory import BLOCK, Memory
from tests.kernels.emulator.ptx import parse

pytestmark = pytest.mark.slow

MODULE = """
.version 9.0
.visible .entry kernel(
	.param .u64 .ptr .align 256 kernel_param_0,
	.param .u64 .ptr .align 256 kernel_param_1
)
.maxntid 128, 1, 1
{{
	.reg .b32 	%r<9>;
	ld.param.b64 	%rd0, [kernel_param_0];
	ld.param.b64 	%rd1, [kernel_param_1]; // the result
	mov.u32 	%r0, %tid.x;
	mov.u32 	%r1, %ctaid.x;
	mad.lo.s32 	%r2, %r1, 128, %r0;
	mul.wide.u32 	%rd2, %r2, 4;
	add.s64 	%rd3, %rd0, %rd2;
	add.s64 	%rd4, %rd1, %rd2;
	mov.b64 	%rd5, __dynamic_shmem__0;
	mul.wide.u32 	%rd6, %r0, 4;
	add.s64 	%rd7, %rd5, %rd6;
	{body}
	ret;
$L__func_end0:

}}
"""
"""Thread ``%r0`` of block ``%r1``, ``%r2`` in the grid, has a value at ``%rd3``, its
result at ``%rd4``, and 4 bytes of shared memory at ``%rd7``."""


def run(body, values=None, blocks=1, shared_bytes=512, seed=0):
    """The uint32 results of all threads, and the races."""
    kernel = parse(MODULE.format(body=body))
    if unset := kernel.unset_reads():
        raise KernelError("; ".join(unset))
    memory = Memory(blocks, shared_bytes)
    values = np.arange(blocks * BLOCK, dtype=np.uint32) if values is None else values
    addresses = [memory.add("input", values, is_set=None)]
    empty = np.zeros(blocks * BLOCK, np.uint32)
    addresses.append(memory.add("result", empty, is_set=False))
    Machine(kernel, blocks, memory, addresses, seed).run()
    results = memory.values(addresses[1], empty.shape, empty.dtype)
    return results, memory.races()


def bits(*numbers):
    """float32 numbers as registers have them."""
    return [f"0f{np.float32(x).view(np.uint32):08X}" for x in numbers]


A, MINUS_B = bits(1 + 2**-12, -(1 + 2**-11))  # a² = b + 2**-24
NAN, ONE, MINUS_ONE = bits(np.nan, 1, -1)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("add.s32 %r3, -5, 3;", -2),
        ("sub.s32 %r3, 3, 5;", -2),
        ("mul.lo.s32 %r3, 65537, 65537;", 65537**2 % 2**32),
        ("mul.hi.s32 %r3, -3, 1431655766;", -2),
        ("mul.wide.s32 %rd8, -3, 5; cvt.u32.u64 %r3, %rd8;", -15),
        (
            "mul.wide.u32 %rd8, -1, 16; shr.u64 %rd8, %rd8, 32; cvt.u32.u64 %r3, %rd8;",
            15,
        ),
        ("mad.lo.s64 %rd8, 3, 4, 5; cvt.u32.u64 %r3, %rd8;", 17),
        ("min.s32 %r3, -1, 1;", -1),
        ("min.u32 %r3, -1, 1;", 1),
        ("shl.b32 %r3, 3, 31;", 2**31),
        ("shl.b32 %r3, 3, 32;", 0),
        ("shr.u32 %r3, -8, 1;", 2**31 - 4),
        ("shr.s32 %r3, -8, 40;", -1),
        ("bfe.u32 %r3, 0xABCD, 4, 8;", 0xBC),
        ("cvt.s64.s32 %rd8, -7; shr.u64 %rd8, %rd8, 32; cvt.u32.u64 %r3, %rd8;", -1),
        ("cvt.u64.u32 %rd8, -7; shr.u64 %rd8, %rd8, 32; cvt.u32.u64 %r3, %rd8;", 0),
        ("neg.s32 %r3, 7;", -7),
        ("setp.lt.s32 %p1, -1, 1; selp.b32 %r3, 6, 7, %p1;", 6),
        ("setp.lt.u32 %p1, -1, 1; not.pred %p2, %p1; selp.b32 %r3, 6, 7, %p2;", 6),
        (f"setp.ne.f32 %p1, {NAN}, {ONE}; selp.b32 %r3, 6, 7, %p1;", 7),
        (f"setp.le.f32 %p1, {NAN}, {ONE}; selp.b32 %r3, 6, 7, %p1;", 7),
        (f"max.f32 %r3, {NAN}, {ONE};", np.float32(1)),
        (f"max.NaN.f32 %r3, {NAN}, {ONE};", np.float32(np.nan)),
        (f"fma.rn.f32 %r3, {A}, {A}, {MINUS_B};", np.float32(2**-24)),
        (f"mul.f32 %r3, {A}, {A}; add.f32 %r3, %r3, {MINUS_B};", np.float32(0)),
        (f"cvt.rn.bf16x2.f32 %r3, {ONE}, {MINUS_ONE};", 0x3F80BF80),
        (
            f"mov.b32 %r3, {ONE}; mov.b32 {{%rs1, %rs2}}, %r3; cvt.f32.bf16 %r3, %rs2;",
            np.float32(1),
        ),
        ("cvt.rn.bf16.f32 %rs1, 0f3F818000; cvt.u32.u16 %r3, %rs1;", 0x3F82),
    ],
)
def test_instructions_do_what_ptx_says(code, expected):
    results, _ = run(f"{code} st.global.b32 [%rd4], %r3;")
    if isinstance(expected, np.float32):
        expected = int(expected.view(np.uint32))
    assert set(results) == {expected % 2**32}


def test_threads_that_diverge_meet_again():
    """Each adds up the numbers below its own; then its warp adds them."""
    results, races = run("""
	mov.b32 	%r3, 0;
	mov.b32 	%r4, 0;
	mov.b32 	%r5, 0;
$L__BB0_1:
	setp.ge.u32 	%p1, %r4, %r0;
	@%p1 bra 	$L__BB0_2;
	add.s32 	%r3, %r3, %r4;
	add.s32 	%r4, %r4, 1;
	bra.uni 	$L__BB0_1;
$L__BB0_2:
	shfl.sync.bfly.b32 	%r5, %r3, 1, 31, -1;
	shfl.sync.idx.b32 	%r6, %r3, 3, 31, -1;
	elect.sync 	%r7|%p2, -1;
	selp.b32 	%r6, 0, %r6, %p2;
	add.s32 	%r5, %r5, %r6;
	st.global.b32 	[%rd4], %r5;
    """)
    thread = np.arange(BLOCK)
    sums = thread * (thread - 1) // 2
    third = np.where(thread % 32 == 0, 0, sums[thread // 32 * 32 + 3])
    np.testing.assert_array_equal(results, sums[thread ^ 1] + third)
    assert races == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("ld.global.b32 %r3, [%rd3+4];", "input: 4 bytes at offset 512 are out of bou"),
        ("ld.global.b32 %r3, [%rd3+-4];", "address 0xfffffffffc is in no array"),
        ("ld.shared.b32 %r3, [%rd7+4];", "offset 512 are out of bounds, it has 512"),
        ("ld.b32 %r3, [%rd7];", "is in no array"),
        ("ld.global.b32 %r3, [%rd3+2];", "input: 4 bytes at offset 2 are misaligned"),
        ("ld.global.v2.b32 {%r3, %r4}, [%rd3];", "8 bytes at offset 4 are misaligned"),
        ("ld.global.b32 %r3, [%rd4];", "result: read before anything is stored"),
        ("ld.shared.b32 %r3, [%rd7];", "shared memory: read before"),
        ("st.global.b32 [%rd3], %r0;", "input: stored to, though it is an input"),
        ("add.s32 %r3, %r4, 1;", "%r4 may be unset in `add.s32 %r3, %r4, 1`"),
        (
            "setp.eq.s32 %p1, %r0, 7; @%p1 bra $L__1; mov.b32 %r4, 1;\n$L__1:\n"
            "add.s32 %r3, %r4, 1;",
            "%r4 may be unset",
        ),
        (
            "setp.eq.s32 %p1, %r0, 7; @!%p1 bra $L__1; bar.sync 0;\n$L__1:\n",
            "`bar.sync 0`: waits for threads that never come",
        ),
        (
            "setp.eq.s32 %p1, %r0, 7; @%p1 bra $L__1; bar.warp.sync -1;\n$L__1:\n",
            "not all threads of a warp are here",
        ),
        ("$L__1:\nbra.uni $L__1;", "does not end"),
    ],
)
def test_what_no_kernel_may_do_fails(body, problem):
    with pytest.raises(KernelError) as error:
        run(body)
    assert problem in str(error.value)


SHARE = "st.shared.b32 [%rd7], %r0; {wait} ld.shared.b32 %r3, [%rd8]; {store}"
"""Reads what the thread whose number differs in a bit has stored."""
STORE = "st.global.b32 [%rd4], %r3;"


@pytest.mark.parametrize(
    ("wait", "reaches", "race"),
    [
        ("", 0, None),
        ("", 1, "between threads"),
        ("bar.warp.sync -1;", 1, None),
        ("bar.warp.sync -1;", 32, "between warps"),
        ("bar.sync 0;", 32, None),
    ],
)
def test_barriers_prevent_races(wait, reaches, race):
    # Without a barrier only some orders find anything in shared memory.
    other = f"xor.b32 %r4, %r0, {reaches}; mul.wide.u32 %rd8, %r4, 4;"
    body = f"{other} add.s64 %rd8, %rd5, %rd8; {SHARE.format(wait=wait, store=STORE)}"
    results, races = run(body)
    np.testing.assert_array_equal(results, np.arange(BLOCK) ^ reaches)
    assert [name for name, *_ in races] == ([f"shared memory, {race}"] if race else [])
