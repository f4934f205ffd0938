# SPDX-License-Identifier: Apache-2.0
# What is installed. Components are the Debian packages of cmake/Packages.cmake: runtime, dev, tools, python, mpi.
include(CMakePackageConfigHelpers)

set_target_properties(autopar_lib PROPERTIES EXPORT_NAME autopar)
install(TARGETS crossmesh autopar_lib EXPORT crossmeshTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev)
# NCCL and JAX open these by their names, so they lie where libraries do.
install(TARGETS nccl_net crossmesh_xla LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime)
set(commands autopar reshard-bench transport-bench collective-bench pipeline-bench emulated-cluster)
install(TARGETS ${commands} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
list(TRANSFORM commands REPLACE "(.+)" "docs/man/\\1.1" OUTPUT_VARIABLE pages)
install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
if(TARGET autopar-probe-mpi)
    install(TARGETS autopar-probe-mpi RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT mpi)
    install(TARGETS crossmesh_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT mpi)
    install(FILES docs/man/autopar-probe-mpi.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT mpi)
endif()
# The public headers, and no others.
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev FILES_MATCHING PATTERN *.h)
install(FILES ${PROJECT_BINARY_DIR}/generated/crossmesh/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/crossmesh COMPONENT dev)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/crossmesh)
install(EXPORT crossmeshTargets NAMESPACE crossmesh:: FILE crossmeshTargets.cmake DESTINATION ${package} COMPONENT dev)
configure_package_config_file(cmake/crossmeshConfig.cmake.in crossmeshConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(crossmeshConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/crossmeshConfig.cmake
              ${PROJECT_BINARY_DIR}/crossmeshConfigVersion.cmake
        DESTINATION ${package} COMPONENT dev)

function(xm_pkg_config name description requires)
    set(XM_PC_NAME ${name})
    set(XM_PC_DESCRIPTION ${description})
    set(XM_PC_REQUIRES ${requires})
    file(RELATIVE_PATH XM_PC_UP /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
    string(REGEX REPLACE "/$" "" XM_PC_UP ${XM_PC_UP})
    configure_file(cmake/crossmesh.pc.in ${name}.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
endfunction()
xm_pkg_config(crossmesh "Cross-mesh resharding transport" "")
xm_pkg_config(autopar "Planner of inter- and intra-operator parallelism" "")

install(FILES LICENSE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT dev)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT dev)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs COMPONENT dev
        FILES_MATCHING PATTERN *.md PATTERN *.svg PATTERN man EXCLUDE PATTERN README.md EXCLUDE)
# Of the documents that the commands write and read.
install(FILES docs/graph.schema.json docs/reshard-plan.schema.json
        DESTINATION ${CMAKE_INSTALL_DATADIR}/crossmesh/schemas COMPONENT tools)

# bash loads a command's completion by the command's name.
foreach(command ${commands})
    install(FILES packaging/completion.bash RENAME ${command}
            DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT tools)
endforeach()

# The Python package, for the interpreter of a distribution: pip's users take the wheel.
install(DIRECTORY plugins/python/src/crossmesh DESTINATION lib/python3/dist-packages COMPONENT python EXCLUDE_FROM_ALL
        FILES_MATCHING PATTERN *.py PATTERN py.typed PATTERN _commands.py EXCLUDE)

# What pip and vLLM look for.
file(CONFIGURE OUTPUT METADATA CONTENT "Metadata-Version: 2.1\nName: crossmesh\nVersion: ${PROJECT_VERSION}\n")
file(CONFIGURE OUTPUT entry_points.txt CONTENT "[vllm.general_plugins]\ncrossmesh = crossmesh.adapters.vllm:plugin\n")
install(FILES ${PROJECT_BINARY_DIR}/METADATA ${PROJECT_BINARY_DIR}/entry_points.txt COMPONENT python EXCLUDE_FROM_ALL
        DESTINATION lib/python3/dist-packages/crossmesh-${PROJECT_VERSION}.dist-info)

# Everything that the last installation has written, and nothing else.
add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -DMANIFEST=${PROJECT_BINARY_DIR}/install_manifest.txt
                  -P ${PROJECT_SOURCE_DIR}/cmake/Uninstall.cmake)
