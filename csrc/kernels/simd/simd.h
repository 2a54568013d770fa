// Chooses the vector type of the instruction set that is being compiled. A per-ISA source file (scalar.cc,
// avx2.cc, avx512.cc) defines HEADRACE_ISA, the namespace everything goes into, and HEADRACE_ISA_<NAME>.
//
// A Vec is always sixteen floats, whatever the registers: the algorithms in generic/ are written once, packed
// weights fit every instruction set, and AVX2 and AVX-512 add in the same order and so give the same bits.
// max and min return the second argument when either is NaN, so `max(limit, x)` lets a NaN in x through. sum
// folds lanes 8 apart, then 4, 2, 1. pow2 takes integers in [-126, 127]; split gives mantissa in [sqrt(1/2),
// sqrt(2)) and exponent of a positive normal number; to_float reads lanes as unsigned, with one rounding. fma may
// round twice (scalar does); fused never does, and so has the same bits everywhere.
//
// Bytes are 64 unsigned integers, four to a lane of an IntVec. add_dots adds to each lane the exact product of its four
// with four signed ones. store_bytes takes whole numbers in [-127, 127].
//
// A pair is two int16 in a lane of an IntVec, the even one below; codes are int16 or int8, one to a lane. to_int rounds
// to nearest even, and what it makes of NaN nobody may use. pair_up takes the lower halves of both,
// load_side_by_side sixteen codes of each; add_pairs adds to each lane the exact sum of its two products. kLaneVectors
// and lane_rows(vectors) say how many vectors of lanes, and how many rows of them, a register tile of attention has.
//
// Nothing here or in generic/ may call an inline function or template of the standard library that takes only
// library types: the linker keeps one copy of those, and it could be the one compiled for AVX-512.
#pragma once

#if defined(HEADRACE_ISA_AVX512)
#include "kernels/simd/avx512.h"
#elif defined(HEADRACE_ISA_AVX2)
#include "kernels/simd/avx2.h"
#elif defined(HEADRACE_ISA_SCALAR)
#include "kernels/simd/scalar.h"
#else
#error "include generic/ headers only from a per-ISA source file"
#endif
