file(GLOB HEADRACE_KERNEL_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/csrc/kernels/*.cc)
add_library(headrace_kernels STATIC ${HEADRACE_KERNEL_SOURCES})
target_include_directories(headrace_kernels PUBLIC ${CMAKE_SOURCE_DIR}/csrc)
target_link_libraries(headrace_kernels PUBLIC Threads::Threads)
