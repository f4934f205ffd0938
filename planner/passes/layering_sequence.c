/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operators that layers are cut from, in order, and the places where a cut is possible. A cut
 * needs exactly one tensor to pass, but masks, positions and weights in another type would pass
 * almost everywhere; so what is computed from data alone or from weights alone is taken out of the
 * sequence and computed again by each layer that uses it. That costs little, and leaves the
 * residual stream as the one tensor between the blocks of a transformer.
 */

#include "planner/passes/passes_private.h"

#include <string.h>

/* What becomes of an operator. */
enum {
    KIND_SEQUENCE,
    KIND_SIDE, /* of data alone or of weights alone: computed where it is used */
    KIND_FORM  /* makes the only form of a weight that is used: part of the weight */
};

/* More than any number of tensors; and about how many places are taken where several pass. */
enum { NUMBER = 1 << 20, MOST_PLACES = 256 };

/* What a tensor is computed from, as a set. */
enum { FROM_DATA = 1, FROM_WEIGHTS = 2, FROM_BOTH = 3 };

void ap_sequence_clear(ap_sequence_t *s)
{
    xm_arena_clear(&s->arena);
    *s = (ap_sequence_t){0};
}

static xm_status_t allocate(ap_sequence_t *s)
{
    size_t ops = (size_t)ap_graph_ops(s->graph) + 1;
    size_t tensors = (size_t)ap_graph_tensors(s->graph) + 1;

    s->op = xm_arena_get(&s->arena, ops, sizeof(*s->op));
    s->flops = xm_arena_get(&s->arena, ops, sizeof(*s->flops));
    s->heavy = xm_arena_get(&s->arena, ops, sizeof(*s->heavy));
    s->may_begin = xm_arena_get(&s->arena, ops, sizeof(*s->may_begin));
    s->possible = xm_arena_get(&s->arena, ops, sizeof(*s->possible));
    s->crossing = xm_arena_get(&s->arena, ops, sizeof(*s->crossing));
    s->passing = xm_arena_get(&s->arena, ops, sizeof(*s->passing));
    s->bytes = xm_arena_get(&s->arena, tensors, sizeof(*s->bytes));
    s->maker = xm_arena_get(&s->arena, tensors, sizeof(*s->maker));
    s->use_begin = xm_arena_get(&s->arena, ops + 1, sizeof(*s->use_begin));
    s->use_tensor = xm_arena_get(&s->arena, ap_graph_terms(s->graph) + 1, sizeof(*s->use_tensor));
    s->kind = xm_arena_get(&s->arena, ops, sizeof(*s->kind));
    s->form = xm_arena_get(&s->arena, tensors, sizeof(*s->form));
    s->scratch = xm_arena_get(&s->arena, tensors, sizeof(*s->scratch));
    s->user = xm_arena_get(&s->arena, tensors, sizeof(*s->user));
    s->stamp = xm_arena_get(&s->arena, ops, sizeof(*s->stamp));
    s->stack = xm_arena_get(&s->arena, ops, sizeof(*s->stack));
    if (s->arena.failed) {
        return XM_NO_MEMORY("the %d operators of '%s'", ap_graph_ops(s->graph),
                            ap_graph_name(s->graph));
    }
    return XM_OK;
}

static bool is_heavy(const ap_op_t *op)
{
    return op->kind == AP_OP_EINSUM && op->flops > 0;
}

/* A product counts as part of the sequence even if it has no weight: computing attention scores
 * twice would not be cheap. So does the operator that makes the loss. */
static void find_sides(ap_sequence_t *s, const int *from)
{
    int loss = ap_graph_loss(s->graph, NULL);

    for (int o = 0; o < ap_graph_ops(s->graph); ++o) {
        const ap_op_t *op = ap_graph_op(s->graph, o);
        bool ends = ap_graph_tensor(s->graph, loss)->producer == o;

        s->kind[o] =
            from[op->results[0]] == FROM_BOTH || is_heavy(op) || ends ? KIND_SEQUENCE : KIND_SIDE;
    }
}

