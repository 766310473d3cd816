"""SIMD vectors and tiles as Numba values; every operation is one LLVM instruction a row, written out by hand.

A *tile* is ``rows`` vectors of ``lanes`` elements held in registers; with one row it is a plain vector. Operations work
element by element, and a one-row operand serves every row of the other. Memory is a flat ``uint8`` array and a byte
offset; nothing is bounds-checked here (``model.program`` checks every line's ranges when it is written). Row counts and
lane counts are compile-time constants: a literal, a global int or a ``Static``.

No operation carries a fast-math flag, and horizontal sums are a fixed tree, so that each result is the same bits
whatever the processor. ``simd_numpy`` is the twin in plain NumPy.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import NativeValue, intrinsic, models, register_model, typeof_impl, unbox

from kvist.kernels import target
from kvist.kernels.layout import KEY_LEVELS, VALUE_LEVELS
from kvist.kernels.static import Static

__all__ = [
    "absolute",
    "add",
    "add_i32",
    "atomic_load",
    "begin_nibbles",
    "bf16_above",
    "bf16_even",
    "bf16_odd",
    "bf16_of",
    "bf16_to_f32",
    "butterfly",
    "byte_product",
    "call_kernel",
    "div",
    "dot2",
    "dot4",
    "dot4_nibbles",
    "dot4_offset",
    "end_nibbles",
    "f32_to_bf16",
    "fetch_add",
    "first_lane",
    "fma",
    "get_f32",
    "get_i8",
    "get_i32",
    "get_i64",
    "get_u16",
    "half_to_f32",
    "hide",
    "high_halves",
    "high_nibbles",
    "keep_lanes",
    "key_levels",
    "load_f32",
    "load_i8",
    "load_i32",
    "load_rows_f32",
    "load_u16",
    "low_halves",
    "low_nibbles",
    "max_lanes",
    "maximum",
    "minimum",
    "mul",
    "mul_i32",
    "narrow_i8",
    "nearest_key_levels",
    "nearest_value_levels",
    "offset_sums",
    "pause",
    "power_of_two",
    "prefetch",
    "put_f32",
    "put_i8",
    "put_i32",
    "put_i64",
    "put_u16",
    "rint",
    "row",
    "settle",
    "splat_f32",
    "splat_i32",
    "splat_rows_f32",
    "splat_rows_i32",
    "square_root",
    "static",
    "store",
    "store_apart",
    "store_rows",
    "sub",
    "sum_four",
    "sum_lanes",
    "sum_lanes_i32",
    "times_power",
    "to_f32",
    "to_i32",
    "value",
    "value_levels",
    "yield_core",
    "zero_f32",
    "zero_i32",
]

_LLVM = {"f32": ir.FloatType(), "i32": ir.IntType(32), "u16": ir.IntType(16), "i8": ir.IntType(8)}
_I32, _I64 = ir.IntType(32), ir.IntType(64)


class Tile(types.Type):
    """``rows`` x ``lanes`` elements of one kind: "f32", "i32", "u16" or "i8"."""

    def __init__(self, elem: str, rows: int, lanes: int) -> None:
        self.elem, self.rows, self.lanes = elem, rows, lanes
        super().__init__(name=f"Tile({elem},{rows},{lanes})")

    @property
    def row(self) -> ir.VectorType:
        return ir.VectorType(_LLVM[self.elem], self.lanes)

    def like(self, elem: str) -> Tile:
        return Tile(elem, self.rows, self.lanes)


@register_model(Tile)
class TileModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, tile: Tile) -> None:
        super().__init__(dmm, tile, tile.row if tile.rows == 1 else ir.ArrayType(tile.row, tile.rows))


class StaticType(types.Type):
    """The type of a ``Static``: the number is part of the type, so that kernels are specialised by it."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(name=f"Static({number})")


register_model(StaticType)(models.OpaqueModel)


@typeof_impl.register(Static)
def _typeof_static(static: Static, context: Any) -> StaticType:
    return StaticType(static.number)


@unbox(StaticType)
def _unbox_static(typ: StaticType, obj: Any, c: Any) -> NativeValue:
    return NativeValue(c.context.get_dummy_value())


