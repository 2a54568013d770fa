# headrace_module(NAME LIBRARY): one extension module, its .pyi stub written by the build beside it.
function(headrace_module name library)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/csrc/bind/${name}/*.cc)
  nanobind_add_module(${name} NB_STATIC STABLE_ABI LTO ${sources})
  target_link_libraries(${name} PRIVATE ${library})
  nanobind_add_stub(${name}_stub MODULE ${name} OUTPUT ${CMAKE_BINARY_DIR}/stubs/${name}.pyi
                    PYTHON_PATH $<TARGET_FILE_DIR:${name}> DEPENDS ${name})
  install(TARGETS ${name} LIBRARY DESTINATION headrace)
  install(FILES ${CMAKE_BINARY_DIR}/stubs/${name}.pyi DESTINATION headrace)
  if(HEADRACE_INPLACE)
    add_custom_command(TARGET ${name} POST_BUILD COMMAND ${CMAKE_COMMAND} -E copy
                       $<TARGET_FILE:${name}> ${CMAKE_SOURCE_DIR}/src/headrace/)
  endif()
endfunction()

headrace_module(_core headrace_core)
headrace_module(_kernels headrace_kernels)
