// What the KV store needs from C++: names of grains, and checksums.
#include <nanobind/stl/string.h>

#include "bind/_core/arrays.h"
#include "core/crc32c.h"
#include "core/grain_keys.h"

namespace headrace::bind {

using namespace nanobind::literals;

namespace {

core::Digest digest_of(const nb::bytes& bytes) {
  core::Digest digest;
  if (bytes.size() != digest.size()) throw core::InvalidField("digest", "must be 32 bytes");
  std::copy_n(static_cast<const std::uint8_t*>(bytes.data()), digest.size(), digest.begin());
  return digest;
}

nb::bytes bytes_of(const core::Digest& digest) {
  return nb::bytes(reinterpret_cast<const char*>(digest.data()), digest.size());
}

nb::list chain(const nb::bytes& root, InArray<core::Token> tokens, const core::ExtraKeys& keys) {
  const core::Digest first = digest_of(root);
  std::vector<core::Digest> digests;
  {
    nb::gil_scoped_release release;
    digests = core::grain_chain(first, as_span(tokens), keys);
  }
  nb::list out;
  for (const core::Digest& digest : digests) out.append(bytes_of(digest));
  return out;
}

}  // namespace

void bind_store(nb::module_& m) {
  m.attr("GRAIN") = core::kGrain;
  m.def(
      "grain_root",
      [](const nb::bytes& name_space, const std::string& salt) {
        return bytes_of(core::grain_root(digest_of(name_space), salt));
      },
      "name_space"_a, "salt"_a, "Where a tenant's chains of stored KV begin.");
  m.def("grain_chain", &chain, "root"_a, "tokens"_a.noconvert(), "keys"_a = core::ExtraKeys{},
        "One 32-byte key per full grain of 128 tokens.");
  m.def(
      "crc32c",
      [](nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> data, std::uint32_t crc) {
        nb::gil_scoped_release release;
        return core::crc32c(data.data(), data.shape(0), crc);
      },
      "data"_a, "crc"_a = 0, "CRC-32C of bytes, continuing from `crc`.");
}

}  // namespace headrace::bind