/* Finds what every tensor is computed from; `from` has a place for each. */
static void trace(const ap_graph_t *graph, int *from)
{
    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        from[t] = ap_graph_tensor(graph, t)->kind == AP_TENSOR_PARAMETER ? FROM_WEIGHTS
                  : ap_graph_tensor(graph, t)->kind == AP_TENSOR_INPUT   ? FROM_DATA
                                                                         : 0;
    }
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);
        int made = is_heavy(op) ? FROM_BOTH : 0;

        for (int i = 0; i < op->operand_count; ++i) {
            made |= from[op->operands[i]];
        }
        for (int r = 0; r < op->result_count; ++r) {
            from[op->results[r]] = made;
        }
    }
}

/* Whether an operator gives a weight another form: cast, transposed or reshaped, of as many
 * elements, so that its gradient takes the same way back. */
static bool changes_form(const ap_graph_t *graph, const ap_op_t *op)
{
    double before, after;

    if (op->operand_count != 1 || op->result_count != 1 ||
        (op->kind != AP_OP_RESHAPE &&
         !(op->kind == AP_OP_ELEMENTWISE && (op->linear || op->flops <= 0)))) {
        return false;
    }
    before = ap_graph_tensor_bytes(graph, op->operands[0]) /
             ap_dtype_bytes(ap_graph_tensor(graph, op->operands[0])->dtype);
    after = ap_graph_tensor_bytes(graph, op->results[0]) /
            ap_dtype_bytes(ap_graph_tensor(graph, op->results[0])->dtype);
    return before <= after && after <= before;
}

/* Follows each weight through the operators that are alone in using it. The weight is then taken in
 * its last form, and the operators in between vanish: a cast copy of a weight would else be an
 * activation of its own. */
static void find_forms(ap_sequence_t *s)
{
    int tensors = ap_graph_tensors(s->graph);
    int *user = s->user;

    for (int t = 0; t < tensors; ++t) {
        user[t] = -1; /* -2: several */
    }
    for (int o = 0; o < ap_graph_ops(s->graph); ++o) {
        const ap_op_t *op = ap_graph_op(s->graph, o);

        for (int i = 0; i < op->operand_count; ++i) {
            user[op->operands[i]] = user[op->operands[i]] == -1 ? o : -2;
        }
    }
    for (int t = 0; t < tensors; ++t) {
        s->form[t] = t;
        if (ap_graph_tensor(s->graph, t)->kind != AP_TENSOR_PARAMETER) {
            continue;
        }
        while (user[s->form[t]] >= 0 &&
               changes_form(s->graph, ap_graph_op(s->graph, user[s->form[t]]))) {
            int by = user[s->form[t]];

            s->kind[by] = KIND_FORM;
            s->form[t] = ap_graph_op(s->graph, by)->results[0];
        }
    }
}

static void list_sequence(ap_sequence_t *s)
{
    for (int o = 0; o < ap_graph_ops(s->graph); ++o) {
        if (s->kind[o] == KIND_SEQUENCE) {
            s->flops[s->count] = ap_graph_op(s->graph, o)->flops;
            s->heavy[s->count] = is_heavy(ap_graph_op(s->graph, o));
            s->op[s->count++] = o;
        }
    }
}

/* Lists the tensors that operators of the sequence pass to later ones; `number` has a place per
 * tensor. */
static void list_uses(ap_sequence_t *s, int *number)
{
    int uses = 0;

    for (int t = 0; t < ap_graph_tensors(s->graph); ++t) {
        number[t] = -1;
    }
    for (int p = 0; p < s->count; ++p) {
        const ap_op_t *op = ap_graph_op(s->graph, s->op[p]);

        s->use_begin[p] = uses;
        for (int i = 0; i < op->operand_count; ++i) {
            if (number[op->operands[i]] >= 0) {
                s->use_tensor[uses++] = number[op->operands[i]];
            }
        }
        for (int r = 0; r < op->result_count; ++r) {
            number[op->results[r]] = s->tensors;
            s->bytes[s->tensors] = ap_graph_tensor_bytes(s->graph, op->results[r]);
            s->maker[s->tensors++] = p;
        }
    }
    s->use_begin[s->count] = uses;
}

