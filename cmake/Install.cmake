# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)

set_target_properties(autopar_lib PROPERTIES EXPORT_NAME autopar)
install(TARGETS crossmesh autopar_lib EXPORT crossmeshTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
# NCCL opens it by its name, so it lies where libraries do.
install(TARGETS nccl_net LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS autopar reshard-bench transport-bench pipeline-bench emulated-cluster RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET autopar-probe-mpi)
    install(TARGETS autopar-probe-mpi RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    install(TARGETS crossmesh_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(FILES docs/man/autopar-probe-mpi.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
# The public headers, and no others.
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)
install(FILES ${PROJECT_BINARY_DIR}/generated/crossmesh/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/crossmesh)

install(EXPORT crossmeshTargets NAMESPACE crossmesh:: FILE crossmeshTargets.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/crossmesh)
configure_package_config_file(cmake/crossmeshConfig.cmake.in crossmeshConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/crossmesh)
write_basic_package_version_file(crossmeshConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/crossmeshConfig.cmake
              ${PROJECT_BINARY_DIR}/crossmeshConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/crossmesh)

function(xm_pkg_config name description requires)
    set(XM_PC_NAME ${name})
    set(XM_PC_DESCRIPTION ${description})
    set(XM_PC_REQUIRES ${requires})
    file(RELATIVE_PATH XM_PC_UP /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
    string(REGEX REPLACE "/$" "" XM_PC_UP ${XM_PC_UP})
    configure_file(cmake/crossmesh.pc.in ${name}.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
xm_pkg_config(crossmesh "Cross-mesh resharding transport" "")
xm_pkg_config(autopar "Planner of inter- and intra-operator parallelism" "")
install(FILES docs/man/autopar.1 docs/man/emulated-cluster.1 docs/man/reshard-bench.1
        docs/man/pipeline-bench.1 docs/man/transport-bench.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
# bash loads a command's completion by the command's name.
foreach(command autopar reshard-bench transport-bench pipeline-bench emulated-cluster)
    install(FILES packaging/completion.bash RENAME ${command}
            DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endforeach()
