# SPDX-License-Identifier: Apache-2.0
# `cpack` in the folder of the build makes the Debian packages, one of each component of cmake/Install.cmake. The library's
# is called by its SONAME, as Debian's are.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "The crossmesh authors <crossmesh@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL runtime dev tools python)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)
# crossmesh_xla needs libcrossmesh, which lies in the same package.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})

# xm_package(component name section summary [depends]).
macro(xm_package component name section summary)
    string(TOUPPER ${component} upper)
    set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name})
    set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
    set(CPACK_DEBIAN_${upper}_DESCRIPTION "${summary}")
    set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${ARGN}")
    install(FILES LICENSE DESTINATION share/doc/${name} COMPONENT ${component} RENAME copyright EXCLUDE_FROM_ALL)
endmacro()

set(library libcrossmesh${XM_SOVERSION})
xm_package(runtime ${library} libs "cross-mesh resharding transport and parallelism planner
libcrossmesh moves sharded tensors between device meshes, libautopar plans
how a model is sharded; with the plug-ins for NCCL and JAX.")
xm_package(dev libcrossmesh-dev libdevel "headers and documentation of libcrossmesh and libautopar
For programs in C and C++, by pkg-config or CMake; examples are included."
           "${library} (= ${PROJECT_VERSION})")
xm_package(tools crossmesh-tools utils "commands that probe, plan and measure
autopar probes a cluster and plans a model's parallelism; reshard-bench,
transport-bench, collective-bench and pipeline-bench measure; emulated-cluster makes hosts.")
xm_package(python python3-crossmesh python "moves sharded tensors between device meshes, for Python
For PyTorch, JAX, NCCL, vLLM, verl and Ray, and for buffers of any library."
           "${library} (>= ${PROJECT_VERSION}), python3 (>= 3.10)")
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
include(CPack)
