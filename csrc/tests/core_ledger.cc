// The ledger: four moves over five counts.
#include <random>

#include "core/ledger.h"
#include "tests/check.h"

using headrace::core::Ledger;
using headrace::core::StaleMode;

TEST(ledger_prefill_then_decode) {
  Ledger ledger(10);
  CHECK_EQ(ledger.need(0), 10);
  CHECK_EQ(ledger.advance(6, 0), 0);  // the prompt's end is not reached: nothing is promised
  CHECK_EQ(ledger.num_valid(), 0);
  ledger.commit(6, 6, 0, 0);
  CHECK_EQ(ledger.num_valid(), 6);
  CHECK_EQ(ledger.advance(4, 0), 1);
  ledger.commit(4, 4, 1, 1);
  CHECK_EQ(ledger.num_tokens(), 11);
  CHECK_EQ(ledger.num_computed(), ledger.num_tokens() - 1);  // the sampled token's KV is not computed yet
}

TEST(ledger_rejected_drafts_are_taken_back) {
  Ledger ledger(101);
  ledger.start_at(100);
  CHECK_EQ(ledger.advance(4, 3), 4);
  CHECK_EQ(ledger.num_computed(), 104);
  ledger.commit(4, 2, 4, 2);
  CHECK_EQ(ledger.num_computed(), 102);
  CHECK_EQ(ledger.num_tokens(), 103);
  CHECK_EQ(ledger.num_promised(), 0);
}

TEST(ledger_reset_makes_flights_stale_and_drain_settles_them) {
  Ledger ledger(8);
  ledger.advance(8, 0);
  ledger.advance(1, 0);
  ledger.reset();
  CHECK_EQ(ledger.num_stale(), 9);
  CHECK_EQ(ledger.num_valid(), 0);
  CHECK_EQ(ledger.num_promised(), 0);
  ledger.drain(8, 1, StaleMode::kDeliver);
  CHECK_EQ(ledger.num_tokens(), 9);
  ledger.drain(1, 1, StaleMode::kDrop);
  CHECK_EQ(ledger.num_tokens(), 9);
  CHECK_EQ(ledger.num_in_flight(), 0);
  CHECK_EQ(ledger.need(0), 9);
}

TEST(ledger_refuses_impossible_moves) {
  Ledger ledger(4);
  CHECK_THROWS(std::logic_error, ledger.advance(0, 0));
  CHECK_THROWS(std::logic_error, ledger.advance(5, 0));
  CHECK_THROWS(std::logic_error, ledger.commit(1, 1, 0, 0));
  ledger.advance(4, 0);
  CHECK_THROWS(std::logic_error, ledger.start_at(2));
  CHECK_THROWS(std::logic_error, ledger.commit(4, 5, 1, 1));
  CHECK_THROWS(std::logic_error, ledger.drain(1, 0, StaleMode::kDrop));
  CHECK_EQ(ledger.num_in_flight(), 4);
}

// A sequence with up to two steps in flight, chunks, drafts, rejections and resets: the identities always hold.
TEST(ledger_identities_over_random_histories) {
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  struct Flight {
    int q, promised;
    bool stale;
  };
  for (int round = 0; round < 300; ++round) {
    Ledger ledger(1 + below(40));
    std::vector<Flight> flights;
    for (int i = 0; i < 60; ++i) {
      const int drafts = below(4);
      if (flights.size() < 2 && ledger.num_stale() == 0 && ledger.need(drafts) > 0) {
        const int q = 1 + below(ledger.need(drafts));
        const int fit = std::max(0, q - ledger.need(0));
        flights.push_back({q, ledger.advance(q, fit), false});
      } else if (!flights.empty()) {
        const Flight flight = flights.front();
        flights.erase(flights.begin());
        const int rejected = flight.promised > 1 ? below(flight.promised) : 0;
        if (flight.stale) {
          ledger.drain(flight.q, flight.promised - rejected, below(2) ? StaleMode::kDeliver : StaleMode::kDrop);
        } else {
          ledger.commit(flight.q, flight.q - rejected, flight.promised, flight.promised - rejected);
        }
      }
      if (below(12) == 0) {
        ledger.reset();
        for (Flight& flight : flights) flight.stale = true;
      }
      int in_flight = 0, stale = 0, promised = 0;
      for (const Flight& flight : flights) {
        in_flight += flight.q, stale += flight.stale ? flight.q : 0, promised += flight.stale ? 0 : flight.promised;
      }
      CHECK_EQ(ledger.num_in_flight(), in_flight);
      CHECK_EQ(ledger.num_stale(), stale);
      CHECK_EQ(ledger.num_promised(), promised);
      CHECK(ledger.num_valid() >= 0 && ledger.num_valid() <= ledger.num_tokens());
      if (flights.empty()) CHECK(ledger.num_computed() < ledger.num_tokens());
    }
  }
}
