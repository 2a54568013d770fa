#include "kernels/roofline.h"

#include <array>
#include <vector>

#include "kernels/threads.h"

#if defined(HEADRACE_X86)
#include <immintrin.h>
#endif

namespace headrace::kernels {
namespace {

// Enough independent sums to hide a latency of 5 cycles on two ports.
constexpr int kSums = 12;

struct Loop {
  double (*run)(std::int64_t rounds);
  double operations_per_round;
  const char* method;
};

std::uint64_t read_scalar(const std::uint64_t* words, std::int64_t count) {
  std::array<std::uint64_t, 8> sums{};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int j = 0; j < 8; ++j) sums[j] += words[i + j];
  for (; i < count; ++i) sums[0] += words[i];
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

// Operands the compiler cannot see through. 0.5 and 1 keep a sum finite; bytes keep theirs from overflowing.
float hidden(float value) {
  volatile float opaque = value;
  return opaque;
}
int hidden_int(int value) {
  volatile int opaque = value;
  return opaque;
}

double floats_scalar(std::int64_t rounds) {
  std::array<float, kSums> sums{};
  const float a = hidden(0.5f), b = hidden(1.0f);
  for (std::int64_t i = 0; i < rounds; ++i)
    for (float& sum : sums) sum = sum * a + b;
  double total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

double bytes_scalar(std::int64_t rounds) {
  std::array<std::uint32_t, kSums> sums{};
  const auto a = static_cast<std::uint8_t>(hidden_int(3));
  for (std::int64_t i = 0; i < rounds; ++i)
    for (int j = 0; j < kSums; ++j)
      sums[j] = static_cast<std::uint32_t>(static_cast<std::uint8_t>(sums[j])) * a + sums[j] + 1;
  double total = 0;
  for (const std::uint32_t sum : sums) total += sum;
  return total;
}

#if defined(HEADRACE_X86)

__attribute__((target("avx2"))) std::uint64_t read_avx2(const std::uint64_t* words, std::int64_t count) {
  __m256i sums[4] = {};
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16)
    for (int j = 0; j < 4; ++j)
      sums[j] = _mm256_add_epi64(sums[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + i + 4 * j)));
  alignas(32) std::uint64_t lanes[16];
  for (int j = 0; j < 4; ++j) _mm256_store_si256(reinterpret_cast<__m256i*>(lanes + 4 * j), sums[j]);
  return read_scalar(lanes, 16) + read_scalar(words + i, count - i);
}

__attribute__((target("avx2,fma"))) double floats_avx2(std::int64_t rounds) {
  __m256 sums[kSums];
  for (auto& sum : sums) sum = _mm256_setzero_ps();
  const __m256 a = _mm256_set1_ps(hidden(0.5f)), b = _mm256_set1_ps(hidden(1.0f));
  for (std::int64_t i = 0; i < rounds; ++i)
    for (auto& sum : sums) sum = _mm256_fmadd_ps(sum, a, b);
  float lanes[8];
  double total = 0;
  for (const auto& sum : sums) {
    _mm256_storeu_ps(lanes, sum);
    total += lanes[0] + lanes[7];
  }
  return total;
}

// Bytes widened to 16 bits beforehand: VPMADDUBSW would saturate.
__attribute__((target("avx2"))) double bytes_avx2(std::int64_t rounds) {
  __m256i sums[kSums] = {};
  const __m256i a = _mm256_set1_epi16(static_cast<short>(hidden_int(3)));
  __m256i b = _mm256_set1_epi16(static_cast<short>(hidden_int(2)));
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+x"(b));  // else the product, which never changes, is computed once
    for (auto& sum : sums) sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_xor_si256(b, sum), a));
  }
  double total = 0;
  for (const auto& sum : sums) total += _mm256_extract_epi32(sum, 0);
  return total;
}

__attribute__((target("avx512f"))) double floats_avx512(std::int64_t rounds) {
  __m512 sums[kSums];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  const __m512 a = _mm512_set1_ps(hidden(0.5f)), b = _mm512_set1_ps(hidden(1.0f));
  for (std::int64_t i = 0; i < rounds; ++i)
    for (auto& sum : sums) sum = _mm512_fmadd_ps(sum, a, b);
  float lanes[16];
  double total = 0;
  for (const auto& sum : sums) {
    _mm512_storeu_ps(lanes, sum);
    total += lanes[0] + lanes[15];
  }
  return total;
}

__attribute__((target("avx512f,avx512vnni"))) double bytes_vnni(std::int64_t rounds) {
  __m512i sums[kSums];
  for (auto& sum : sums) sum = _mm512_setzero_si512();
  const __m512i a = _mm512_set1_epi8(static_cast<char>(hidden_int(3)));
  const __m512i b = _mm512_set1_epi8(static_cast<char>(hidden_int(-2)));
  for (std::int64_t i = 0; i < rounds; ++i)
    for (auto& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
  std::int32_t lanes[16];
  double total = 0;
  for (const auto& sum : sums) {
    _mm512_storeu_si512(lanes, sum);
    total += lanes[0] + lanes[15];
  }
  return total;
}

#endif

Loop float_loop() {
#if defined(HEADRACE_X86)
  if (__builtin_cpu_supports("avx512f")) return {floats_avx512, kSums * 16 * 2.0, "VFMADD, 512 bits"};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {floats_avx2, kSums * 8 * 2.0, "VFMADD, 256 bits"};
#endif
  return {floats_scalar, kSums * 2.0, "scalar"};
}

Loop byte_loop() {
#if defined(HEADRACE_X86)
  if (__builtin_cpu_supports("avx512vnni")) return {bytes_vnni, kSums * 64 * 2.0, "VPDPBUSD, 512 bits"};
  if (__builtin_cpu_supports("avx2")) return {bytes_avx2, kSums * 16 * 2.0, "VPMADDWD, 256 bits"};
#endif
  return {bytes_scalar, kSums * 2.0, "scalar"};
}

LoopWork run_everywhere(const Loop& loop, std::int64_t rounds) {
  const int threads = num_threads();
  std::vector<double> sums(static_cast<std::size_t>(threads));
  parallel_for(threads, [&](std::int64_t i) { sums[static_cast<std::size_t>(i)] = loop.run(rounds); });
  LoopWork work{loop.operations_per_round * static_cast<double>(rounds) * threads, 0, loop.method};
  for (const double sum : sums) work.checksum += sum;
  return work;
}

}  // namespace

std::uint64_t read_all(const std::uint64_t* words, std::int64_t count) {
  auto* const read =
#if defined(HEADRACE_X86)
      __builtin_cpu_supports("avx2") ? read_avx2 :
#endif
                                     read_scalar;
  const std::int64_t pieces = num_threads();
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(pieces));
  parallel_for(pieces, [&](std::int64_t i) {
    const std::int64_t from = count * i / pieces, to = count * (i + 1) / pieces;
    sums[static_cast<std::size_t>(i)] = read(words + from, to - from);
  });
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

LoopWork multiply_floats(std::int64_t rounds) { return run_everywhere(float_loop(), rounds); }

LoopWork multiply_bytes(std::int64_t rounds) { return run_everywhere(byte_loop(), rounds); }

}  // namespace headrace::kernels
