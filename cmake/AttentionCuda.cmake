# Finds CUDA and sets ATTENTION_HAVE_CUDA.
set(ATTENTION_HAVE_CUDA OFF)
if(NOT ATTENTION_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  # sm_75 is the oldest that CUDA 13 knows; release images name every
  # generation (see deploy/docker).
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 90a-real CACHE STRING
      "GPU architectures to compile for")
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit 12.4 REQUIRED)
    set(ATTENTION_HAVE_CUDA ON)
  elseif(ATTENTION_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ATTENTION_CUDA=ON, but no CUDA compiler was found")
  endif()
endif()
message(STATUS "CUDA backend: ${ATTENTION_HAVE_CUDA}")

# Options for a target with CUDA sources. CMake 3.25 drops
# CMAKE_CUDA_STANDARD 20 silently, hence the explicit flag. A spill is an error:
# kernels are written to a register budget, that of sm_75 to sm_90. From sm_100
# on some decode kernels spill 8 to 352 bytes, which is let pass.
function(attention_cuda_options target)
  set(spills -Xptxas=-warn-spills)
  if("${CMAKE_CUDA_ARCHITECTURES}" MATCHES "(^|;)1[0-9][0-9]")
    set(spills)
  endif()
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --expt-relaxed-constexpr
      ${spills} -Werror=all-warnings -Xcompiler=-Wall>)
  set_target_properties(${target} PROPERTIES CUDA_SEPARABLE_COMPILATION OFF
    CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED OFF CUDA_RUNTIME_LIBRARY Static)
endfunction()

# Options for a target whose CUDA sources run on compute capability 9.0 alone.
# Serialised warpgroup products are an error as well.
function(attention_sm90_options target)
  attention_cuda_options(${target})
  set(launcher ${PROJECT_SOURCE_DIR}/cmake/refuse_serialised_wgmma.sh
    ${CMAKE_CUDA_COMPILER_LAUNCHER})
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES 90a-real
    CUDA_COMPILER_LAUNCHER "${launcher}")
endfunction()
