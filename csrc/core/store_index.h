// A reader of the KV store's index: which names of a chain are stored, straight from the pages of LMDB's file.
// The file is the same that Python's kv/index.py writes through LMDB, so both give one answer. What is read here:
// LMDB's data format 1 (its mdb.c: meta page, branch and leaf pages, the record of a named database) and the entry's
// layout (kv/index.py: ENTRY).
//
// A reader takes no lock and no reader's slot. A transaction leaves the pages of the snapshot before it as they are, so
// what was found is true if the newest snapshot is still the one that was read; else it is read again. Whatever looks
// damaged, changes too often or is of another format gives no answer, and LMDB itself must be asked. Never writes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace::core {

class StoreIndex {
 public:
  static constexpr std::size_t kNameBytes = 33;  // a grain's key and the record's kind
  using Space = std::array<std::uint8_t, 16>;

  // What may be served: entries of `space` (all zeros: of any) that were used no longer ago than their class's lifetime
  // (all in seconds; `now` in wall time). A class beyond the array has a lifetime of 0.
  struct Terms {
    Space space{};
    double now = 0;
    std::span<const double> lifetimes;
  };

  // `path`: LMDB's data file. Throws std::system_error where it cannot be mapped, InvalidField for another format.
  explicit StoreIndex(const std::string& path);
  ~StoreIndex();
  StoreIndex(const StoreIndex&) = delete;
  StoreIndex& operator=(const StoreIndex&) = delete;

  // For each name (`kNameBytes` each, one after another) whether it may be served, all of one moment.
  std::optional<std::vector<bool>> has(std::span<const std::uint8_t> names, const Terms& terms) const;
  // How many names from the start may be served, up to the first that may not: the CHECK of a chain.
  std::optional<std::size_t> leading(std::span<const std::uint8_t> names, const Terms& terms) const;

 private:
  struct Snapshot {
    std::uint64_t transaction = 0;
    std::uint64_t main_root = 0;
  };
  struct Page {
    const std::uint8_t* bytes;
    std::size_t count;  // nodes
    bool leaf;
  };
  using Bytes = std::span<const std::uint8_t>;

  template <typename Visit>
  bool read(Visit visit) const;
  Snapshot newest() const;
  Page page_at(std::uint64_t number) const;
  bool reaches(std::uint64_t end) const;
  const std::uint8_t* node_at(const Page& page, std::size_t which) const;
  Bytes key_at(const Page& page, std::size_t which) const;
  Bytes find(std::uint64_t root, Bytes key) const;  // empty: it is not there
  std::uint64_t entries_root(std::uint64_t main_root) const;
  bool serves(std::uint64_t root, Bytes name, const Terms& terms) const;

  int file_ = -1;
  const std::uint8_t* map_ = nullptr;
  std::size_t map_bytes_ = 0;
  std::size_t page_bytes_ = 0;
  mutable std::atomic<std::uint64_t> file_bytes_ = 0;  // beyond them the map must not be touched
};

}  // namespace headrace::core
