// Loops that do one thing as fast as this processor can: read memory, multiply-add floats, multiply-add bytes. They
// measure the machine's limits, compute nothing anyone needs, and are never part of a model. The caller holds the
// clock.
#pragma once

#include <cstdint>

namespace headrace::kernels {

// Reads all of data once, cut evenly among the pool's threads. The result depends on every byte, so that no read can
// be left out.
std::uint64_t read_all(const std::uint64_t* words, std::int64_t count);

// A loop's work, counted: multiply and add are two operations.
struct LoopWork {
  double operations;
  double checksum;     // depends on every result, so that no instruction can be left out
  const char* method;  // the instruction that did it
};

// `rounds` rounds of independent fused multiply-adds in registers, on every thread of the pool at once.
LoopWork multiply_floats(std::int64_t rounds);
// The same with products of bytes added into int32, by the widest instruction for it that this processor has.
LoopWork multiply_bytes(std::int64_t rounds);

}  // namespace headrace::kernels
