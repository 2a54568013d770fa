// CRC-32C (Castagnoli, RFC 3720 appendix B.4) of stored bytes. Guards against accidents, not against malice.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::core {

// Continues from `crc` (0 to begin). Uses the processor's instruction where there is one; same value either way.
std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t crc = 0);
// The same by table: what processors without the instruction run, and what tests hold the other against.
std::uint32_t crc32c_by_table(const void* data, std::size_t size, std::uint32_t crc = 0);

}  // namespace headrace::core
