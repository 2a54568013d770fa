// KV that leaves for a store and KV that comes from one. The scheduler only says which blocks; somebody else copies,
// on the device, in the order of its steps: a copy queued now is done before any step planned later touches a block.
#include <algorithm>
#include <utility>

#include "core/scheduler.h"

namespace headrace::core {

// Only what returned steps have written is sealed: a step in flight may still fail. The sequence's own blocks are
// named, not equal ones that another step may still be filling.
void Scheduler::seal(Sequence& seq) {
  const std::int32_t grain = config_.seal_tokens, per_grain = grain / allocator_.block_size();
  if (grain == 0) return;
  const std::int32_t valid = std::min(seq.ledger.num_valid(), seq.ledger.num_tokens());
  for (; (seq.num_sealed + 1) * grain <= valid; ++seq.num_sealed) {
    const auto start = seq.tokens.begin() + std::ptrdiff_t{seq.num_sealed} * grain;
    Sealed sealed{seq.id(), seq.num_sealed, {start, start + grain}, {}};
    for (const auto& blocks : seq.blocks) {
      const auto first = blocks.begin() + std::ptrdiff_t{seq.num_sealed} * per_grain;
      sealed.blocks.insert(sealed.blocks.end(), first, first + per_grain);
    }
    sealed_.push_back(std::move(sealed));
  }
}

std::vector<Sealed> Scheduler::take_sealed() { return std::exchange(sealed_, {}); }

std::int32_t Scheduler::cached_tokens(SeqId id) {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? 0 : allocator_.find_hit(*it->second).num_tokens;
}

std::vector<ImportedBlock> Scheduler::import_prefix(SeqId id, std::int32_t num_tokens, std::int32_t first) {
  const auto it = sequences_.find(id);
  if (num_tokens < 0) throw InvalidField("num_tokens", "must not be negative");
  if (first < 0) throw InvalidField("first", "must not be negative");
  if (it == sequences_.end() || it->second->status != Status::kWaiting || it->second->started()) return {};
  return allocator_.import_prefix(*it->second, num_tokens, first, config_.limits.watermark_blocks);
}

}  // namespace headrace::core
