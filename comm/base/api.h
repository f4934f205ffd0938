/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file api.h
 * What declarations are marked with.
 */
#pragma once

#include <crossmesh/api.h>

/** Lets the compiler check printf-style arguments. @p fmt and @p args are 1-based positions. */
#define XM_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
