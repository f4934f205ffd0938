/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What loops carry, in the HLO export. A loop's state has one sharding for all rounds; XLA
 * propagates shardings through loops by rules of its own and would settle on others. So the loop,
 * its parameter and its root are annotated, and every array is pinned by a custom call where it
 * enters and where it is taken out.
 *
 * One text may be the body of several loops; it is annotated only if all of them carry the same.
 */

#include <stdlib.h>

#include "planner/export/export_private.h"
#include "planner/export/instance.h"

/* Whether two loops carry the same arrays in the same specs. */
static bool same_state(const ap_hlo_exporter_t *e, const hlo_loop_t *a, const hlo_loop_t *b)
{
    if (a->count != b->count) {
        return false;
    }
    for (int i = 0; i < a->count; ++i) {
        if (ap_export_instance_carried(e->solution, a, i) !=
            ap_export_instance_carried(e->solution, b, i)) {
            return false;
        }
    }
    return true;
}

/* The loop of an instruction, when all that are built from its text carry their state alike; NULL
 * otherwise. */
static const hlo_loop_t *loop_at(const ap_hlo_exporter_t *e, size_t at)
{
    const hlo_loop_t *loop = NULL;

    for (int l = 0; l < e->source->loop_count && loop == NULL; ++l) {
        loop = e->source->loops[l].at == at ? &e->source->loops[l] : NULL;
    }
    for (int l = 0; l < e->source->loop_count && loop != NULL; ++l) {
        const hlo_loop_t *other = &e->source->loops[l];
        bool related = other->at == at || other->body_computation == loop->body_computation ||
                       other->condition_computation == loop->condition_computation;

        if (related && !same_state(e, loop, other)) {
            return NULL;
        }
    }
    return loop;
}

/* Whether a loop is the first of those that share a computation with it, so that each text is
 * edited once. */
static bool is_first(const ap_hlo_exporter_t *e, const hlo_loop_t *loop, int computation)
{
    for (const hlo_loop_t *other = e->source->loops; other < loop; ++other) {
        if (other->body_computation == computation || other->condition_computation == computation) {
            return false;
        }
    }
    return true;
}