/* Where the derived backward pass starts, nothing is left that a layer could be made of: the last
 * place is that of the operator whose gradient the loss is. */
static int last_place(const ap_sequence_t *s)
{
    int loss = ap_graph_loss(s->graph, NULL);
    int output = ap_graph_tensor(s->graph, loss)->gradient_of;
    int place = s->count - 1;

    while (place > 0 && output >= 0 &&
           s->op[place] != ap_graph_tensor(s->graph, output)->producer) {
        --place;
    }
    return output >= 0 ? place : s->count - 1;
}

/* Whether the tensor of this number, as list_uses() gave it, has no dimensions. */
static bool is_number(const ap_sequence_t *s, int tensor)
{
    const ap_op_t *maker = ap_graph_op(s->graph, s->op[s->maker[tensor]]);
    int result = tensor;

    while (result > 0 && s->maker[result - 1] == s->maker[tensor]) {
        --result;
    }
    return ap_graph_tensor(s->graph, maker->results[tensor - result])->shape.rank == 0;
}

/* Counts what passes each place, by the difference at its ends and a running sum; `last` has a
 * place per tensor. */
static void find_places(ap_sequence_t *s, int *last)
{
    int end = last_place(s), passing = 0;
    double bytes = 0;

    for (int t = 0; t < s->tensors; ++t) {
        last[t] = s->maker[t];
    }
    for (int p = 0; p < s->count; ++p) {
        for (int u = s->use_begin[p]; u < s->use_begin[p + 1]; ++u) {
            last[s->use_tensor[u]] = p;
        }
    }
    /* A tensor passes the places behind its maker up to its last user. A single number counts as
     * more than any place may have: what comes after it is the tail of a loss, and there is nothing
     * to reshard. */
    for (int t = 0; t < s->tensors; ++t) {
        int weight = is_number(s, t) ? NUMBER : 1;

        if (last[t] > s->maker[t]) {
            s->crossing[s->maker[t] + 1] += weight;
            s->crossing[last[t] + 1] -= weight;
            s->passing[s->maker[t] + 1] += s->bytes[t];
            s->passing[last[t] + 1] -= s->bytes[t];
        }
    }
    for (int p = 0; p < s->count; ++p) {
        passing += s->crossing[p];
        s->crossing[p] = passing;
        bytes += s->passing[p];
        s->passing[p] = bytes;
        s->possible[p] = p > 0 && passing >= 1 && passing < NUMBER && p <= end;
        s->may_begin[p] = s->possible[p] && passing == 1;
        s->places += s->may_begin[p];
    }
}

/* Whether no place nearby has fewer bytes; of equal ones the first counts. */
static bool is_narrowest(const ap_sequence_t *s, int place)
{
    int reach = 1 + s->count / MOST_PLACES;

    for (int p = place - reach; p <= place + reach; ++p) {
        if (p > 0 && p < s->count && s->possible[p] &&
            (p < place ? s->passing[p] <= s->passing[place] : s->passing[p] < s->passing[place])) {
            return false;
        }
    }
    return true;
}

bool ap_sequence_widen(ap_sequence_t *s)
{
    int before = s->places;

    for (int p = 0; p < s->count; ++p) {
        if (s->possible[p] && !s->may_begin[p] && is_narrowest(s, p)) {
            s->may_begin[p] = true;
            ++s->places;
        }
    }
    return s->places > before;
}

