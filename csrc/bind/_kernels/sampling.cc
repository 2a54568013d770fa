#include "kernels/sampling.h"

#include "bind/_kernels/arrays.h"
#include "kernels/rules.h"

namespace headrace::bind {
namespace {

kernels::RaggedIds ragged(const Ints<1>& offsets, const Ints<1>& ids, std::int64_t rows, std::int64_t vocab,
                          const char* name) {
  require_offsets(offsets, rows, size_of(ids, 0), name);
  require_range(ids.data(), offsets.data()[rows], 0, vocab, name);
  return {offsets.data(), ids.data()};
}

void apply_rules(FloatsOut<2> logits, Ints<1> bias_offsets, Ints<1> bias_ids, Floats<1> bias_values,
                 Ints<1> allow_offsets, Ints<1> allow_ids, Ints<1> prompt_offsets, Ints<1> prompt_ids,
                 Ints<1> output_offsets, Ints<1> output_ids, Floats<1> repetition, Floats<1> presence,
                 Floats<1> frequency, Ints<1> ban_offsets, Ints<1> ban_ids) {
  const std::int64_t rows = size_of(logits, 0), vocab = size_of(logits, 1);
  require_size(bias_values, 0, size_of(bias_ids, 0), "bias_values");
  require_size(repetition, 0, rows, "repetition");
  require_size(presence, 0, rows, "presence");
  require_size(frequency, 0, rows, "frequency");
  const kernels::RuleArgs args{logits.data(),
                               rows,
                               vocab,
                               ragged(allow_offsets, allow_ids, rows, vocab, "allow"),
                               ragged(bias_offsets, bias_ids, rows, vocab, "bias"),
                               ragged(prompt_offsets, prompt_ids, rows, vocab, "prompt"),
                               ragged(output_offsets, output_ids, rows, vocab, "output"),
                               ragged(ban_offsets, ban_ids, rows, vocab, "ban"),
                               bias_values.data(),
                               repetition.data(),
                               presence.data(),
                               frequency.data()};
  const nb::gil_scoped_release unlocked;
  kernels::apply_rules(args);
}

void sample(Floats<2> logits, Floats<1> temperature, Ints<1> top_k, Floats<1> top_p, Floats<1> min_p, Longs seed,
            Longs position, Array<std::int32_t, 1> out) {
  const std::int64_t rows = size_of(logits, 0);
  require_size(temperature, 0, rows, "temperature");
  require_size(top_k, 0, rows, "top_k");
  require_size(top_p, 0, rows, "top_p");
  require_size(min_p, 0, rows, "min_p");
  require_size(seed, 0, rows, "seed");
  require_size(position, 0, rows, "position");
  require_size(out, 0, rows, "out");
  const kernels::SampleArgs args{logits.data(), rows,         size_of(logits, 1), temperature.data(), top_k.data(),
                                 top_p.data(),  min_p.data(), seed.data(),        position.data(),    out.data()};
  const nb::gil_scoped_release unlocked;
  kernels::sample(args);
}

void gather_logprobs(Floats<2> logits, Ints<1> ids, FloatsOut<1> chosen, Array<std::int32_t, 1> rank,
                     Array<std::int32_t, 2> top_ids, FloatsOut<2> top_values) {
  const std::int64_t rows = size_of(logits, 0), vocab = size_of(logits, 1), n = size_of(top_ids, 1);
  require_size(ids, 0, rows, "ids");
  require_size(chosen, 0, rows, "chosen");
  require_size(rank, 0, rows, "rank");
  require_size(top_ids, 0, rows, "top_ids");
  require_size(top_values, 0, rows, "top_values");
  require_size(top_values, 1, n, "top_values");
  require(n <= vocab, "n: more log-probabilities than the vocabulary has ids");
  require_range(ids.data(), rows, -1, vocab, "ids");
  const kernels::LogprobArgs args{logits.data(),  ids.data(),       rows, vocab, n, chosen.data(), rank.data(),
                                  top_ids.data(), top_values.data()};
  const nb::gil_scoped_release unlocked;
  kernels::gather_logprobs(args);
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("apply_rules", &apply_rules, nb::arg("logits").noconvert(), nb::arg("bias_offsets").noconvert(),
        nb::arg("bias_ids").noconvert(), nb::arg("bias_values").noconvert(), nb::arg("allow_offsets").noconvert(),
        nb::arg("allow_ids").noconvert(), nb::arg("prompt_offsets").noconvert(), nb::arg("prompt_ids").noconvert(),
        nb::arg("output_offsets").noconvert(), nb::arg("output_ids").noconvert(), nb::arg("repetition").noconvert(),
        nb::arg("presence").noconvert(), nb::arg("frequency").noconvert(), nb::arg("ban_offsets").noconvert(),
        nb::arg("ban_ids").noconvert(), "Changes logits (R, V) in place: allow, bias, penalties, ban.");
  m.def("sample", &sample, nb::arg("logits").noconvert(), nb::arg("temperature").noconvert(),
        nb::arg("top_k").noconvert(), nb::arg("top_p").noconvert(), nb::arg("min_p").noconvert(),
        nb::arg("seed").noconvert(), nb::arg("position").noconvert(), nb::arg("out").noconvert(),
        "out (R) = one drawn id per row of logits (R, V), or -1.");
  m.def("gather_logprobs", &gather_logprobs, nb::arg("logits").noconvert(), nb::arg("ids").noconvert(),
        nb::arg("chosen").noconvert(), nb::arg("rank").noconvert(), nb::arg("top_ids").noconvert(),
        nb::arg("top_values").noconvert(), "Log-softmax of logits (R, V) at ids (R) and of the best (R, n).");
}

}  // namespace headrace::bind
