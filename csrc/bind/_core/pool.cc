#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind/_core/arrays.h"
#include "core/block_pool.h"
#include "core/ledger.h"

namespace headrace::bind {

using namespace nanobind::literals;
using core::BlockPool;
using core::ChainNodePtr;
using core::Ledger;

namespace {

// A chain node as Python holds it.
struct Node {
  ChainNodePtr ptr;
};

nb::bytes digest_bytes(const core::Digest& digest) {
  return nb::bytes(reinterpret_cast<const char*>(digest.data()), digest.size());
}

Node make_node(std::optional<Node> parent, InArray<core::Token> tokens, const core::ExtraKeys& keys, std::int32_t start,
               bool weak) {
  const auto kind = weak ? core::HashKind::kWeakForTests : core::HashKind::kSha256Cbor;
  const auto size = static_cast<std::int32_t>(tokens.shape(0));
  return {
      core::make_node(parent ? parent->ptr : nullptr, as_span(tokens), core::encode_extras(keys, start, size), kind)};
}

}  // namespace

void bind_ledger(nb::module_& m) {
  nb::enum_<core::StaleMode>(m, "StaleMode")
      .value("DELIVER", core::StaleMode::kDeliver)
      .value("DROP", core::StaleMode::kDrop);
  nb::class_<Ledger>(m, "Ledger", "Five counts and four moves; see docs/ledger.md.")
      .def(nb::init<std::int32_t>(), "num_tokens"_a)
      .def_prop_ro("num_tokens", &Ledger::num_tokens)
      .def_prop_ro("num_computed", &Ledger::num_computed)
      .def_prop_ro("num_in_flight", &Ledger::num_in_flight)
      .def_prop_ro("num_promised", &Ledger::num_promised)
      .def_prop_ro("num_stale", &Ledger::num_stale)
      .def_prop_ro("num_valid", &Ledger::num_valid)
      .def("need", &Ledger::need, "drafts"_a)
      .def("start_at", &Ledger::start_at, "num_cached"_a)
      .def("advance", &Ledger::advance, "q"_a, "drafts"_a)
      .def("commit", &Ledger::commit, "q"_a, "valid"_a, "promised"_a, "emitted"_a)
      .def("reset", &Ledger::reset)
      .def("drain", &Ledger::drain, "q"_a, "emitted"_a, "mode"_a);
}

void bind_pool(nb::module_& m) {
  nb::class_<core::ExtraKeys>(m, "ExtraKeys", "What besides tokens shapes a sequence's KV.")
      .def(
          "__init__",
          [](core::ExtraKeys* self, const std::string& adapter,
             const std::vector<std::tuple<std::string, std::int32_t, std::int32_t>>& media, const std::string& salt,
             const std::string& embeds_digest) {
            new (self) core::ExtraKeys{adapter, {}, salt, embeds_digest};
            for (const auto& [id, start, length] : media) self->media.push_back({id, start, length});
          },
          "adapter"_a = "", "media"_a = std::vector<std::tuple<std::string, std::int32_t, std::int32_t>>{},
          "salt"_a = "", "embeds_digest"_a = "");
  nb::class_<Node>(m, "ChainNode", "The content of one full block and of everything before it.")
      .def_prop_ro("digest", [](const Node& node) { return digest_bytes(node.ptr->digest); });
  m.def("empty_parent", [] { return digest_bytes(core::empty_parent()); }, "The parent digest of first blocks.");
  m.def("make_node", &make_node, "parent"_a.none(), "tokens"_a.noconvert(), "keys"_a = core::ExtraKeys{}, "start"_a = 0,
        "weak"_a = false, "A chain node; `start` is the block's first position.");
  nb::class_<BlockPool>(m, "BlockPool", "Reference counts, free queue and content names of KV blocks.")
      .def(nb::init<std::int32_t, bool>(), "num_blocks"_a, "caching"_a = true)
      .def_prop_ro("num_blocks", &BlockPool::num_blocks)
      .def_prop_ro("num_free", &BlockPool::num_free)
      .def_prop_ro("num_used", &BlockPool::num_used)
      .def("ref_count", &BlockPool::ref_count, "block"_a)
      .def("free_queue", &BlockPool::free_queue)
      .def("allocate", &BlockPool::allocate, "count"_a)
      .def(
          "touch", [](BlockPool& pool, const std::vector<core::BlockId>& blocks) { pool.touch(blocks); }, "blocks"_a)
      .def(
          "free", [](BlockPool& pool, const std::vector<core::BlockId>& blocks) { pool.free(blocks); }, "blocks"_a)
      .def(
          "name",
          [](BlockPool& pool, core::BlockId block, const Node& node, std::int32_t group) {
            pool.name(block, node.ptr, group);
          },
          "block"_a, "node"_a, "group"_a = 0)
      .def("forget", &BlockPool::forget, "block"_a)
      .def("evict_first", &BlockPool::evict_first, "block"_a)
      .def(
          "find",
          [](const BlockPool& pool, const Node& node, std::int32_t group) { return pool.find(node.ptr, group); },
          "node"_a, "group"_a = 0);
}

}  // namespace headrace::bind
