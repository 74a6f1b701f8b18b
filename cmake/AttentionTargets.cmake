# Language defaults, and one function per kind of target.
include(GNUInstallDirs)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

find_package(Threads REQUIRED)
find_package(absl CONFIG REQUIRED)
if(ATTENTION_BUILD_TESTS)
  find_package(GTest CONFIG REQUIRED)
  include(GoogleTest)
endif()

# Warnings for our own sources; generated code is compiled without.
add_library(attention_warnings INTERFACE)
target_compile_options(attention_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers>)
if(ATTENTION_WERROR)
  target_compile_options(attention_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(attention_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wthread-safety>)
endif()

if(ATTENTION_SANITIZER)
  set(_flags -fsanitize=${ATTENTION_SANITIZER} -fno-omit-frame-pointer)
  if(ATTENTION_SANITIZER MATCHES "undefined")
    list(APPEND _flags -fno-sanitize-recover=all)
  endif()
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${_flags}>")
  add_link_options(${_flags})
endif()
if(ATTENTION_FUZZ)
  # Tells libFuzzer which branches an input took; the programs that are linked
  # with it are in tests/fuzz.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>")
endif()

# attention_library(NAME sched SRCS a.cc HDRS a.h DEPS attention::x) makes the
# target attention_sched and its alias attention::sched. Without SRCS it is an
# interface library.
function(attention_library)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;HDRS;DEPS" ${ARGN})
  set(target attention_${ARG_NAME})
  if(ARG_SRCS)
    add_library(${target} STATIC ${ARG_SRCS} ${ARG_HDRS})
    target_include_directories(${target} PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/attention>)
    target_link_libraries(${target} PUBLIC ${ARG_DEPS})
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:attention_warnings>)
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/attention>)
    target_link_libraries(${target} INTERFACE ${ARG_DEPS})
  endif()
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${ARG_NAME})
  add_library(attention::${ARG_NAME} ALIAS ${target})
endfunction()

# attention_binary(NAME attention-cli SRCS ... DEPS ...)
function(attention_binary)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} attention_warnings)
  if(ATTENTION_SANITIZER STREQUAL "thread")
    target_sources(${ARG_NAME} PRIVATE
      ${PROJECT_SOURCE_DIR}/tests/support/tsan_abseil.cc)
    target_link_libraries(${ARG_NAME} PRIVATE absl::synchronization
      ${CMAKE_DL_LIBS})
  endif()
  set_target_properties(${ARG_NAME} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# attention_test(NAME scheduler_test SRCS ... DEPS ...): a GoogleTest program,
# run by ctest as one test per program.
function(attention_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SRCS;DEPS;ARGS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(ATTENTION_SANITIZER)
    # Sanitizers slow programs down up to tenfold.
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")
  endif()
  attention_binary(NAME ${ARG_NAME} SRCS ${ARG_SRCS}
    DEPS ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  list(TRANSFORM ARG_SRCS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_property(GLOBAL APPEND PROPERTY ATTENTION_TEST_SOURCES ${ARG_SRCS})
  set_target_properties(${ARG_NAME} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/bin)
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} ${ARG_ARGS}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${ARG_NAME} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()

# Every *_test.cc of this folder and those below belongs to a test.
function(attention_check_tests)
  get_property(known GLOBAL PROPERTY ATTENTION_TEST_SOURCES)
  file(GLOB_RECURSE found CONFIGURE_DEPENDS
    ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cc)
  list(REMOVE_ITEM found ${known})
  if(found)
    message(FATAL_ERROR "Tests that no CMakeLists.txt names: ${found}")
  endif()
endfunction()