def _number(constant: types.Type) -> int:
    """The compile-time number that a literal or a Static stands for."""
    if isinstance(constant, StaticType):
        return constant.number
    return int(constant.literal_value)


@intrinsic(prefer_literal=True)
def static(typingctx, number):
    """A literal int as a ``Static``."""
    result = StaticType(_number(number))
    return result(number), lambda context, builder, sig, args: context.get_dummy_value()


@intrinsic
def value(typingctx, number):
    """The int that a ``Static`` carries, as a constant."""
    constant = ir.Constant(_I64, number.number)
    return types.intp(number), lambda context, builder, sig, args: constant


# ---- helpers of the code generators


def _rows(builder, tile: Tile, val) -> list[Any]:
    return [val] if tile.rows == 1 else [builder.extract_value(val, r) for r in range(tile.rows)]


def _tile(builder, tile: Tile, rows: list[Any]):
    if tile.rows == 1:
        return rows[0]
    val = ir.Constant(ir.ArrayType(tile.row, tile.rows), ir.Undefined)
    for r, row in enumerate(rows):
        val = builder.insert_value(val, row, r)
    return val


def _operands(builder, sig, args) -> list[list[Any]]:
    """Per row of the result, the operands' rows; one-row operands repeat."""
    rows = [_rows(builder, t, a) for t, a in zip(sig.args, args, strict=True)]
    return [[part[r if len(part) > 1 else 0] for part in rows] for r in range(sig.return_type.rows)]


def _address(context, builder, array_type, array, offset, pointee):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), pointee.as_pointer())


def _load(context, builder, array_type, array, offset, pointee):
    loaded = builder.load(_address(context, builder, array_type, array, offset, pointee))
    loaded.align = 1
    return loaded


def _splat(builder, scalar, vector: ir.VectorType):
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, _I32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count))


def _all(vector: ir.VectorType, number):
    return ir.Constant(vector, [number] * vector.count)


def _call(builder, name: str, result, args):
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, [a.type for a in args]), name)
    return builder.call(function, args)


def _suffix(vector: ir.VectorType) -> str:
    return f"v{vector.count}" + ("f32" if isinstance(vector.element, ir.FloatType) else f"i{vector.element.width}")


def _broadcast_rows(a: Tile, *others: Tile) -> int:
    return max(t.rows for t in (a, *others))


def _elementwise(elem: str | None, emit):
    """The code generator of a row by row operation; ``elem`` is the result's kind (None: the first operand's)."""

    def build(first: Tile, *others: Tile):
        result = Tile(elem or first.elem, _broadcast_rows(first, *others), first.lanes)

        def codegen(context, builder, sig, args):
            return _tile(
                builder, result, [emit(builder, result.row, *parts) for parts in _operands(builder, sig, args)]
            )

        return result(first, *others), codegen

    return build


# ---- memory


def _loader(elem: str):
    @intrinsic(prefer_literal=True)
    def load(typingctx, memory, offset, lanes):
        result = Tile(elem, 1, _number(lanes))

        def codegen(context, builder, sig, args):
            return _load(context, builder, sig.args[0], args[0], args[1], result.row)

        return result(memory, types.intp, lanes), codegen

    return load


load_f32 = _loader("f32")
load_i32 = _loader("i32")
load_u16 = _loader("u16")
load_i8 = _loader("i8")


@intrinsic(prefer_literal=True)
def load_rows_f32(typingctx, memory, offset, stride, rows, lanes):
    """A tile whose row r starts at byte ``offset + r * stride``."""
    result = Tile("f32", _number(rows), _number(lanes))

    def codegen(context, builder, sig, args):
        offsets = [builder.add(args[1], builder.mul(args[2], _I64(r))) for r in range(result.rows)]
        return _tile(builder, result, [_load(context, builder, sig.args[0], args[0], o, result.row) for o in offsets])

    return result(memory, types.intp, types.intp, rows, lanes), codegen


