/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the HLO export: planner/export/hlo.c (instructions), planner/export/hlo_loops.c
 * (what loops carry).
 */
#pragma once

#include "planner/export/hlo.h"
#include "planner/export/spec.h"
#include "planner/frontend/hlo.h"

/* Replaces `length` bytes at `at` by a text. */
typedef struct ap_hlo_edit {
    size_t at, length;
    int number; /* edits at one place stay in the order they were made in */
    char *text;
} ap_hlo_edit_t;

typedef struct ap_hlo_exporter {
    const ap_shard_solution_t *solution;
    const hlo_source_t *source;
    ap_export_mesh_t mesh;
    const hlo_module_t *module;
    int *instances; /* indices, by place in the text */
    ap_hlo_edit_t *edits;
    int edit_count;
    size_t edit_room;
} ap_hlo_exporter_t;

/* Text that is made to measure; NULL without memory. */
char *ap_hlo_print(const char *format, ...) XM_PRINTF(1, 2);

/* Replaces a part of the text. Takes over `text`, also when it fails; NULL is no memory. */
xm_status_t ap_hlo_edit(ap_hlo_exporter_t *e, size_t at, size_t length, char *text);

/* Writes or replaces the annotation of an instruction. */
xm_status_t ap_hlo_annotate(ap_hlo_exporter_t *e, const hlo_instruction_t *of,
                            const char *sharding);

/* The names of an instruction's operands, and its type, as they stand in the text. */
xm_status_t ap_hlo_operand_names(const ap_hlo_exporter_t *e, const hlo_instruction_t *of,
                                 hlo_slice_t *names);
hlo_slice_t ap_hlo_type_text(const ap_hlo_exporter_t *e, const hlo_instruction_t *of);

/* Where an instruction begins, with the word ROOT in front of its name. */
size_t ap_hlo_start(const hlo_text_t *text, size_t at);

/* Gives a loop and its computations the sharding of what it carries, and pins what goes in and what
 * the body returns to it. */
xm_status_t ap_hlo_annotate_loop(ap_hlo_exporter_t *e, const hlo_computation_t *in,
                                 const hlo_instruction_t *of);

/* Pins an array that is taken out of a loop's state or result to the sharding that it is carried
 * in, and what comes through an optimisation barrier to `spec`. */
xm_status_t ap_hlo_pin_carried(ap_hlo_exporter_t *e, const hlo_computation_t *in,
                               const hlo_instruction_t *of, ap_spec_t spec);
