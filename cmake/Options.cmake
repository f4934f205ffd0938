# SPDX-License-Identifier: Apache-2.0
# Compiler settings shared by every target, and the sanitizer / coverage switches the presets set.
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
endif()

# Installed commands find their libraries wherever the prefix is moved to.
set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")

# What ccache has of an earlier build, of this clone or another, is not compiled again.
find_program(XM_CCACHE ccache)
if(XM_CCACHE AND NOT CMAKE_C_COMPILER_LAUNCHER)
    set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
                                  ${XM_CCACHE})
endif()

option(XM_WERROR "Treat compiler warnings as errors" ON)
set(XM_SANITIZE "" CACHE STRING "Sanitizers to build with, e.g. address,undefined or thread")
option(XM_COVERAGE "Build with gcov instrumentation" OFF)

add_compile_definitions(_GNU_SOURCE)
add_compile_options(-Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes
                    -Wwrite-strings -Wpointer-arith -Wformat=2 -Wundef)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    # Sentences are cut at the size of their buffer on purpose.
    add_compile_options(-Wno-format-truncation)
endif()
if(XM_WERROR)
    add_compile_options(-Werror)
endif()
if(XM_SANITIZE)
    add_compile_options(-fsanitize=${XM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${XM_SANITIZE})
endif()
if(XM_COVERAGE)
    add_compile_options(--coverage)
    add_link_options(--coverage)
endif()

set(XM_INCLUDE_DIRS ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)

# xm_room(library source…): the object library of this folder, a room of the house. Its objects are collected for the
# library that they become part of.
function(xm_room library)
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
    string(REPLACE "/" "_" name ${name})
    add_library(room_${name} OBJECT ${ARGN})
    target_include_directories(room_${name} PUBLIC ${XM_INCLUDE_DIRS})
    target_link_libraries(room_${name} PUBLIC xm_dependencies)
    set_property(GLOBAL APPEND PROPERTY XM_ROOMS_${library} $<TARGET_OBJECTS:room_${name}>)
endfunction()

# xm_rooms_library(target library): the static library of these rooms, for programs and tests of the house.
function(xm_rooms_library target library)
    get_property(objects GLOBAL PROPERTY XM_ROOMS_${library})
    add_library(${target} STATIC ${objects})
    target_include_directories(${target} PUBLIC ${XM_INCLUDE_DIRS})
    target_link_libraries(${target} PUBLIC xm_dependencies ${ARGN})
endfunction()

# Rises with each break of the binary interface (docs/abi.md).
set(XM_SOVERSION 1)

# xm_shared_library(target map): version, symbol map, install name.
function(xm_shared_library target map)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                               $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>
                               $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    # They find each other beside them wherever they are (built, installed, in the Python package), and what is not the
    # system's where it was found.
    set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN"
                          INSTALL_RPATH_USE_LINK_PATH ON VERSION ${PROJECT_VERSION} SOVERSION ${XM_SOVERSION}
                          LINK_DEPENDS ${PROJECT_SOURCE_DIR}/${map})
    target_link_options(${target} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/${map}
                        -Wl,--no-undefined)
    if(XM_SANITIZE)
        # Sanitizer run times are resolved by the executable.
        target_link_options(${target} PRIVATE -Wl,--undefined-version -Wl,-z,undefs)
    endif()
endfunction()