@intrinsic(prefer_literal=True)
def splat_rows_f32(typingctx, memory, offset, stride, rows, lanes):
    """A tile whose row r is the f32 at byte ``offset + r * stride``, in every lane."""
    result = Tile("f32", _number(rows), _number(lanes))

    def codegen(context, builder, sig, args):
        out = []
        for r in range(result.rows):
            at = builder.add(args[1], builder.mul(args[2], _I64(r)))
            out.append(_splat(builder, _load(context, builder, sig.args[0], args[0], at, _LLVM["f32"]), result.row))
        return _tile(builder, result, out)

    return result(memory, types.intp, types.intp, rows, lanes), codegen


@intrinsic(prefer_literal=True)
def splat_rows_i32(typingctx, memory, offset, stride, rows, lanes):
    """A tile whose row r is the int32 (or four bytes) at byte ``offset + r * stride``, in every lane."""
    result = Tile("i32", _number(rows), _number(lanes))

    def codegen(context, builder, sig, args):
        out = []
        for r in range(result.rows):
            at = builder.add(args[1], builder.mul(args[2], _I64(r)))
            out.append(_splat(builder, _load(context, builder, sig.args[0], args[0], at, _I32), result.row))
        return _tile(builder, result, out)

    return result(memory, types.intp, types.intp, rows, lanes), codegen


def _store(context, builder, sig, args, stride, rows):
    for r, row in enumerate(rows):
        at = builder.add(args[1], builder.mul(stride, _I64(r)))
        stored = builder.store(row, _address(context, builder, sig.args[0], args[0], at, row.type))
        stored.align = 1
    return context.get_dummy_value()


@intrinsic
def store(typingctx, memory, offset, vector):
    """Write a one-row tile of any element."""

    def codegen(context, builder, sig, args):
        return _store(context, builder, sig, args, _I64(0), [args[2]])

    return types.void(memory, types.intp, vector), codegen


@intrinsic
def store_apart(typingctx, memory, offset, vector):
    """Write a one-row tile of u16, each number 4 bytes after the one before; what lies between stays as it is."""

    def codegen(context, builder, sig, args):
        wide = ir.VectorType(_I32, sig.args[2].lanes)
        pairs = ir.VectorType(_LLVM["u16"], 2 * wide.count)
        numbers = builder.bitcast(builder.zext(args[2], wide), pairs)
        at = _address(context, builder, sig.args[0], args[0], args[1], pairs)
        mask = ir.Constant(ir.VectorType(ir.IntType(1), pairs.count), [1, 0] * wide.count)
        name = f"llvm.masked.store.v{pairs.count}i16.p0"
        _call(builder, name, ir.VoidType(), [numbers, at, _I32(2), mask])
        return context.get_dummy_value()

    return types.void(memory, types.intp, vector), codegen


@intrinsic
def store_rows(typingctx, memory, offset, stride, tile):
    """Write row r at byte ``offset + r * stride``."""

    def codegen(context, builder, sig, args):
        return _store(context, builder, sig, args, args[2], _rows(builder, tile, args[3]))

    return types.void(memory, types.intp, types.intp, tile), codegen


def _scalar_access(numba_type, llvm_type):
    @intrinsic
    def get(typingctx, memory, offset):
        def codegen(context, builder, sig, args):
            return _load(context, builder, sig.args[0], args[0], args[1], llvm_type)

        return numba_type(memory, types.intp), codegen

    @intrinsic
    def put(typingctx, memory, offset, number):
        def codegen(context, builder, sig, args):
            stored = builder.store(args[2], _address(context, builder, sig.args[0], args[0], args[1], llvm_type))
            stored.align = 1
            return context.get_dummy_value()

        return types.void(memory, types.intp, numba_type), codegen

    return get, put


get_f32, put_f32 = _scalar_access(types.float32, _LLVM["f32"])
get_i32, put_i32 = _scalar_access(types.int32, _I32)
get_i64, put_i64 = _scalar_access(types.int64, _I64)
get_i8, put_i8 = _scalar_access(types.int8, _LLVM["i8"])
get_u16, put_u16 = _scalar_access(types.uint16, _LLVM["u16"])


