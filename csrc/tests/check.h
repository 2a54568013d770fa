// The smallest test harness that serves us: TEST(name) registers a case, CHECK and CHECK_EQ report file and line
// and fail the case, CHECK_THROWS expects an exception. main.cc runs all cases, or those whose name contains argv[1].
#pragma once

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace headrace::testing {

struct Case {
  std::string name;
  std::function<void()> body;
};

std::vector<Case>& cases();

struct Registration {
  Registration(const char* name, std::function<void()> body) { cases().push_back({name, std::move(body)}); }
};

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

template <typename T>
std::string show(const T& value) {
  std::ostringstream out;
  if constexpr (requires { out << value; }) {
    out << value;
  } else if constexpr (requires { value.begin(); }) {
    out << "[";
    for (const auto& item : value) out << show(item) << " ";
    out << "]";
  } else {
    out << "<value>";
  }
  return out.str();
}

template <typename A, typename B>
void check_equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (!(a == b)) fail(file, line, std::string(text) + ": " + show(a) + " != " + show(b));
}

}  // namespace headrace::testing

#define TEST(name)                                                                         \
  static void test_##name();                                                               \
  static const ::headrace::testing::Registration registration_##name(#name, &test_##name); \
  static void test_##name()
#define CHECK(condition) \
  if (!(condition)) ::headrace::testing::fail(__FILE__, __LINE__, #condition)
#define CHECK_EQ(a, b) ::headrace::testing::check_equal((a), (b), #a " == " #b, __FILE__, __LINE__)
#define CHECK_THROWS(type, expression)                                                               \
  do {                                                                                               \
    bool thrown = false;                                                                             \
    try {                                                                                            \
      (void)(expression);                                                                            \
    } catch (const type&) {                                                                          \
      thrown = true;                                                                                 \
    }                                                                                                \
    if (!thrown) ::headrace::testing::fail(__FILE__, __LINE__, #expression " did not throw " #type); \
  } while (false)
