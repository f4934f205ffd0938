# SPDX-License-Identifier: Apache-2.0
# Compiles planner/frontend/onnx/schema/onnx.proto with protoc-c. Sets XM_ONNX_SOURCES; the header is planner/frontend/onnx/schema/onnx.pb-c.h below
# the generated files.
set(XM_ONNX_DIR ${PROJECT_BINARY_DIR}/generated/planner/frontend/onnx/schema)
set(XM_ONNX_SOURCES ${XM_ONNX_DIR}/onnx.pb-c.c)
file(MAKE_DIRECTORY ${XM_ONNX_DIR})
add_custom_command(
    OUTPUT ${XM_ONNX_DIR}/onnx.pb-c.c ${XM_ONNX_DIR}/onnx.pb-c.h
    COMMAND ${PROTOC_C} --c_out=${XM_ONNX_DIR} --proto_path=${PROJECT_SOURCE_DIR}/planner/frontend/onnx/schema
            ${PROJECT_SOURCE_DIR}/planner/frontend/onnx/schema/onnx.proto
    DEPENDS ${PROJECT_SOURCE_DIR}/planner/frontend/onnx/schema/onnx.proto
    COMMENT "Compiling ONNX's schema")
# For clang-tidy, which needs the header and no build.
add_custom_target(xm_generated DEPENDS ${XM_ONNX_SOURCES})
# Not ours to make stricter.
set_source_files_properties(${XM_ONNX_SOURCES} PROPERTIES COMPILE_OPTIONS "-w")
