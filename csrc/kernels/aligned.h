// Memory aligned for vectors, and for huge pages when it is large. Contents start undefined.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace headrace::kernels {

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};

template <typename T>
using AlignedArray = std::unique_ptr<T[], FreeDeleter>;

// Throws std::bad_alloc. Large arrays ask for huge pages: a packed weight is read front to back every step.
template <typename T>
AlignedArray<T> aligned_array(std::size_t count) {
  constexpr std::size_t line = 64, huge = std::size_t{2} << 20;
  const std::size_t bytes = count * sizeof(T);
  const std::size_t alignment = bytes >= huge ? huge : line;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* p = std::aligned_alloc(alignment, rounded ? rounded : alignment);
  if (!p) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (alignment == huge) madvise(p, rounded, MADV_HUGEPAGE);
#endif
  return AlignedArray<T>(static_cast<T*>(p));
}

}  // namespace headrace::kernels
