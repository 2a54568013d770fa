// Who waits, who is prompted and who runs. Waiting is one ordered set for both policies: FCFS orders by a counter
// (preempted sequences go before everything), priority by (priority, arrival, id). Prompted (prefilled, not decoding
// yet; only of engines that plan the two apart) and running keep admission order.
#pragma once

#include <limits>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/sequence.h"

namespace headrace::core {

class Queues {
 public:
  explicit Queues(bool priority) : priority_(priority) {}

  bool by_priority() const { return priority_; }
  // Under the priority policy the lesser is served first, and the greatest gives way.
  static std::tuple<std::int64_t, double> rank(const Sequence& seq) { return {seq.spec.priority, seq.spec.arrival}; }
  const std::vector<Sequence*>& running() const { return running_; }
  const std::vector<Sequence*>& prompted() const { return prompted_; }
  std::size_t num_waiting() const { return waiting_.size(); }

  void push_waiting(Sequence* seq) { place(seq, next_back_++); }
  void push_waiting_front(Sequence* seq) { place(seq, next_front_--); }
  // Waiting sequences in the order they are to be served.
  std::vector<Sequence*> waiting() const {
    std::vector<Sequence*> out;
    out.reserve(waiting_.size());
    for (const auto& [key, seq] : waiting_) out.push_back(seq);
    return out;
  }
  // Visits waiting sequences in serving order until `visit` returns false. The visitor may admit the one it is given.
  template <typename Visit>
  void visit_waiting(Visit visit) {
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      Sequence* seq = it->second;
      ++it;  // before the visit: admitting erases this entry
      if (!visit(seq)) return;
    }
  }
  void admit(Sequence* seq) {
    leave_waiting(seq);
    leave_prompted(seq);
    seq->status = Status::kRunning;
    running_.push_back(seq);
  }
  void leave_waiting(Sequence* seq) {
    const auto it = keys_.find(seq->id());
    if (it == keys_.end()) return;
    waiting_.erase(it->second);
    keys_.erase(it);
  }
  void push_prompted(Sequence* seq) {
    leave_waiting(seq);
    seq->status = Status::kPrompted;
    prompted_.push_back(seq);
  }
  void leave_prompted(Sequence* seq) { std::erase(prompted_, seq); }
  // Returns the position the sequence had among the running ones.
  std::size_t leave_running(Sequence* seq) {
    for (std::size_t i = 0; i < running_.size(); ++i) {
      if (running_[i] != seq) continue;
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
      return i;
    }
    return running_.size();
  }
  // Who gives way when blocks run short: the tail under FCFS, the greatest (priority, arrival) otherwise.
  Sequence* victim() const {
    if (!priority_ || running_.empty()) return running_.empty() ? nullptr : running_.back();
    Sequence* worst = running_.front();
    for (Sequence* seq : running_)
      if (rank(*seq) >= rank(*worst)) worst = seq;
    return worst;
  }

 private:
  using Key = std::tuple<std::int64_t, double, std::int64_t>;

  void place(Sequence* seq, std::int64_t order) {
    seq->status = Status::kWaiting;
    const Key key = priority_ ? Key{seq->spec.priority, seq->spec.arrival, seq->id()} : Key{0, 0.0, order};
    keys_[seq->id()] = key;
    waiting_[key] = seq;
  }

  bool priority_;
  std::vector<Sequence*> running_, prompted_;
  std::map<Key, Sequence*> waiting_;
  std::unordered_map<SeqId, Key> keys_;
  std::int64_t next_back_ = 0;
  std::int64_t next_front_ = -1;
};

}  // namespace headrace::core
