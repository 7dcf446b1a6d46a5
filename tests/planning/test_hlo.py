"""The counter of compiled programs: against text with known sums, and against programs whose work is known."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orchestra_jax.planning.hlo import Collective, program_cost

# The notations that XLA writes: asynchronous and plain, groups as a mesh, an iota and a list; a loop of 3 runs; a
# fusion that slices one layer from a stack and one that updates a stack in place.
PROGRAM = """
HloModule jit_step, is_scheduled=true, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%gemm (p0: bf16[8,16], p1: bf16[6,16,32], p2: s32[]) -> f32[8,32] {
  %p0 = bf16[8,16]{1,0} parameter(0)
  %p1 = bf16[6,16,32]{2,1,0} parameter(1)
  %p2 = s32[] parameter(2)
  %zero = s32[] constant(0)
  %layer = bf16[1,16,32]{2,1,0} dynamic-slice(%p1, %p2, %zero, %zero), dynamic_slice_sizes={1,16,32}
  %matrix = bf16[16,32]{1,0} bitcast(%layer)
  ROOT %dot = f32[8,32]{1,0} dot(%p0, %matrix), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%write (q0: f32[6,8,32], q1: f32[8,32], q2: s32[]) -> f32[6,8,32] {
  %q0 = f32[6,8,32]{2,1,0} parameter(0)
  %q1 = f32[8,32]{1,0} parameter(1)
  %q2 = s32[] parameter(2)
  %none = s32[] constant(0)
  %row = f32[1,8,32]{2,1,0} bitcast(%q1)
  ROOT %update = f32[6,8,32]{2,1,0} dynamic-update-slice(%q0, %row, %q2, %none, %none)
}

%body (state: (s32[], bf16[8,16], bf16[6,16,32], f32[6,8,32])) -> (s32[], bf16[8,16], bf16[6,16,32], f32[6,8,32]) {
  %state = (s32[], bf16[8,16]{1,0}, bf16[6,16,32]{2,1,0}, /*index=3*/f32[6,8,32]{2,1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = bf16[8,16]{1,0} get-tuple-element(%state), index=1
  %w = bf16[6,16,32]{2,1,0} get-tuple-element(%state), index=2
  %out = f32[6,8,32]{2,1,0} get-tuple-element(%state), index=3
  %gemm_fusion = f32[8,32]{1,0} fusion(%x, %w, %i), kind=kCustom, calls=%gemm
  %reduce-start = f32[8,32]{1,0} all-reduce-start(%gemm_fusion), replica_groups=[2,2]<=[4], to_apply=%add
  %reduce-done = f32[8,32]{1,0} all-reduce-done(%reduce-start)
  %write_fusion = f32[6,8,32]{2,1,0} fusion(%out, %reduce-done, %i), kind=kLoop, calls=%write
  ROOT %next = (s32[], bf16[8,16]{1,0}, bf16[6,16,32]{2,1,0}, f32[6,8,32]{2,1,0}) tuple(%i, %x, %w, %write_fusion)
}

%condition (state.1: (s32[], bf16[8,16], bf16[6,16,32], f32[6,8,32])) -> pred[] {
  %state.1 = (s32[], bf16[8,16]{1,0}, bf16[6,16,32]{2,1,0}, f32[6,8,32]{2,1,0}) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (x: bf16[2,16], w: bf16[6,16,32], o: f32[6,8,32]) -> f32[3,8,32] {
  %x.1 = bf16[2,16]{1,0} parameter(0)
  %w.1 = bf16[6,16,32]{2,1,0} parameter(1)
  %o.1 = f32[6,8,32]{2,1,0} parameter(2)
  %start = s32[] constant(0)
  %gather-start = (bf16[2,16], bf16[8,16]) all-gather-start(%x.1), replica_groups=mesh['a'=4,'b'=1] {'a'}
  %gather-done = bf16[8,16]{1,0} all-gather-done(%gather-start)
  %tuple = (s32[], bf16[8,16], bf16[6,16,32], f32[6,8,32]) tuple(%start, %gather-done, %w.1, %o.1)
  %while = (s32[], bf16[8,16], bf16[6,16,32], f32[6,8,32]) while(%tuple), condition=%condition, body=%body, TRIPS
  %result = f32[6,8,32]{2,1,0} get-tuple-element(%while), index=3
  ROOT %scatter = f32[3,8,32]{2,1,0} reduce-scatter(%result), replica_groups={{0,2},{1,3}}, to_apply=%add
}
""".replace("TRIPS", 'backend_config={"known_trip_count":{"n":"3"}}')


def test_a_stored_program_is_counted_run_by_run() -> None:
    cost = program_cost(PROGRAM, devices_per_node=2)

    assert cost.flops == 3 * 2 * 8 * 16 * 32
    gathered, reduced, scattered = 8 * 16 * 2, 8 * 32 * 4, 6 * 8 * 32 * 4
    assert cost.collectives == (
        Collective("all-gather", 4, 2, 1, gathered, gathered * 3 / 4),
        Collective("all-reduce", 2, 2, 3, 3 * reduced, 3 * 2 * reduced / 2),
        Collective("reduce-scatter", 2, 1, 1, scattered, scattered / 2),
    )
    # A product reads one layer of the stack, the update writes one: neither counts the whole stack.
    product = gathered + 16 * 32 * 2 + 4 + reduced
    update = reduced + 4 + reduced
    rest = (2 * 16 * 2 + gathered) + 3 * 2 * reduced + (scattered + scattered / 2)
    assert cost.bytes == 3 * (product + update) + rest
    assert cost.uncounted == ()


@pytest.mark.parametrize(
    ("groups", "devices", "per_node"),
    [
        ("mesh['a'=2,'b'=8] {'b'}", 8, 8),
        ("mesh['a'=2,'b'=8] {'a'}", 2, 1),
        ("mesh['a'=2,'b'=8] {'a','b'}", 16, 8),
        ("[2,8]<=[16]", 8, 8),
        ("[8,2]<=[2,8]T(1,0)", 2, 1),
        ("[4,4]<=[2,8]T(1,0)", 4, 2),
        ("{{0,1,2,3},{4,5,6,7},{8,9,10,11},{12,13,14,15}}", 4, 4),
        ("{{0,8},{1,9}}", 2, 1),
    ],
)
def test_groups_of_every_notation(groups: str, devices: int, per_node: int) -> None:
    text = f"""
ENTRY %main (x: f32[16]) -> f32[16] {{
  %x = f32[16]{{0}} parameter(0)
  ROOT %sum = f32[16]{{0}} all-reduce(%x), channel_id=1, replica_groups={groups}, use_global_device_ids=true
}}
"""
    (found,) = program_cost(text, devices_per_node=8).collectives

    assert (found.devices, found.per_node) == (devices, per_node)


def test_unknown_work_is_named() -> None:
    text = """
%body (s: (s32[])) -> (s32[]) {
  ROOT %s = (s32[]) parameter(0)
}

%condition (t: (s32[])) -> pred[] {
  %t = (s32[]) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %n = s32[] constant(0)
  %tuple = (s32[]) tuple(%n)
  %while = (s32[]) while(%tuple), condition=%condition, body=%body
  ROOT %call = f32[4]{0} custom-call(%x), custom_call_target="__cudnn$fmhaSoftmax"
}
"""
    assert program_cost(text).uncounted == ("a loop of unknown length", "custom call __cudnn$fmhaSoftmax")


def test_a_sum_into_some_rows_moves_these_rows() -> None:
    text = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%rows (p0: f32[1000,16], p1: s32[4,1], p2: f32[4,16]) -> f32[1000,16] {
  %p0 = f32[1000,16]{1,0} parameter(0)
  %p1 = s32[4,1]{1,0} parameter(1)
  %p2 = f32[4,16]{1,0} parameter(2)
  ROOT %sums = f32[1000,16]{1,0} scatter(%p0, %p1, %p2), update_window_dims={1}, to_apply=%add
}

ENTRY %main (x: f32[1000,16], i: s32[4,1], y: f32[4,16]) -> f32[1000,16] {
  %x = f32[1000,16]{1,0} parameter(0)
  %i = s32[4,1]{1,0} parameter(1)
  %y = f32[4,16]{1,0} parameter(2)
  %plain = f32[1000,16]{1,0} scatter(%x, %i, %y), update_window_dims={1}, to_apply=%add
  ROOT %fused = f32[1000,16]{1,0} fusion(%plain, %i, %y), kind=kInput, calls=%rows
}
"""
    rows, indices = 4 * 16 * 4, 4 * 4
    assert program_cost(text).bytes == 2 * (3 * rows + indices)


def test_no_program_is_an_error() -> None:
    with pytest.raises(ValueError, match="no ENTRY"):
        program_cost("HloModule nothing")


def test_a_scan_of_products_counts_every_run() -> None:
    def run(x: jax.Array, stack: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]

    x, stack = jax.ShapeDtypeStruct((64, 32), jnp.float32), jax.ShapeDtypeStruct((5, 32, 32), jnp.float32)
    compiled = jax.jit(run).lower(x, stack).compile()

    cost = program_cost(compiled.as_text() or "")

    assert cost.flops == 5 * 2 * 64 * 32 * 32
    # Each run reads its matrix and reads and writes x a few times; the whole stack in every run would be 5 times more.
    assert 5 * (32 * 32 + 2 * 64 * 32) * 4 <= cost.bytes <= 5 * (2 * 32 * 32 + 8 * 64 * 32) * 4


def test_the_gather_of_a_sharded_matrix_is_found() -> None:
    mesh = Mesh(jax.devices()[:4], ("x",))
    rows, columns = NamedSharding(mesh, PartitionSpec("x")), NamedSharding(mesh, PartitionSpec())
    x = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=rows)
    w = jax.ShapeDtypeStruct((32, 16), jnp.float32, sharding=rows)
    compiled = jax.jit(lambda x, w: x @ jax.lax.with_sharding_constraint(w, columns)).lower(x, w).compile()

    cost = program_cost(compiled.as_text() or "", devices_per_node=2)

    assert cost.collectives == (Collective("all-gather", 4, 2, 1, 32 * 16 * 4, 32 * 16 * 4 * 3 / 4),)
    assert cost.flops == 2 * 16 * 32 * 16
