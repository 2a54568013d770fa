# headrace_module(NAME LIBRARY): one extension module; the build writes its stub. The stubs in src/headrace are those
# files, committed so that readers and type checkers have them; `make lint` fails when they are stale.
function(headrace_module name library)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/csrc/bind/${name}/*.cc)
  nanobind_add_module(${name} NB_STATIC LTO ${sources})
  target_link_libraries(${name} PRIVATE ${library})
  nanobind_add_stub(${name}_stub MODULE ${name} OUTPUT ${CMAKE_BINARY_DIR}/stubs/${name}.pyi
                    PYTHON_PATH $<TARGET_FILE_DIR:${name}> DEPENDS ${name})
  install(TARGETS ${name} LIBRARY DESTINATION headrace)
  if(HEADRACE_INPLACE)
    add_custom_command(TARGET ${name} POST_BUILD COMMAND ${CMAKE_COMMAND} -E copy
                       $<TARGET_FILE:${name}> ${CMAKE_SOURCE_DIR}/src/headrace/)
  endif()
endfunction()

headrace_module(_core headrace_core)
headrace_module(_kernels headrace_kernels)
