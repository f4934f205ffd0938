# SPDX-License-Identifier: Apache-2.0
# Every library comes from packaging/debian-packages.txt.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(UCX REQUIRED IMPORTED_TARGET ucx>=1.13)
pkg_check_modules(IBVERBS REQUIRED IMPORTED_TARGET libibverbs>=1.11)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc>=2.7)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson>=2.13)
pkg_check_modules(POPT REQUIRED IMPORTED_TARGET popt)
pkg_check_modules(YAJL REQUIRED IMPORTED_TARGET yajl>=2.1)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash>=0.8)
# Where the library has it, the variant for the widest vectors of the processor at hand: three times as fast.
include(CheckSymbolExists)
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::XXHASH)
check_symbol_exists(XXH3_64bits_dispatch xxh_x86dispatch.h XM_HAVE_XXH_DISPATCH)
unset(CMAKE_REQUIRED_LIBRARIES)
if(XM_HAVE_XXH_DISPATCH)
    target_compile_definitions(PkgConfig::XXHASH INTERFACE XM_HAVE_XXH_DISPATCH)
endif()
pkg_check_modules(NETTLE REQUIRED IMPORTED_TARGET nettle>=3.7)
pkg_check_modules(PROTOBUF_C REQUIRED IMPORTED_TARGET libprotobuf-c>=1.4)
find_program(PROTOC_C protoc-c REQUIRED)
pkg_check_modules(PMIX pmix>=3.0)

add_library(xm_dependencies INTERFACE)
target_link_libraries(xm_dependencies INTERFACE PkgConfig::UCX PkgConfig::IBVERBS PkgConfig::HWLOC PkgConfig::JANSSON
                      PkgConfig::XXHASH PkgConfig::YAJL PkgConfig::ZLIB PkgConfig::NETTLE PkgConfig::PROTOBUF_C Threads::Threads m dl)
