// A captured step: a list of kernel calls with their buffers, recorded once and replayed without Python.
//
// Recorded calls hold the pointers they were made with. Two things differ at each replay: how many rows there are
// (a call over `capacity.tokens` rows is replayed over the step's tokens, one over `capacity.logits` rows over its
// logits rows) and where the step's inputs lie (a pointer declared with input() is replaced). Everything else,
// buffers, weights and caches, must outlive the program. Replaying gives the bits that the same calls would give.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/describe.h"
#include "kernels/execute.h"

namespace headrace::kernels {

struct StepSizes {
  std::int64_t tokens = 0, logits = 0, slices = 0, max_blocks = 0;
};

class Program {
 public:
  // The capacities must differ from each other, so that a row count tells which it is.
  explicit Program(StepSizes capacity);

  // Declares `captured` to be input number `index`.
  void input(std::size_t index, const void* captured);
  std::size_t num_inputs() const { return inputs_.size(); }
  std::size_t size() const { return calls_.size(); }

  // Replays all calls over a step of these sizes. Throws std::invalid_argument when the step exceeds the capacity or
  // an index leaves what it indexes; outputs are undefined then, caches may be half written.
  void run(const StepSizes& sizes, const std::vector<const void*>& inputs) const;

  // What each call is, in words; and the same replay, which returns the seconds of each call: by the clock,
  // or with one thread of processor time, which others on the machine do not change.
  std::vector<std::string> names() const;
  std::vector<double> timed_run(const StepSizes& sizes, const std::vector<const void*>& inputs) const;

  // Adds a call. Throws std::invalid_argument when its number of rows is neither of the capacities: it could not be
  // replayed over another step.
  template <typename Args>
  void record(const Args& args) {
    Args probe = args;
    Replay{*this, capacity_, inputs_}.rebind(probe);
    const auto call = [args](const Replay& replay) {
      Args live = args;
      replay.rebind(live);
      check(live);
      execute(live);
    };
    calls_.push_back({describe(args), call});
  }

  // The program that this thread is recording into, or null.
  static Program*& recording();

 private:
  // What a replay puts in place of what was captured.
  struct Replay {
    const Program& program;
    const StepSizes& sizes;
    const std::vector<const void*>& inputs;

    std::int64_t rows(std::int64_t captured) const;
    template <typename T>
    const T* at(const T* captured) const {
      for (std::size_t i = 0; i < program.inputs_.size(); ++i)
        if (program.inputs_[i] == captured) return static_cast<const T*>(inputs[i]);
      return captured;
    }
    void rebind(LinearArgs& a) const { a.tokens = rows(a.tokens); }
    void rebind(EmbeddingArgs& a) const { a.count = rows(a.count), a.ids = at(a.ids); }
    void rebind(NormArgs& a) const { a.rows = rows(a.rows); }
    void rebind(GateArgs& a) const { a.tokens = rows(a.tokens); }
    void rebind(AxpyArgs& a) const { a.rows = rows(a.rows); }
    void rebind(HeadsArgs& a) const { a.tokens = rows(a.tokens), a.positions = at(a.positions), a.slots = at(a.slots); }
    void rebind(GatherRowsArgs& a) const { a.count = rows(a.count), a.tokens = rows(a.tokens), a.index = at(a.index); }
    void rebind(AttentionArgs& a) const {
      a.tokens = rows(a.tokens), a.slices = sizes.slices, a.max_blocks = sizes.max_blocks;
      a.block_table = at(a.block_table), a.query_start = at(a.query_start), a.seq_lens = at(a.seq_lens);
    }
  };

  struct Call {
    std::string name;
    std::function<void(const Replay&)> run;
  };

  void require_room(const StepSizes& sizes, const std::vector<const void*>& inputs) const;

  StepSizes capacity_;
  std::vector<const void*> inputs_;
  std::vector<Call> calls_;
};

// Runs a call now, or adds it to the program that this thread is recording.
template <typename Args>
void submit(const Args& args) {
  if (Program* program = Program::recording()) return program->record(args);
  check(args);
  execute(args);
}

}  // namespace headrace::kernels
