# Links gRPC, protobuf and Abseil statically where their archives are installed.
#
# Programs then answer small requests about a seventh sooner: calls do not go
# through the tables of twenty shared libraries, whose pages are seldom in the
# processor's caches (server/bench/RESULTS.md).

# Makes the imported targets of these packages, all or none, name the archive
# beside their shared library.
function(use_static_libraries)
  get_property(imported DIRECTORY PROPERTY IMPORTED_TARGETS)
  list(FILTER imported INCLUDE REGEX "^(gRPC|protobuf|absl|re2)::")
  set(changes)
  foreach(target ${imported})
    get_target_property(type ${target} TYPE)
    if(NOT type MATCHES "^(SHARED|UNKNOWN)_LIBRARY$")
      continue()
    endif()
    foreach(property IMPORTED_LOCATION IMPORTED_LOCATION_NONE
        IMPORTED_LOCATION_RELEASE)
      get_target_property(location ${target} ${property})
      if(NOT location MATCHES "\\.so[.0-9]*$")
        continue()
      endif()
      string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${location}")
      if(NOT EXISTS "${archive}")
        message(STATUS "Not linking statically: there is no ${archive}")
        return()
      endif()
      list(APPEND changes ${target} ${property} ${archive})
    endforeach()
  endforeach()
  while(changes)
    list(POP_FRONT changes target property archive)
    set_target_properties(${target} PROPERTIES ${property} ${archive})
  endwhile()
endfunction()
