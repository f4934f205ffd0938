/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/frontend/hlo/source.h
 * Where a graph's operators and tensors stand in the HLO text they were read from.
 *
 * The front end notes a *instance* each time it looks at an instruction: a computation that is
 * called twice has two instances for each of its instructions, told apart by their *context*, the
 * call they belong to. The way back into the runtime (planner/export/hlo.h, planner/export/jax.h)
 * starts from here.
 *
 * Offsets are into the text; the text itself is not kept.
 */
#pragma once

#include "planner/frontend/hlo/module.h"

enum { HLO_INSTANCE_OPCODE = 24, HLO_INSTANCE_NONE = -1 };

/** One look at an instruction. */
typedef struct hlo_instance {
    size_t at;     /**< offset of the instruction's name */
    int64_t order; /**< number at the end of its name: the order in which it was written */
    int context;
    int tensor;   /**< its value; HLO_INSTANCE_NONE for a tuple, and for what needs no data */
    int first_op; /**< operators of the graph made for it, in a row */
    int op_count;
    int operand_count;
    int *operands; /**< tensors, as `tensor` */
    char opcode[HLO_INSTANCE_OPCODE];
} hlo_instance_t;

/** One run of a computation. */
typedef struct hlo_context {
    int parent;    /**< context of the caller; HLO_INSTANCE_NONE for the entry */
    int64_t order; /**< of the calling instruction */
    size_t at;     /**< the calling instruction */
    bool called;   /**< by a call or a fusion, or the entry */
    bool loop;     /**< called, directly or not, by a loop or a conditional */
} hlo_context_t;

/** An array of a loop's state; HLO_INSTANCE_NONE for tensors that need no data. */
typedef struct hlo_carried {
    ap_shape_t shape;
    int outside;  /**< tensor that goes in */
    int inside;   /**< what the body reads: `outside` where the body passes it on unchanged */
    int returned; /**< by the body, for the next round */
    int after;    /**< what is left of it after the loop */
} hlo_carried_t;

/** A loop, each time that it is looked at. */
typedef struct hlo_loop {
    size_t at; /**< the instruction */
    int64_t order;
    int context;                                 /**< that it stands in */
    int body;                                    /**< context of its body's instructions */
    int body_computation, condition_computation; /**< in the module */
    int first_op, end_op;                        /**< operators of the graph made for its body */
    int count;
    hlo_carried_t *state; /**< array leaves, in order */
} hlo_loop_t;

/** A parameter of the entry, or a leaf of its result. */
typedef struct hlo_port {
    char *name; /**< of a parameter; NULL for results */
    ap_shape_t shape;
    ap_dtype_t dtype;
    int tensor; /**< HLO_INSTANCE_NONE: not used, or needs no data */
} hlo_port_t;

typedef struct hlo_source {
    xm_arena_t arena; /**< what the lists point at */
    int instance_count;
    size_t instance_room;
    hlo_instance_t *instances;
    int context_count;
    size_t context_room;
    hlo_context_t *contexts;
    int loop_count;
    size_t loop_room;
    hlo_loop_t *loops; /**< outer before inner */
    int parameter_count;
    size_t parameter_room;
    hlo_port_t *parameters; /**< array leaves, in order */
    int result_count;
    size_t result_room;
    hlo_port_t *results; /**< array leaves, in order */
} hlo_source_t;

/** Adds a context and writes its number; @p of is the calling instruction, NULL for the entry. */
xm_status_t hlo_source_enter(hlo_source_t *source, int parent, const hlo_instruction_t *of,
                             int *context);

/** Adds the instance of an instruction; name and opcode of @p instance are filled in here, and its
 * operands copied. */
xm_status_t hlo_source_add(hlo_source_t *source, const hlo_instruction_t *of,
                           const hlo_instance_t *instance);

/** Adds a loop, whose order is filled in and whose state is copied here; writes its number. */
xm_status_t hlo_source_add_loop(hlo_source_t *source, const hlo_instruction_t *of,
                                const hlo_loop_t *loop, int *number);

/** Adds a parameter (with a name) or a leaf of the result (without). */
xm_status_t hlo_source_add_port(hlo_source_t *source, const char *name, const operand_type_t *type,
                                int tensor);

/** Whether instance @p a runs before instance @p b in the order in which the program was written.
 */
bool hlo_source_before(const hlo_source_t *source, const hlo_instance_t *a,
                       const hlo_instance_t *b);

/** The innermost loop whose body a context belongs to by calls alone; NULL outside of loops, and in
 * branches of conditionals. */
const hlo_loop_t *hlo_source_loop_of(const hlo_source_t *source, int context);

/** The same for two loops; an outer one is before those inside. */
bool hlo_source_loop_before(const hlo_source_t *source, const hlo_loop_t *a, const hlo_loop_t *b);

/** @p source is an hlo_source_t of malloc(); see ap_frontend_notes_keep(). */
void hlo_source_destroy(void *source);
