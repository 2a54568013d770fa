// What the KV store needs from C++: names of grains, a reader of its index, and checksums.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bind/_core/arrays.h"
#include "core/crc32c.h"
#include "core/grain_keys.h"
#include "core/store_index.h"

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

using Names = std::span<const std::uint8_t>;

Names names_of(const nb::bytes& names) {
  if (names.size() % core::StoreIndex::kNameBytes != 0) throw core::InvalidField("names", "must be 33 bytes each");
  return {static_cast<const std::uint8_t*>(names.data()), names.size()};
}

core::StoreIndex::Terms terms_of(const nb::bytes& name_space, double now, const InArray<double>& lifetimes) {
  core::StoreIndex::Terms terms{{}, now, as_span(lifetimes)};
  if (name_space.size() != terms.space.size()) throw core::InvalidField("name_space", "must be 16 bytes");
  std::copy_n(static_cast<const std::uint8_t*>(name_space.data()), terms.space.size(), terms.space.begin());
  return terms;
}

// The interpreter's lock is kept: a look-up takes microseconds, and to get the lock back may take milliseconds.
std::optional<nb::list> has(const core::StoreIndex& index, const nb::bytes& names, const nb::bytes& name_space,
                            double now, InArray<double> lifetimes) {
  const auto held = index.has(names_of(names), terms_of(name_space, now, lifetimes));
  if (!held) return std::nullopt;
  nb::list out;
  for (const bool one : *held) out.append(nb::bool_(one));
  return out;
}

std::optional<std::size_t> leading(const core::StoreIndex& index, const nb::bytes& names, const nb::bytes& name_space,
                                   double now, InArray<double> lifetimes) {
  return index.leading(names_of(names), terms_of(name_space, now, lifetimes));
}

void bind_index(nb::module_& m) {
  nb::class_<core::StoreIndex>(m, "StoreIndex",
                               "A reader of the local store's index that asks LMDB nothing; None: it must be asked.")
      .def(nb::init<const std::string&>(), "path"_a)
      .def("has", &has, "names"_a, "name_space"_a, "now"_a, "lifetimes"_a.noconvert(),
           "For each name of 33 bytes (key and kind) whether it may be served, all of one moment.")
      .def("leading", &leading, "names"_a, "name_space"_a, "now"_a, "lifetimes"_a.noconvert(),
           "How many names from the start may be served, up to the first that may not.");
}

}  // namespace

void bind_store(nb::module_& m) {
  bind_index(m);
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