static char *state_sharding(const ap_hlo_exporter_t *e, const hlo_loop_t *loop)
{
    char *text = NULL, one[AP_HLO_SHARDING_TEXT];
    size_t size;
    FILE *stream = open_memstream(&text, &size);

    if (stream == NULL) {
        return NULL;
    }
    for (int i = 0; i < loop->count; ++i) {
        (void)fprintf(stream, "%s%s", i == 0 ? "{" : ", ",
                      ap_export_hlo_sharding(&e->mesh,
                                             ap_export_instance_carried(e->solution, loop, i),
                                             loop->state[i].shape.rank, one, sizeof(one)));
    }
    (void)fputc('}', stream);
    if (fclose(stream) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* Annotates the parameter of a computation of the loop, and what it returns if that is put together
 * there. */
static xm_status_t annotate_state(ap_hlo_exporter_t *e, const hlo_loop_t *loop, int computation,
                                  const char *sharding)
{
    const hlo_computation_t *in = &e->module->computations[computation];
    const hlo_instruction_t *root = &in->instructions[in->root];

    if (!is_first(e, loop, computation) || in->parameter_count != 1) {
        return XM_OK;
    }
    XM_TRY(ap_hlo_annotate(e, &in->instructions[in->parameters[0]], sharding));
    if (computation == loop->body_computation && hlo_slice_is(root->opcode, "tuple")) {
        XM_TRY(ap_hlo_annotate(e, root, sharding));
    }
    return XM_OK;
}

/* Pins an operand of the tuple that makes a loop's state, after the steps of its resharding. */
static xm_status_t pin_operand(ap_hlo_exporter_t *e, const hlo_loop_t *loop,
                               const hlo_computation_t *in, const hlo_instruction_t *tuple, int o,
                               hlo_slice_t name)
{
    const hlo_text_t *text = &e->module->text;
    const hlo_slice_t type = ap_hlo_type_text(e, &in->instructions[tuple->operands[o]]);
    const char *percent = name.at[0] == '%' ? "%" : "";
    ap_spec_t path[AP_MAX_RESHARD_STEPS + 1];
    int count = ap_export_instance_way(e->solution, e->source, loop, o,
                                       tuple == &in->instructions[in->root], path);
    char *previous = ap_hlo_print("%.*s", (int)name.length, name.at);

    for (int s = count > 1 ? 1 : 0; s < count; ++s) {
        char sharding[AP_HLO_SHARDING_TEXT];
        char *next = ap_hlo_print("%s%.*s.carried%d.step%d", percent, (int)tuple->name.length,
                                  tuple->name.at, o, s);
        xm_status_t status = XM_ERR_NO_MEMORY;

        (void)ap_export_hlo_sharding(&e->mesh, path[s], loop->state[o].shape.rank, sharding,
                                     sizeof(sharding));
        if (previous != NULL && next != NULL) {
            status = ap_hlo_edit(e, ap_hlo_start(text, tuple->at), 0,
                                 ap_hlo_print("%s = %.*s custom-call(%s), "
                                              "custom_call_target=\"Sharding\", sharding=%s\n  ",
                                              next, (int)type.length, type.at, previous, sharding));
        }
        free(previous);
        previous = next;
        if (status != XM_OK) {
            free(previous);
            return status == XM_ERR_NO_MEMORY ? XM_NO_MEMORY("an HLO module with shardings")
                                              : status;
        }
    }
    return ap_hlo_edit(e, (size_t)(name.at - text->bytes), name.length, previous);
}

/* Annotations of tuples and loops get lost where XLA rewrites them; custom calls to Sharding do
 * not. So what makes a loop's state is pinned by them, too. */
static xm_status_t pin_operands(ap_hlo_exporter_t *e, const hlo_loop_t *loop,
                                const hlo_computation_t *in, const hlo_instruction_t *tuple)
{
    hlo_slice_t *names = calloc((size_t)tuple->operand_count + 1, sizeof(*names));
    xm_status_t status = names == NULL ? XM_NO_MEMORY("an HLO module with shardings")
                                       : ap_hlo_operand_names(e, tuple, names);

    for (int o = 0; o < tuple->operand_count && status == XM_OK; ++o) {
        if (loop->state[o].shape.rank > 0) {
            status = pin_operand(e, loop, in, tuple, o, names[o]);
        }
    }
    free(names);
    return status;
}

/* Whether a loop's state is a tuple of arrays, and an instruction puts it together for this loop
 * alone. */
static bool makes_state(const hlo_loop_t *loop, const hlo_computation_t *in,
                        const hlo_instruction_t *tuple)
{
    int users = 0;

    for (int n = 0; n < in->count; ++n) {
        for (int o = 0; o < in->instructions[n].operand_count; ++o) {
            users += &in->instructions[in->instructions[n].operands[o]] == tuple;
        }
    }
    return hlo_slice_is(tuple->opcode, "tuple") && tuple->operand_count == loop->count &&
           tuple->type->count == loop->count && users <= 1;
}

/* The loop out of whose state or result an instruction takes an array, and which of them. */
static const hlo_loop_t *taken_from(const ap_hlo_exporter_t *e, const hlo_computation_t *in,
                                    const hlo_instruction_t *of, int64_t *array)
{
    const hlo_instruction_t *from;
    const hlo_loop_t *loop = NULL;

    if (!hlo_slice_is(of->opcode, "get-tuple-element") || of->operand_count != 1 ||
        hlo_attribute_number(e->module, of, "index", -1, array) != XM_OK) {
        return NULL;
    }
    from = &in->instructions[of->operands[0]];
    if (hlo_slice_is(from->opcode, "while")) {
        loop = loop_at(e, from->at);
    } else if (hlo_slice_is(from->opcode, "parameter")) {
        for (int l = 0; l < e->source->loop_count && loop == NULL; ++l) {
            const hlo_loop_t *other = &e->source->loops[l];

            if (&e->module->computations[other->body_computation] == in) {
                loop = loop_at(e, other->at);
            }
        }
    }
    return loop != NULL && from->type->count == loop->count && *array >= 0 && *array < loop->count
               ? loop
               : NULL;
}

/* Whether an instruction takes a value through an optimisation barrier. */
static bool passes_barrier(const hlo_computation_t *in, const hlo_instruction_t *of)
{
    const hlo_instruction_t *from;

    if (!of->needed || of->operand_count != 1 || !hlo_slice_is(of->opcode, "get-tuple-element")) {
        return false;
    }
    from = &in->instructions[of->operands[0]];
    return hlo_slice_is(from->opcode, "opt-barrier") ||
           hlo_slice_is(from->opcode, "optimization-barrier");
}

/* The instruction gets another name and a custom call takes over its own, so that its users need
 * not be edited. */
xm_status_t ap_hlo_pin_carried(ap_hlo_exporter_t *e, const hlo_computation_t *in,
                               const hlo_instruction_t *of, ap_spec_t spec)
{
    const hlo_text_t *text = &e->module->text;
    int64_t array = -1;
    const hlo_loop_t *loop = of->needed ? taken_from(e, in, of, &array) : NULL;
    const hlo_slice_t type = ap_hlo_type_text(e, of);
    size_t name = (size_t)(of->name.at - text->bytes);
    const char *percent = name > 0 && text->bytes[name - 1] == '%' ? "%" : "";
    char sharding[AP_HLO_SHARDING_TEXT];
    xm_status_t status;

    if ((loop == NULL && !passes_barrier(in, of)) || of->type->shape.rank == 0 ||
        of == &in->instructions[in->root]) {
        return XM_OK;
    }
    spec = loop != NULL ? ap_export_instance_carried(e->solution, loop, (int)array) : spec;
    (void)ap_export_hlo_sharding(&e->mesh, spec, of->type->shape.rank, sharding, sizeof(sharding));
    status = ap_hlo_edit(e, name + of->name.length, 0, ap_hlo_print(".carried"));
    return status != XM_OK
               ? status
               : ap_hlo_edit(e, of->end, 0,
                             ap_hlo_print("\n  %s%.*s = %.*s custom-call(%s%.*s.carried), "
                                          "custom_call_target=\"Sharding\", sharding=%s",
                                          percent, (int)of->name.length, of->name.at,
                                          (int)type.length, type.at, percent, (int)of->name.length,
                                          of->name.at, sharding));
}

/* What a loop carries has one sharding all the way: where it goes in, in the body, and where it
 * comes out. */
xm_status_t ap_hlo_annotate_loop(ap_hlo_exporter_t *e, const hlo_computation_t *in,
                                 const hlo_instruction_t *of)
{
    const hlo_loop_t *loop = of->type->tuple ? loop_at(e, of->at) : NULL;
    char *sharding;
    xm_status_t status;

    if (loop == NULL) {
        return XM_OK;
    }
    sharding = state_sharding(e, loop);
    status = sharding == NULL ? XM_NO_MEMORY("an HLO module with shardings")
                              : ap_hlo_annotate(e, of, sharding);
    XM_THEN(status, annotate_state(e, loop, loop->body_computation, sharding));
    XM_THEN(status, annotate_state(e, loop, loop->condition_computation, sharding));
    free(sharding);
    if (status == XM_OK && makes_state(loop, in, &in->instructions[of->operands[0]])) {
        status = pin_operands(e, loop, in, &in->instructions[of->operands[0]]);
    }
    if (status == XM_OK && is_first(e, loop, loop->body_computation)) {
        in = &e->module->computations[loop->body_computation];
        if (makes_state(loop, in, &in->instructions[in->root])) {
            status = pin_operands(e, loop, in, &in->instructions[in->root]);
        }
    }
    return status;
}
