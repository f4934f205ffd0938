/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file params.h
 * What a function of the door does first with what it is given: required pointers, and structs that
 * callers of another version have made.
 *
 * A params struct begins with `size_t struct_size`, which its _INIT macro sets to what the caller's
 * compiler knew. The one rule for all of them (docs/abi.md): what both sides know is taken over,
 * what only the library knows keeps its default, and what only the caller knows must be zero.
 *
 * Threads: any.
 */
#pragma once

#include <stddef.h>

#include "comm/base/status.h"

/**
 * Copies the caller's struct @p given over @p own, which has @p size bytes and its defaults; after
 * that own's struct_size is @p size. Fails with a sentence that begins with @p function when
 * @p given is NULL, when its struct_size cannot be (it names @p type and both sizes), and when a
 * newer caller asks for something that this library does not know.
 */
xm_status_t xm_params_copy(const char *function, const char *type, void *own, size_t size,
                           const void *given);

/** Declares `own` as a complete struct of @p type and copies @p given over its defaults: a status.
 */
#define XM_PARAMS_COPY(type, own, given)                                                           \
    xm_params_copy(__func__, #type, (own), sizeof(type), (given))

/**
 * The other direction: copies what the library has filled in, @p size bytes at @p own, to the
 * caller's struct @p given as far as there is room. What only the caller knows is zeroed.
 */
xm_status_t xm_info_copy(const char *function, const char *type, void *given, const void *own,
                         size_t size);

/** Sets the sentence "function: argument is NULL", of the argument at @p index of a list with
 * commas in between; returns true. */
bool xm_report_null(const char *function, const char *arguments, size_t index);

/** True, with a sentence, when a required argument of a function is NULL. */
static inline bool xm_is_null(const char *function, const char *argument, const void *pointer)
{
    return pointer == NULL && xm_report_null(function, argument, 0);
}

/** The same for an argument of this function, which is named as it stands here. */
#define XM_IS_NULL(argument) xm_is_null(__func__, #argument, (argument))

/** Returns XM_ERR_INVALID_ARGUMENT, with a sentence, when one of these arguments is NULL. */
#define XM_NEED_ARGUMENTS(...)                                                                     \
    do {                                                                                           \
        const void *const xm_given[] = {__VA_ARGS__};                                              \
        for (size_t xm_i = 0; xm_i < sizeof(xm_given) / sizeof(xm_given[0]); ++xm_i) {             \
            if (xm_given[xm_i] == NULL) {                                                          \
                (void)xm_report_null(__func__, #__VA_ARGS__, xm_i);                                \
                return XM_ERR_INVALID_ARGUMENT;                                                    \
            }                                                                                      \
        }                                                                                          \
    } while (0)