@intrinsic
def prefetch(typingctx, memory, offset):
    """Ask for the cache line of element ``offset``, into the second-level cache; never faults."""

    def codegen(context, builder, sig, args):
        at = _address(context, builder, sig.args[0], args[0], args[1], _LLVM["i8"])
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [at.type, _I32, _I32, _I32]), "llvm.prefetch.p0"
        )
        builder.call(function, [at, _I32(0), _I32(2), _I32(1)])
        return context.get_dummy_value()

    return types.void(memory, types.intp), codegen


# ---- constants and arithmetic


@intrinsic(prefer_literal=True)
def zero_f32(typingctx, rows, lanes):
    result = Tile("f32", _number(rows), _number(lanes))

    def codegen(context, builder, sig, args):
        return _tile(builder, result, [_all(result.row, 0.0)] * result.rows)

    return result(rows, lanes), codegen


@intrinsic(prefer_literal=True)
def zero_i32(typingctx, rows, lanes):
    result = Tile("i32", _number(rows), _number(lanes))

    def codegen(context, builder, sig, args):
        return _tile(builder, result, [_all(result.row, 0)] * result.rows)

    return result(rows, lanes), codegen


@intrinsic(prefer_literal=True)
def splat_f32(typingctx, number, lanes):
    result = Tile("f32", 1, _number(lanes))
    return result(types.float32, lanes), lambda context, builder, sig, args: _splat(builder, args[0], result.row)


def _binary(method: str):
    emit = _elementwise(None, lambda builder, row, a, b: getattr(builder, method)(a, b))

    @intrinsic
    def operation(typingctx, a, b):
        return emit(a, b)

    return operation


add = _binary("fadd")
sub = _binary("fsub")
mul = _binary("fmul")
div = _binary("fdiv")
add_i32 = _binary("add")
mul_i32 = _binary("mul")


def _fma(builder, row, a, b, c):
    return _call(builder, f"llvm.fma.{_suffix(row)}", row, [a, b, c])


@intrinsic
def fma(typingctx, a, b, c):
    """a * b + c with one rounding."""
    return _elementwise(None, _fma)(a, b, c)


@intrinsic
def maximum(typingctx, a, b):
    """The larger of two; the second where either is NaN."""
    return _elementwise(None, lambda builder, row, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))(a, b)


@intrinsic
def minimum(typingctx, a, b):
    """The smaller of two; the second where either is NaN."""
    return _elementwise(None, lambda builder, row, a, b: builder.select(builder.fcmp_ordered("<", a, b), a, b))(a, b)


@intrinsic
def absolute(typingctx, a):
    return _elementwise(None, lambda builder, row, a: _call(builder, f"llvm.fabs.{_suffix(row)}", row, [a]))(a)


@intrinsic
def square_root(typingctx, a):
    return _elementwise(None, lambda builder, row, a: _call(builder, f"llvm.sqrt.{_suffix(row)}", row, [a]))(a)


@intrinsic
def rint(typingctx, a):
    """The nearest integer as a float, half to even."""
    return _elementwise(None, lambda builder, row, a: _call(builder, f"llvm.rint.{_suffix(row)}", row, [a]))(a)


@intrinsic(prefer_literal=True)
def splat_i32(typingctx, number, lanes):
    result = Tile("i32", 1, _number(lanes))
    return result(types.int32, lanes), lambda context, builder, sig, args: _splat(builder, args[0], result.row)


# ---- conversions


@intrinsic
def to_f32(typingctx, a):
    return _elementwise("f32", lambda builder, row, a: builder.sitofp(a, row))(a)


@intrinsic
def to_i32(typingctx, a):
    """f32 with an integer value in int32's range, as int32."""
    return _elementwise("i32", lambda builder, row, a: builder.fptosi(a, row))(a)


@intrinsic
def narrow_i8(typingctx, a):
    """The low byte of each int32: the number itself where it is in int8's range, or unsigned in uint8's."""
    return _elementwise("i8", lambda builder, row, a: builder.trunc(a, row))(a)


@intrinsic
def half_to_f32(typingctx, a):
    """IEEE half bits (u16) as f32."""
    return _elementwise(
        "f32", lambda builder, row, a: builder.fpext(builder.bitcast(a, ir.VectorType(ir.HalfType(), row.count)), row)
    )(a)


