// Waiting and running: serving order, the head for the preempted, victims.
#include <memory>

#include "core/queues.h"
#include "tests/check.h"

using namespace headrace::core;

namespace {

using Ids = std::vector<SeqId>;

class Crowd {
 public:
  Sequence* make(SeqId id, std::int64_t priority = 0, double arrival = 0) {
    SequenceSpec spec;
    spec.id = id, spec.prompt = {1}, spec.priority = priority, spec.arrival = arrival;
    all_.push_back(std::make_unique<Sequence>(spec, 1));
    return all_.back().get();
  }

 private:
  std::vector<std::unique_ptr<Sequence>> all_;
};

Ids ids(const std::vector<Sequence*>& sequences) {
  Ids out;
  for (const Sequence* seq : sequences) out.push_back(seq->id());
  return out;
}

}  // namespace

TEST(queues_fcfs_serves_in_order_and_the_preempted_first) {
  Crowd crowd;
  Queues queues(false);
  Sequence *a = crowd.make(1), *b = crowd.make(2), *c = crowd.make(3);
  for (Sequence* seq : {a, b, c}) queues.push_waiting(seq);
  queues.admit(a), queues.admit(b);
  CHECK_EQ(ids(queues.running()), (Ids{1, 2}));
  CHECK(queues.victim() == b);
  for (Sequence* seq : {b, a}) queues.leave_running(seq), queues.push_waiting_front(seq);
  CHECK_EQ(ids(queues.waiting()), (Ids{1, 2, 3}));
  CHECK(queues.victim() == nullptr);
}

TEST(queues_priority_orders_both_ends) {
  Crowd crowd;
  Queues queues(true);
  Sequence *late = crowd.make(1, 0, 9.0), *urgent = crowd.make(2, -1, 5.0), *early = crowd.make(3, 0, 1.0);
  for (Sequence* seq : {late, urgent, early}) queues.push_waiting(seq);
  CHECK_EQ(ids(queues.waiting()), (Ids{2, 3, 1}));
  for (Sequence* seq : {late, urgent, early}) queues.admit(seq);
  CHECK(queues.victim() == late);
  queues.leave_running(late), queues.push_waiting_front(late);
  CHECK(queues.victim() == early);
}

TEST(queues_equal_ranks_fall_to_the_one_admitted_last) {
  Crowd crowd;
  Queues queues(true);
  Sequence *a = crowd.make(1), *b = crowd.make(2);
  queues.push_waiting(a), queues.push_waiting(b);
  queues.admit(b), queues.admit(a);
  CHECK(queues.victim() == a);
}

TEST(queues_visit_allows_admission_and_stops_when_told) {
  Crowd crowd;
  Queues queues(false);
  for (SeqId id = 0; id < 5; ++id) queues.push_waiting(crowd.make(id));
  Ids seen;
  queues.visit_waiting([&](Sequence* seq) {
    seen.push_back(seq->id());
    if (seq->id() % 2 == 0) queues.admit(seq);
    return seq->id() < 3;
  });
  CHECK_EQ(seen, (Ids{0, 1, 2, 3}));
  CHECK_EQ(ids(queues.waiting()), (Ids{1, 3, 4}));
  CHECK_EQ(ids(queues.running()), (Ids{0, 2}));
}

TEST(queues_leaving_twice_is_harmless) {
  Crowd crowd;
  Queues queues(false);
  Sequence* a = crowd.make(1);
  queues.push_waiting(a);
  queues.leave_waiting(a), queues.leave_waiting(a);
  CHECK_EQ(queues.leave_running(a), 0u);
  CHECK_EQ(queues.num_waiting(), 0u);
}
