/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file json_mutator.h
 * Mutations that leave a JSON document well-formed, so that what lies behind the JSON parser is
 * reached: a value becomes another one, vanishes, or is put in twice. Every fourth mutation is
 * libFuzzer's own, of the bytes.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* What a target's LLVMFuzzerCustomMutator returns. */
size_t json_mutate(uint8_t *data, size_t size, size_t max_size, unsigned seed);