@intrinsic
def bf16_to_f32(typingctx, a):
    """bfloat16 bits (u16) as f32."""

    def emit(builder, row, a):
        wide = ir.VectorType(_I32, row.count)
        return builder.bitcast(builder.shl(builder.zext(a, wide), _all(wide, 16)), row)

    return _elementwise("f32", emit)(a)


@intrinsic
def bf16_even(typingctx, a):
    """The bfloat16 in the low half of each int32, as f32."""
    return _elementwise("f32", lambda builder, row, a: builder.bitcast(builder.shl(a, _all(a.type, 16)), row))(a)


@intrinsic
def bf16_odd(typingctx, a):
    """The bfloat16 in the high half of each int32, as f32."""
    return _elementwise("f32", lambda builder, row, a: builder.bitcast(builder.and_(a, _all(a.type, -65536)), row))(a)


@intrinsic
def high_halves(typingctx, a):
    """The high 16 bits of each int32, with zeros below."""
    return _elementwise(None, lambda builder, row, a: builder.and_(a, _all(a.type, -65536)))(a)


@intrinsic
def low_halves(typingctx, a):
    """The low 16 bits of each int32, with zeros above."""
    return _elementwise(None, lambda builder, row, a: builder.and_(a, _all(a.type, 65535)))(a)


def _rounded_bf16(builder, bits):
    """Bits of f32 numbers, none of them NaN, as those of bfloat16 ones (int32), half to even."""
    wide = bits.type
    odd = builder.and_(builder.lshr(bits, _all(wide, 16)), _all(wide, 1))
    return builder.lshr(builder.add(builder.add(bits, _all(wide, 0x7FFF)), odd), _all(wide, 16))


@intrinsic
def f32_to_bf16(typingctx, a):
    """f32 rounded to bfloat16 bits (u16), half to even; NaN stays NaN."""

    def emit(builder, row, a):
        wide = ir.VectorType(_I32, row.count)
        bits = builder.bitcast(a, wide)
        rounded = _rounded_bf16(builder, bits)
        quiet = builder.or_(builder.lshr(bits, _all(wide, 16)), _all(wide, 64))
        return builder.trunc(builder.select(builder.fcmp_unordered("uno", a, a), quiet, rounded), row)

    return _elementwise("u16", emit)(a)


@intrinsic
def bf16_of(typingctx, a):
    """As ``f32_to_bf16``, for numbers that are not NaN."""

    def emit(builder, row, a):
        return builder.trunc(_rounded_bf16(builder, builder.bitcast(a, ir.VectorType(_I32, row.count))), row)

    return _elementwise("u16", emit)(a)


@intrinsic
def bf16_above(typingctx, a):
    """Bits (u16) of the smallest bfloat16 that is not below the f32 a, for 0 <= a, no NaN."""

    def emit(builder, row, a):
        wide = ir.VectorType(_I32, row.count)
        bits = builder.add(builder.bitcast(a, wide), _all(wide, 0xFFFF))
        return builder.trunc(builder.lshr(bits, _all(wide, 16)), row)

    return _elementwise("u16", emit)(a)


@intrinsic
def power_of_two(typingctx, a):
    """2 to the int32 a, for -127 < a < 128."""

    def emit(builder, row, a):
        return builder.bitcast(builder.shl(builder.add(a, _all(a.type, 127)), _all(a.type, 23)), row)

    return _elementwise("f32", emit)(a)


@intrinsic
def times_power(typingctx, a, raised):
    """The f32 a times 2 to the integer that ``raised`` is above 1.5 * 2^23, where a and the result are normal."""

    def emit(builder, row, a, raised):
        as_int = ir.VectorType(_I32, row.count)
        power = builder.shl(builder.bitcast(raised, as_int), _all(as_int, 23))
        return builder.bitcast(builder.add(builder.bitcast(a, as_int), power), row)

    return _elementwise("f32", emit)(a, raised)


