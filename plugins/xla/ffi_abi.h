/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ffi_abi.h
 * The part of XLA's FFI, its C interface for custom calls, that ffi_transfer.c uses.
 *
 * Declared here by ourselves, so that no jaxlib is needed to build. Structures are those of API
 * version 0.1 and later up to the last member named. Functions of XLA_FFI_Api are found by their
 * number (xm_xla_set_functions()), because versions have inserted some between others; the first
 * one, which creates errors, has kept its place.
 *
 * Source: xla/ffi/api/c_api.h of OpenXLA; jaxlib carries a copy (jax.ffi.include_dir()).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct xla_error xla_error_t;
typedef struct xla_future xla_future_t;

enum { XLA_EXTENSION_METADATA = 1 };
enum { XLA_STAGE_EXECUTE = 3 };
enum { XLA_ATTRIBUTE_SCALAR = 3 };
enum { XLA_TYPE_S32 = 4, XLA_TYPE_S64 = 5 };
enum {
    XLA_CODE_INVALID_ARGUMENT = 3,
    XLA_CODE_DEADLINE_EXCEEDED = 4,
    XLA_CODE_NOT_FOUND = 5,
    XLA_CODE_RESOURCE_EXHAUSTED = 8,
    XLA_CODE_UNAVAILABLE = 14
};

typedef struct xla_extension {
    size_t struct_size;
    int type;
    struct xla_extension *next;
} xla_extension_t;

typedef struct xla_api_version {
    size_t struct_size;
    xla_extension_t *extensions;
    int major, minor;
} xla_api_version_t;

typedef struct xla_metadata {
    size_t struct_size;
    xla_api_version_t api_version; /* the handler fills it in */
    uint32_t traits;
} xla_metadata_t;

typedef struct xla_metadata_extension {
    xla_extension_t base;
    xla_metadata_t *metadata;
} xla_metadata_extension_t;

typedef struct xla_error_args {
    size_t struct_size;
    xla_extension_t *extensions;
    const char *message;
    int code;
} xla_error_args_t;

/* Of Future_Create (where the future is a result), Future_SetAvailable and Future_SetError. */
typedef struct xla_future_args {
    size_t struct_size;
    xla_extension_t *extensions;
    xla_future_t *future;
    xla_error_t *error; /* SetError only; it becomes the runtime's */
} xla_future_args_t;

typedef struct xla_api {
    size_t struct_size;
    xla_extension_t *extensions;
    xla_api_version_t version;
    void *internal;
    xla_error_t *(*functions[])(void *args);
} xla_api_t;

typedef struct xla_buffer {
    size_t struct_size;
    xla_extension_t *extensions;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
} xla_buffer_t;

typedef struct xla_bytes {
    const char *data;
    size_t length;
} xla_bytes_t;

typedef struct xla_scalar {
    int dtype;
    void *value;
} xla_scalar_t;

/* Arguments or results. */
typedef struct xla_buffers {
    size_t struct_size;
    xla_extension_t *extensions;
    int64_t size;
    int *types;
    xla_buffer_t **items;
} xla_buffers_t;

typedef struct xla_attributes {
    size_t struct_size;
    xla_extension_t *extensions;
    int64_t size;
    int *types;
    xla_bytes_t **names;
    void **values;
} xla_attributes_t;

typedef struct xla_call_frame {
    size_t struct_size;
    xla_extension_t *extensions;
    const xla_api_t *api;
    void *context;
    int stage;
    xla_buffers_t arguments, results;
    xla_attributes_t attributes;
    xla_future_t *future; /* out */
} xla_call_frame_t;