xm_status_t ap_sequence_create(const ap_graph_t *forward, ap_sequence_t *sequence)
{
    ap_sequence_t s = {.graph = forward};
    xm_status_t status = XM_OK;

    if (ap_graph_loss(forward, NULL) < 0) {
        status = XM_INVALID("the graph '%s' names no loss", ap_graph_name(forward));
    }
    if (status == XM_OK) {
        status = allocate(&s);
    }
    if (status == XM_OK) {
        trace(forward, s.scratch);
        find_sides(&s, s.scratch);
        find_forms(&s);
        list_sequence(&s);
        list_uses(&s, s.scratch);
        find_places(&s, s.scratch);
    }
    if (status != XM_OK) {
        ap_sequence_clear(&s);
        return status;
    }
    *sequence = s;
    return XM_OK;
}

/* What is demanded of a weight holds for its form, as far as that has the same dimensions. */
static void demand_form(const ap_sequence_t *s, int weight, ap_graph_copy_t *copy)
{
    ap_tensor_t of = *ap_graph_tensor(s->graph, weight);
    int tensor = weight;

    while (tensor != s->form[weight]) {
        for (int o = 0; o < ap_graph_ops(s->graph); ++o) {
            const ap_op_t *op = ap_graph_op(s->graph, o);

            if (s->kind[o] == KIND_FORM && op->operands[0] == tensor) {
                ap_cut_t cuts[AP_MAX_RANK];

                ap_graph_carry_demand(op, &of, cuts);
                memcpy(of.cut, cuts, sizeof(of.cut));
                tensor = op->results[0];
            }
        }
    }
    ap_graph_demand(copy->to, copy->tensor[tensor], of.cut);
}

/* A weight in another form enters under its own name and with the form's type. */
xm_status_t ap_sequence_copy_open(const ap_sequence_t *s, ap_graph_copy_t *copy)
{
    xm_status_t status = ap_graph_copy_open(s->graph, copy);

    memset(s->stamp, 0, (size_t)ap_graph_ops(s->graph) * sizeof(*s->stamp));
    for (int t = 0; t < ap_graph_tensors(s->graph) && status == XM_OK; ++t) {
        const ap_tensor_t *form = ap_graph_tensor(s->graph, s->form[t]);

        if (s->form[t] != t) {
            status = ap_graph_add_tensor(copy->to, ap_graph_tensor(s->graph, t)->name,
                                         AP_TENSOR_PARAMETER, &form->shape, form->dtype,
                                         &copy->tensor[s->form[t]]);
            if (status == XM_OK) {
                demand_form(s, t, copy);
            }
        }
    }
    return status;
}

/* The stack is a path of missing side operators; each is copied once per layer, which its stamp
 * says. Forms need no copy, for they are parameters of the new graph. */
xm_status_t ap_sequence_copy_op(const ap_sequence_t *s, int place, int layer, ap_graph_copy_t *copy)
{
    int top = 0;
    xm_status_t status = XM_OK;

    s->stack[top++] = s->op[place];
    while (top > 0 && status == XM_OK) {
        int id = s->stack[top - 1], missing = -1;
        const ap_op_t *op = ap_graph_op(s->graph, id);

        for (int i = 0; i < op->operand_count && missing < 0; ++i) {
            int producer = ap_graph_tensor(s->graph, op->operands[i])->producer;

            if (producer >= 0 && s->kind[producer] == KIND_SIDE && s->stamp[producer] != layer) {
                missing = producer;
            }
        }
        if (missing >= 0) {
            s->stack[top++] = missing;
            continue;
        }
        --top;
        s->stamp[id] = layer;
        status = ap_graph_copy_op(copy, id);
    }
    return status;
}

xm_status_t ap_sequence_copy_loss(const ap_sequence_t *s, ap_graph_copy_t *copy)
{
    bool is_gradient;
    int loss = ap_graph_loss(s->graph, &is_gradient);
    int output = ap_graph_tensor(s->graph, loss)->gradient_of;
    XM_TRY(ap_graph_set_loss(copy->to, copy->tensor[loss], is_gradient));

    if (output >= 0) {
        XM_TRY(ap_graph_set_gradient(copy->to, copy->tensor[loss], copy->tensor[output]));
    }
    return XM_OK;
}
