# SPDX-License-Identifier: Apache-2.0
# Kernels of CUDA devices: PTX that clang makes, and that a device's driver compiles for itself. Nothing of CUDA
# is needed to build, and nothing of it is linked.
option(XM_CUDA_KERNELS "Compile kernels for CUDA devices where clang is found" ON)
find_program(XM_CLANG clang)

# xm_cuda_kernels(room source name header): adds NAME, the kernels of a room, and NAME_size, which HEADER declares.
function(xm_cuda_kernels room source name header)
    set(source ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    set(output ${CMAKE_CURRENT_BINARY_DIR}/${name}.c)
    target_sources(${room} PRIVATE ${output})
    set(embed -DNAME=${name} -DHEADER=${header} -DOUTPUT=${output}
              -P ${PROJECT_SOURCE_DIR}/cmake/EmbedFile.cmake)
    set(why "left out by XM_CUDA_KERNELS")
    if(XM_CUDA_KERNELS AND XM_CLANG)
        # For devices from 7.0 on. A version of CUDA that clang finds on the machine is none of its concern.
        set(compile ${XM_CLANG} -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 -nocudainc -nocudalib
                    -Wno-unknown-cuda-version -Wall -Wextra -Werror -O3 -ffp-contract=off -S -I ${PROJECT_SOURCE_DIR})
        execute_process(COMMAND ${compile} -o ${output}.ptx ${source} RESULT_VARIABLE failed ERROR_VARIABLE said)
        string(REGEX REPLACE "\n.*" "" why "left out, ${XM_CLANG} cannot compile them: ${said}")
    elseif(XM_CUDA_KERNELS)
        set(failed 1)
        set(why "left out, there is no clang")
    endif()
    if(XM_CUDA_KERNELS AND NOT failed)
        message(STATUS "CUDA kernels of ${room}: ${XM_CLANG}")
        add_custom_command(OUTPUT ${output}
            COMMAND ${compile} -o ${output}.ptx ${source}
            COMMAND ${CMAKE_COMMAND} -DINPUT=${output}.ptx ${embed}
            DEPENDS ${source} ${PROJECT_SOURCE_DIR}/comm/memory/cuda_kernel.h ${ARGN} ${PROJECT_SOURCE_DIR}/cmake/EmbedFile.cmake
            COMMENT "Compiling CUDA kernels" VERBATIM)
    else()
        message(STATUS "CUDA kernels: ${why}")
        add_custom_command(OUTPUT ${output} COMMAND ${CMAKE_COMMAND} ${embed}
            DEPENDS ${PROJECT_SOURCE_DIR}/cmake/EmbedFile.cmake VERBATIM)
    endif()
endfunction()