@intrinsic
def byte_product(typingctx, a, b):
    """The f32 a * b, from 0 to 255, rounded once to an integer, half to even, as a byte."""

    def emit(builder, row, a, b):
        total = _fma(builder, a.type, a, b, _all(a.type, 12582912.0))  # 1.5 * 2^23: integers end at its last bit
        return builder.trunc(builder.bitcast(total, ir.VectorType(_I32, row.count)), row)

    return _elementwise("i8", emit)(a, b)


# ---- lanes


@intrinsic
def keep_lanes(typingctx, tile, first, low, high, other):
    """Lane l of ``tile`` where ``low <= first + l < high``, else ``other``."""

    def codegen(context, builder, sig, args):
        index = ir.VectorType(_I64, tile.lanes)
        lanes = builder.add(_splat(builder, args[1], index), ir.Constant(index, list(range(tile.lanes))))
        above = builder.icmp_signed(">=", lanes, _splat(builder, args[2], index))
        mask = builder.and_(above, builder.icmp_signed("<", lanes, _splat(builder, args[3], index)))
        fill = _splat(builder, args[4], tile.row)
        return _tile(builder, tile, [builder.select(mask, row, fill) for row in _rows(builder, tile, args[0])])

    return tile(tile, types.intp, types.intp, types.intp, types.float32), codegen


@intrinsic(prefer_literal=True)
def butterfly(typingctx, vector, distance):
    """Lanes l and l + distance as their sum and difference, within each 2 * distance lanes.

    A vector that isn't made of such groups comes back as it is.
    """
    step, lanes = _number(distance), vector.lanes
    low = [lane - lane % (2 * step) + lane % step for lane in range(lanes)]

    def codegen(context, builder, sig, args):
        if lanes % (2 * step):
            return args[0]
        index = ir.VectorType(_I32, lanes)
        undefined = ir.Constant(vector.row, ir.Undefined)
        a = builder.shuffle_vector(args[0], undefined, ir.Constant(index, low))
        b = builder.shuffle_vector(args[0], undefined, ir.Constant(index, [lane + step for lane in low]))
        total, difference = builder.fadd(a, b), builder.fsub(a, b)
        pick = [lane if lane % (2 * step) < step else lanes + lane for lane in range(lanes)]
        return builder.shuffle_vector(total, difference, ir.Constant(index, pick))

    return vector(vector, distance), codegen


def _tree(builder, vector, combine):
    """Combine lanes pairwise: lane l with lane l + half, until one is left."""
    while vector.type.count > 1:
        half = vector.type.count // 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        pick = ir.VectorType(_I32, half)
        low = builder.shuffle_vector(vector, undefined, ir.Constant(pick, list(range(half))))
        high = builder.shuffle_vector(vector, undefined, ir.Constant(pick, list(range(half, 2 * half))))
        vector = combine(builder, low, high)
    return builder.extract_element(vector, _I32(0))


@intrinsic
def sum_lanes(typingctx, vector):
    """The sum of a vector's lanes: l with l + half first, the same tree everywhere."""

    def codegen(context, builder, sig, args):
        return _tree(builder, args[0], lambda b, low, high: b.fadd(low, high))

    return types.float32(vector), codegen


