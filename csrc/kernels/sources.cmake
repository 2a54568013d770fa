file(GLOB HEADRACE_KERNEL_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/csrc/kernels/*.cc)
set(HEADRACE_X86 OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(HEADRACE_X86 ON)
else()
  list(FILTER HEADRACE_KERNEL_SOURCES EXCLUDE REGEX "/avx[0-9]+\\.cc$")
endif()
add_library(headrace_kernels STATIC ${HEADRACE_KERNEL_SOURCES})
target_include_directories(headrace_kernels PUBLIC ${CMAKE_SOURCE_DIR}/csrc)
target_link_libraries(headrace_kernels PUBLIC Threads::Threads)
# Fused or not is said in the source: a contraction the compiler chose could differ from one tile shape to the next.
target_compile_options(headrace_kernels PRIVATE -ffp-contract=off -fno-math-errno)
if(HEADRACE_X86)
  target_compile_definitions(headrace_kernels PRIVATE HEADRACE_X86)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/csrc/kernels/avx2.cc PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  set_source_files_properties(${CMAKE_SOURCE_DIR}/csrc/kernels/avx512.cc PROPERTIES COMPILE_OPTIONS
                              "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vnni;-mprefer-vector-width=512")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 warns about the deliberately undefined vectors in its own intrinsics header.
    set_property(SOURCE ${CMAKE_SOURCE_DIR}/csrc/kernels/avx512.cc APPEND PROPERTY COMPILE_OPTIONS
                 "-Wno-maybe-uninitialized;-Wno-uninitialized")
  endif()
endif()
