file(GLOB HEADRACE_CORE_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/csrc/core/*.cc)
add_library(headrace_core STATIC ${HEADRACE_CORE_SOURCES})
target_include_directories(headrace_core PUBLIC ${CMAKE_SOURCE_DIR}/csrc)