def _halves_added(builder, a, b, group: int):
    """Of lanes in groups, those of ``a`` before those of ``b``: each group's first half plus its second."""
    lanes = range(0, 2 * a.type.count if b is not a else a.type.count, group)
    low = [first + lane for first in lanes for lane in range(group // 2)]
    index = ir.VectorType(_I32, len(low))
    return builder.fadd(
        builder.shuffle_vector(a, b, ir.Constant(index, low)),
        builder.shuffle_vector(a, b, ir.Constant(index, [lane + group // 2 for lane in low])),
    )


def _sums_of_four(builder, a, b, c, d):
    ab, cd = _halves_added(builder, a, b, 16), _halves_added(builder, c, d, 16)
    fours = _halves_added(builder, ab, cd, 8)
    pairs = _halves_added(builder, fours, fours, 4)
    return _halves_added(builder, pairs, pairs, 2)


@intrinsic
def sum_four(typingctx, a, b, c, d):
    """[rows, 4]: the sums of each row's 16 lanes of four tiles, by the tree of ``sum_lanes``."""
    result = Tile("f32", a.rows, 4)

    def codegen(context, builder, sig, args):
        rows = zip(*(_rows(builder, tile, arg) for tile, arg in zip(sig.args, args, strict=True)), strict=True)
        return _tile(builder, result, [_sums_of_four(builder, *parts) for parts in rows])

    return result(a, b, c, d), codegen


@intrinsic
def sum_lanes_i32(typingctx, vector):
    def codegen(context, builder, sig, args):
        return _tree(builder, args[0], lambda b, low, high: b.add(low, high))

    return types.int32(vector), codegen


@intrinsic
def max_lanes(typingctx, vector):
    """The largest of a vector's lanes (no NaN among them)."""

    def codegen(context, builder, sig, args):
        return _tree(builder, args[0], lambda b, low, high: b.select(b.fcmp_ordered(">", low, high), low, high))

    return types.float32(vector), codegen


@intrinsic
def first_lane(typingctx, vector):
    """Lane 0 of an f32 vector."""
    return types.float32(vector), lambda context, builder, sig, args: builder.extract_element(args[0], _I32(0))


@intrinsic(prefer_literal=True)
def row(typingctx, tile, number):
    """One row of a tile, as a vector."""
    result = Tile(tile.elem, 1, tile.lanes)
    index = _number(number)
    return result(tile, number), lambda context, builder, sig, args: _rows(builder, tile, args[0])[index]


# ---- dot products of bytes


@intrinsic
def low_nibbles(typingctx, a):
    """The low four bits of each byte."""
    return _elementwise(None, lambda builder, row, a: builder.and_(a, _all(row, 0x0F0F0F0F)))(a)


@intrinsic
def high_nibbles(typingctx, a):
    """The high four bits of each byte, moved down."""
    return _elementwise(
        None, lambda builder, row, a: builder.and_(builder.lshr(a, _all(row, 4)), _all(row, 0x0F0F0F0F))
    )(a)


def _nearest(levels):
    def emit(builder, row, a):
        count = _all(row, 0)
        for low, high in pairwise(levels):
            is_above = builder.fcmp_ordered(">=", a, _all(a.type, (low + high) / 2))
            count = builder.add(count, builder.zext(is_above, row))
        return count

    return _elementwise("i32", emit)


@intrinsic
def nearest_key_levels(typingctx, a):
    """Which of ``layout.KEY_LEVELS`` is nearest to the f32 a, as int32; halfway, the upper one."""
    return _nearest(KEY_LEVELS)(a)


@intrinsic
def nearest_value_levels(typingctx, a):
    """The same of ``layout.VALUE_LEVELS``."""
    return _nearest(VALUE_LEVELS)(a)


@intrinsic
def value_levels(typingctx, a):
    """Each byte, below 16, as the one of ``layout.VALUE_LEVELS`` that it numbers, a signed byte."""
    return _elementwise(None, lambda builder, row, a: target.look_up(builder, a, VALUE_LEVELS))(a)


@intrinsic(prefer_literal=True)
def key_levels(typingctx, a, bits, number):
    """Each byte, below 16, as one of ``layout.KEY_LEVELS`` plus 128; bit ``number`` of ``bits`` says of which half."""
    place = _number(number)
    low, high = (tuple(level + 128 for level in half) for half in (KEY_LEVELS[:16], KEY_LEVELS[16:]))

    def codegen(context, builder, sig, args):
        wide = builder.shl(args[1], _all(a.row, 7 - place))
        as_bytes = ir.VectorType(_LLVM["i8"], 4 * a.lanes)
        is_high = builder.icmp_signed("<", builder.bitcast(wide, as_bytes), _all(as_bytes, 0))
        found = [builder.bitcast(target.look_up(builder, args[0], table), as_bytes) for table in (high, low)]
        return builder.bitcast(builder.select(is_high, *found), a.row)

    return a(a, bits, number), codegen


@intrinsic
def dot4(typingctx, acc, unsigned, signed):
    """acc + the dot product of four unsigned with four signed bytes, in each int32 lane; exact."""
    return _elementwise(None, lambda builder, row, a, u, s: target.dot4(builder, a, u, s))(acc, unsigned, signed)


@intrinsic
def offset_sums(typingctx, sums):
    """What sums of ``dot4_offset`` start at, by the sums of the signed bytes."""
    return _elementwise(None, lambda builder, row, sums: target.offset_sums(builder, sums))(sums)


@intrinsic
def dot4_offset(typingctx, acc, stored, signed):
    """acc + the dot product of four bytes that are stored as their number + 128 with four signed ones from -127.

    For an acc that started at ``offset_sums`` of all signed bytes that are multiplied.
    """
    return _elementwise(None, lambda builder, row, a, u, s: target.dot4_offset(builder, a, u, s))(acc, stored, signed)


@intrinsic
def begin_nibbles(typingctx, start):
    """What up to eight ``dot4_nibbles`` are added to, of sums that begin at ``start``; ``end_nibbles`` gives them."""
    return _elementwise(None, lambda builder, row, start: target.begin_nibbles(builder, start))(start)


@intrinsic
def dot4_nibbles(typingctx, sums, unsigned, signed):
    """As ``dot4``, for unsigned bytes below 16, between ``begin_nibbles`` and ``end_nibbles``."""
    return _elementwise(None, lambda builder, row, a, u, s: target.dot4_nibbles(builder, a, u, s))(
        sums, unsigned, signed
    )


@intrinsic
def end_nibbles(typingctx, start, sums):
    """The sums, ``start`` included, as ``dot4`` would have them."""
    return _elementwise(None, lambda builder, row, start, sums: target.end_nibbles(builder, start, sums))(start, sums)


@intrinsic
def settle(typingctx, a):
    """The same numbers, computed at this place: see ``target.settle``."""
    return _elementwise(None, lambda builder, row, a: target.settle(builder, a))(a)


@intrinsic
def hide(typingctx, a):
    """The same numbers, of which the compiler knows nothing: see ``target.hide``."""
    return _elementwise(None, lambda builder, row, a: target.hide(builder, a))(a)


@intrinsic
def dot2(typingctx, acc, a, b):
    """acc (f32) + the product of the high bfloat16 of each int32 of a and b, then + that of the low ones.

    Each product is exact and each sum rounded once.
    """
    return _elementwise(None, lambda builder, row, acc, a, b: target.dot2(builder, acc, a, b))(acc, a, b)


# ---- threads


@intrinsic
def fetch_add(typingctx, counters, index, number):
    """Add to ``counters[index]`` (int64) atomically; returns what was there before."""

    def codegen(context, builder, sig, args):
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", builder.gep(data, [args[1]]), args[2], "acq_rel")

    return types.int64(counters, types.intp, types.int64), codegen


@intrinsic
def atomic_load(typingctx, counters, index):
    def codegen(context, builder, sig, args):
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        return builder.load_atomic(builder.gep(data, [args[1]]), "acquire", 8)

    return types.int64(counters, types.intp), codegen


@intrinsic
def call_kernel(typingctx, kernels, number, chunk, thread, line, program, table, weights, cache, work):
    """Call the kernel whose address (of its C wrapper, see ``jit.address``) is ``kernels[number]``."""
    arguments = (chunk, thread, line, program, table, weights, cache, work)

    def codegen(context, builder, sig, args):
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        address = builder.load(builder.gep(data, [args[1]]))
        function = ir.FunctionType(ir.VoidType(), [context.get_value_type(t) for t in sig.args[2:]])
        builder.call(builder.inttoptr(address, function.as_pointer()), args[2:])
        return context.get_dummy_value()

    return types.void(kernels, types.intp, *(types.int64,) * 3, *arguments[3:]), codegen


@intrinsic
def pause(typingctx):
    """Tell the core that this thread is waiting."""
    return types.void(), lambda context, builder, sig, args: target.pause(context, builder)


@intrinsic
def yield_core(typingctx):
    """Offer this core to another thread of the system."""
    return types.void(), lambda context, builder, sig, args: target.yield_core(context, builder)
