// Half precision in plain C++, for any processor. Both directions are exact where they are used.
#pragma once

#include <cstdint>

namespace headrace::kernels {

float half_to_float(std::uint16_t half);
// Rounds to nearest even; gives back the same bits for a float that came from half_to_float.
std::uint16_t float_to_half(float value);

}  // namespace headrace::kernels
