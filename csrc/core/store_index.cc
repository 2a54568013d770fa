#include "core/store_index.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/types.h"

namespace headrace::core {

namespace {

// LMDB's data format 1, all little-endian here. Page: u64 number, u16, u16 flags, u16 end of the node table, u16; then
// u16 places of nodes. Node: u16 low, u16 high, u16 flags, u16 key bytes, key, data: of a leaf `low | high << 16` data
// bytes, of a branch the child `low | high << 16 | flags << 32`. A branch's first key stands for "less than all".
constexpr std::size_t kPageHead = 16, kNodeHead = 8;
constexpr std::uint16_t kBranch = 1, kLeaf = 2, kOtherKinds = 0x4 | 0x8 | 0x20 | 0x40;
constexpr std::uint16_t kInOverflow = 1;
constexpr std::uint32_t kMagic = 0xBEEFC0DE, kFormat = 1;
constexpr std::uint64_t kNoPage = ~std::uint64_t{0};
// A meta page's content: u32 magic, u32 format, u64, u64 map bytes, two databases, u64 last page, u64 transaction.
constexpr std::size_t kMapBytesAt = 16, kFreeDatabaseAt = 24, kMainDatabaseAt = 72, kTransactionAt = 128;
constexpr std::size_t kMetaBytes = 136;
// A database: u32 page bytes, u16 flags, u16 depth, four u64 counts, u64 root.
constexpr std::size_t kDatabaseBytes = 48, kFlagsAt = 4, kRootAt = 40;
constexpr int kMostDepth = 32, kTries = 8;
constexpr char kEntries[] = "entries";
// kv/index.py's ENTRY, packed: u8 class, 16 bytes of namespace and double of last use begin at these places.
constexpr std::size_t kEntryBytes = 74, kClassAt = 17, kSpaceAt = 26, kUsedAt = 66;

struct Unreadable {};  // torn under the reader, or damaged

template <typename T>
T load(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// LMDB's order of keys: bytes, then length.
int compare(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  const int order = std::memcmp(a.data(), b.data(), std::min(a.size(), b.size()));
  if (order != 0) return order;
  return a.size() < b.size() ? -1 : a.size() > b.size();
}

}  // namespace

StoreIndex::StoreIndex(const std::string& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (file_ < 0) throw std::system_error(errno, std::generic_category(), path);
  std::uint8_t head[kPageHead + kMetaBytes];
  const bool whole = ::pread(file_, head, sizeof head, 0) == static_cast<ssize_t>(sizeof head);
  const std::uint8_t* meta = head + kPageHead;
  page_bytes_ = whole ? load<std::uint32_t>(meta + kFreeDatabaseAt) : 0;
  map_bytes_ = whole ? load<std::uint64_t>(meta + kMapBytesAt) : 0;
  const bool known = whole && load<std::uint32_t>(meta) == kMagic && load<std::uint32_t>(meta + 4) == kFormat;
  if (!known || page_bytes_ < 512 || page_bytes_ > 65536 || map_bytes_ < 2 * page_bytes_) {
    ::close(file_);
    throw InvalidField("path", path + " is not an index in LMDB's format 1");
  }
  void* map = ::mmap(nullptr, map_bytes_, PROT_READ, MAP_SHARED, file_, 0);
  if (map == MAP_FAILED) {
    const int error = errno;
    ::close(file_);
    throw std::system_error(error, std::generic_category(), path);
  }
  map_ = static_cast<const std::uint8_t*>(map);
}

StoreIndex::~StoreIndex() {
  ::munmap(const_cast<std::uint8_t*>(map_), map_bytes_);
  ::close(file_);
}

std::optional<std::vector<bool>> StoreIndex::has(std::span<const std::uint8_t> names, const Terms& terms) const {
  std::vector<bool> held(names.size() / kNameBytes);
  const bool answered = read([&](std::uint64_t root) {
    for (std::size_t i = 0; i < held.size(); ++i) {
      held[i] = serves(root, names.subspan(i * kNameBytes, kNameBytes), terms);
    }
  });
  return answered ? std::optional(std::move(held)) : std::nullopt;
}

std::optional<std::size_t> StoreIndex::leading(std::span<const std::uint8_t> names, const Terms& terms) const {
  std::size_t count = 0;
  const bool answered = read([&](std::uint64_t root) {
    count = 0;
    while ((count + 1) * kNameBytes <= names.size() &&
           serves(root, names.subspan(count * kNameBytes, kNameBytes), terms)) {
      ++count;
    }
  });
  return answered ? std::optional(count) : std::nullopt;
}

// Lets `visit` see a snapshot's root until nobody changed the index meanwhile; false where that never was so.
template <typename Visit>
bool StoreIndex::read(Visit visit) const {
  for (int i = 0; i < kTries; ++i) {
    Snapshot read;
    bool whole = true;
    try {
      read = newest();
      visit(entries_root(read.main_root));
    } catch (const Unreadable&) {
      whole = false;
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    try {
      // Both: a record that was being written may have been read with the root of one transaction and the number of
      // another.
      const Snapshot now = newest();
      if (whole && now.transaction == read.transaction && now.main_root == read.main_root) return true;
    } catch (const Unreadable&) {
      return false;
    }
  }
  return false;
}

StoreIndex::Snapshot StoreIndex::newest() const {
  if (!reaches(2 * page_bytes_)) throw Unreadable{};
  Snapshot found;
  for (std::size_t which = 0; which < 2; ++which) {
    std::uint8_t meta[kMetaBytes];
    std::memcpy(meta, map_ + which * page_bytes_ + kPageHead, kMetaBytes);
    if (load<std::uint32_t>(meta) != kMagic) throw Unreadable{};
    const auto transaction = load<std::uint64_t>(meta + kTransactionAt);
    if (which == 0 || transaction > found.transaction) {
      found = {transaction, load<std::uint64_t>(meta + kMainDatabaseAt + kRootAt)};
    }
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return found;
}

// Whether the file is so long. It grows under its readers, and never shrinks.
bool StoreIndex::reaches(std::uint64_t end) const {
  if (end <= file_bytes_.load(std::memory_order_relaxed)) return true;
  struct stat facts;
  if (::fstat(file_, &facts) != 0) return false;
  const auto size = std::min<std::uint64_t>(static_cast<std::uint64_t>(facts.st_size), map_bytes_);
  file_bytes_.store(size, std::memory_order_relaxed);
  return end <= size;
}

StoreIndex::Page StoreIndex::page_at(std::uint64_t number) const {
  if (number >= map_bytes_ / page_bytes_ || !reaches((number + 1) * page_bytes_)) throw Unreadable{};
  const std::uint8_t* bytes = map_ + number * page_bytes_;
  const auto flags = load<std::uint16_t>(bytes + 10), table_end = load<std::uint16_t>(bytes + 12);
  const bool leaf = (flags & kLeaf) != 0;
  if ((flags & kOtherKinds) != 0 || leaf == ((flags & kBranch) != 0)) throw Unreadable{};
  if (table_end < kPageHead || table_end > page_bytes_) throw Unreadable{};
  return {bytes, (table_end - kPageHead) / sizeof(std::uint16_t), leaf};
}

const std::uint8_t* StoreIndex::node_at(const Page& page, std::size_t which) const {
  const std::size_t at = load<std::uint16_t>(page.bytes + kPageHead + which * sizeof(std::uint16_t));
  if (at + kNodeHead > page_bytes_) throw Unreadable{};
  const std::uint8_t* node = page.bytes + at;
  if (at + kNodeHead + load<std::uint16_t>(node + 6) > page_bytes_) throw Unreadable{};
  return node;
}

StoreIndex::Bytes StoreIndex::key_at(const Page& page, std::size_t which) const {
  const std::uint8_t* node = node_at(page, which);
  // The size is read again, and may have been torn since: what is beyond the page must not be read even then.
  const std::size_t room = static_cast<std::size_t>(page.bytes + page_bytes_ - node) - kNodeHead;
  return {node + kNodeHead, std::min<std::size_t>(load<std::uint16_t>(node + 6), room)};
}

StoreIndex::Bytes StoreIndex::find(std::uint64_t root, Bytes key) const {
  std::uint64_t number = root;
  for (int depth = 0; number != kNoPage && depth < kMostDepth; ++depth) {
    const Page page = page_at(number);
    std::size_t low = page.leaf ? 0 : 1, high = page.count;  // ends with `low` keys that are not greater
    if (low > high) throw Unreadable{};
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (compare(key_at(page, middle), key) <= 0) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (page.leaf && (low == 0 || compare(key_at(page, low - 1), key) != 0)) return {};
    const std::uint8_t* node = node_at(page, low - 1);
    const std::uint64_t low_bits = load<std::uint32_t>(node);
    const auto flags = load<std::uint16_t>(node + 4);
    if (page.leaf) {
      const std::uint8_t* data = node + kNodeHead + load<std::uint16_t>(node + 6);
      if ((flags & kInOverflow) != 0 || data > page.bytes + page_bytes_) throw Unreadable{};
      if (low_bits > static_cast<std::size_t>(page.bytes + page_bytes_ - data)) throw Unreadable{};
      return {data, low_bits};
    }
    number = low_bits | std::uint64_t{flags} << 32;
  }
  if (number != kNoPage) throw Unreadable{};
  return {};
}

std::uint64_t StoreIndex::entries_root(std::uint64_t main_root) const {
  const Bytes name{reinterpret_cast<const std::uint8_t*>(kEntries), sizeof kEntries - 1};
  const Bytes database = find(main_root, name);
  if (database.empty()) return kNoPage;  // a young index
  if (database.size() != kDatabaseBytes || load<std::uint16_t>(database.data() + kFlagsAt) != 0) throw Unreadable{};
  return load<std::uint64_t>(database.data() + kRootAt);
}

bool StoreIndex::serves(std::uint64_t root, Bytes name, const Terms& terms) const {
  const Bytes entry = find(root, name);
  if (entry.empty()) return false;
  if (entry.size() != kEntryBytes) throw Unreadable{};
  const std::size_t ttl_class = entry[kClassAt];
  const double lifetime = ttl_class < terms.lifetimes.size() ? terms.lifetimes[ttl_class] : 0;
  const bool ours = terms.space == Space{} || std::equal(terms.space.begin(), terms.space.end(), &entry[kSpaceAt]);
  return ours && !(terms.now - load<double>(&entry[kUsedAt]) > lifetime);
}

}  // namespace headrace::core
