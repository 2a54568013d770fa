#include "kernels/program.h"

#include <time.h>

#include <stdexcept>
#include <string>

#include "kernels/threads.h"

namespace headrace::kernels {
namespace {

double seconds_on(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

Program::Program(StepSizes capacity) : capacity_(capacity) {
  if (capacity.tokens < 1 || capacity.logits < 1 || capacity.tokens == capacity.logits)
    throw std::invalid_argument("capacity: tokens and logits must be positive and differ");
}

void Program::input(std::size_t index, const void* captured) {
  if (inputs_.size() <= index) inputs_.resize(index + 1, nullptr);
  inputs_[index] = captured;
}

Program*& Program::recording() {
  thread_local Program* program = nullptr;
  return program;
}

std::int64_t Program::Replay::rows(std::int64_t captured) const {
  if (captured == program.capacity_.tokens) return sizes.tokens;
  if (captured == program.capacity_.logits) return sizes.logits;
  throw std::invalid_argument("capture: a call over " + std::to_string(captured) +
                              " rows, which is neither the step's tokens nor its logits rows");
}

void Program::require_room(const StepSizes& sizes, const std::vector<const void*>& inputs) const {
  if (sizes.tokens > capacity_.tokens || sizes.logits > capacity_.logits || inputs.size() != inputs_.size())
    throw std::invalid_argument("step: exceeds what was captured");
}

void Program::run(const StepSizes& sizes, const std::vector<const void*>& inputs) const {
  require_room(sizes, inputs);
  const Replay replay{*this, sizes, inputs};
  for (const Call& call : calls_) call.run(replay);
}

std::vector<std::string> Program::names() const {
  std::vector<std::string> names;
  for (const Call& call : calls_) names.push_back(call.name);
  return names;
}

std::vector<double> Program::timed_run(const StepSizes& sizes, const std::vector<const void*>& inputs) const {
  require_room(sizes, inputs);
  const Replay replay{*this, sizes, inputs};
  const clockid_t clock = num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  std::vector<double> seconds;
  for (const Call& call : calls_) {
    const double start = seconds_on(clock);
    call.run(replay);
    seconds.push_back(seconds_on(clock) - start);
  }
  return seconds;
}

}  // namespace headrace::kernels
