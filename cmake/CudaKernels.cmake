# SPDX-License-Identifier: Apache-2.0
# The copy kernels of CUDA devices: compiled by nvcc where it is found, else left out. Nothing else of CUDA is needed
# to build, and nothing of it is linked.
option(XM_CUDA_KERNELS "Compile the copy kernels where nvcc is found" ON)
set(XM_CUDA_ARCHITECTURES 70 75 80 86 89 90 100 120 CACHE STRING
    "Devices to have machine code for; those that nvcc does not know are left out")
if(XM_CUDA_KERNELS)
    find_program(XM_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda/bin)
endif()

# xm_cuda_kernels(source output): a C file that holds the kernels.
function(xm_cuda_kernels source output)
    set(embed -DNAME=xm_cuda_kernels -DHEADER=comm/memory/cuda_private.h -DOUTPUT=${output}
              -P ${PROJECT_SOURCE_DIR}/cmake/EmbedFile.cmake)
    if(XM_CUDA_KERNELS AND XM_NVCC)
        # Machine code for what this nvcc knows of these, and PTX of the oldest for all that comes later.
        execute_process(COMMAND ${XM_NVCC} --list-gpu-code OUTPUT_VARIABLE known RESULT_VARIABLE failed)
        foreach(number ${XM_CUDA_ARCHITECTURES})
            if(known MATCHES "sm_${number}\n")
                list(APPEND targets -gencode arch=compute_${number},code=sm_${number})
                if(NOT oldest)
                    set(oldest ${number})
                endif()
            endif()
        endforeach()
    endif()
    if(oldest)
        list(APPEND targets -gencode arch=compute_${oldest},code=compute_${oldest})
        message(STATUS "CUDA kernels: ${XM_NVCC}")
        add_custom_command(OUTPUT ${output}
            COMMAND ${XM_NVCC} -fatbin -Xfatbin=-compress-all -O3 -std=c++17 ${targets} -I ${PROJECT_SOURCE_DIR}
                    -o ${output}.fatbin ${source}
            COMMAND ${CMAKE_COMMAND} -DINPUT=${output}.fatbin ${embed}
            DEPENDS ${source} ${PROJECT_SOURCE_DIR}/comm/memory/cuda_kernel.h ${PROJECT_SOURCE_DIR}/cmake/EmbedFile.cmake
            COMMENT "Compiling CUDA kernels" VERBATIM)
    else()
        message(STATUS "CUDA kernels: left out, no usable nvcc")
        add_custom_command(OUTPUT ${output} COMMAND ${CMAKE_COMMAND} ${embed}
            DEPENDS ${PROJECT_SOURCE_DIR}/cmake/EmbedFile.cmake VERBATIM)
    endif()
endfunction()
