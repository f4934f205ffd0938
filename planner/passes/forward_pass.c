/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the forward pass in a whole training step that names no loss, as JAX lowers one. Names are
 * no help: marks of differentiation are optional and differ between frameworks. What holds for
 * every step is its flow of data: the whole forward pass leads to all gradients (step.h finds
 * these), and nothing of the backward pass behind the first weight does. So the last operator that
 * all gradients depend on is the boundary.
 *
 * What was found has to prove itself: each weight must be in it, and its products must explain the
 * FLOPs of the step's products. Where it does not, such as with several losses for separate
 * weights, the answer is a refusal and not a guess.
 */

#include "planner/passes/forward_pass.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/graph.h"
#include "planner/passes/step.h"

enum { WORD = 64, ENDS_MOST = 64, WORK_MOST = 1 << 25, SENTENCE = 1000 };

/* Of the FLOPs of all products. Backward products of convolutions count the borders that they pad
 * otherwise than forward ones. */
static const double unexplained_most = 0.05;

typedef struct extraction {
    const ap_graph_t *graph;
    int ops, tensors;
    ap_step_t step; /* of a step that names no loss */
    int *stack;     /* of operators, for walks */
    size_t words;
    uint64_t *reached; /* per tensor: the gradients that depend on it */
    int *order;        /* operators of the forward pass */
    int count;
    bool *taken; /* per operator: in `order` */
    xm_arena_t arena;
} extraction_t;

static void extraction_free(extraction_t *x)
{
    ap_step_clear(&x->step);
    xm_arena_clear(&x->arena);
}

static xm_status_t extraction_init(extraction_t *x, const ap_graph_t *graph)
{
    size_t ops;

    *x = (extraction_t){
        .graph = graph, .ops = ap_graph_ops(graph), .tensors = ap_graph_tensors(graph)};
    ops = (size_t)x->ops + 1;
    /* A walk pushes each operand of each operator at most once. */
    x->stack = xm_arena_get(&x->arena, ops + ap_graph_terms(graph), sizeof(*x->stack));
    x->order = xm_arena_get(&x->arena, ops, sizeof(*x->order));
    x->taken = xm_arena_get(&x->arena, ops, sizeof(*x->taken));
    XM_NEED_MEMORY(!x->arena.failed, "the %d operators of '%s'", x->ops, ap_graph_name(graph));
    return XM_OK;
}

static uint64_t *row(const extraction_t *x, int tensor)
{
    return x->reached + (size_t)tensor * x->words;
}

/* Finds which gradients depend on each tensor, backwards through the operators; what is made of a
 * gradient does not count, so each gradient ends the flow. */
static xm_status_t reach_back(extraction_t *x)
{
    uint64_t *of_op;

    x->words = ((size_t)x->step.targets + WORD - 1) / WORD;
    x->reached = xm_arena_get(&x->arena, ((size_t)x->tensors + 1) * x->words, sizeof(*x->reached));
    of_op = xm_arena_get(&x->arena, x->words, sizeof(*of_op));
    XM_NEED_MEMORY(!x->arena.failed, "the gradients of %d weights", x->step.targets);
    for (int o = x->ops - 1; o >= 0; --o) {
        const ap_op_t *op = ap_graph_op(x->graph, o);

        memset(of_op, 0, x->words * sizeof(*of_op));
        for (int r = 0; r < op->result_count; ++r) {
            int tensor = op->results[r], target = x->step.target[tensor];

            if (target >= 0) {
                row(x, tensor)[target / WORD] = UINT64_C(1) << (target % WORD);
            }
            for (size_t w = 0; w < x->words; ++w) {
                of_op[w] |= row(x, tensor)[w];
            }
        }
        for (int i = 0; i < op->operand_count; ++i) {
            for (size_t w = 0; w < x->words && x->step.target[op->operands[i]] < 0; ++w) {
                row(x, op->operands[i])[w] |= of_op[w];
            }
        }
    }
    return XM_OK;
}

static bool reaches_all(const extraction_t *x, int tensor)
{
    int count = 0;

    for (size_t w = 0; w < x->words; ++w) {
        count += __builtin_popcountll(row(x, tensor)[w]);
    }
    return count == x->step.targets;
}

static bool reaches_any(const extraction_t *x, int tensor)
{
    for (size_t w = 0; w < x->words; ++w) {
        if (row(x, tensor)[w] != 0) {
            return true;
        }
    }
    return false;
}

/* Lists what a tensor is computed from, each operator after those it needs and as late as that
 * allows. Returns its FLOPs. The stack holds a path of missing producers; an operator is taken off
 * it only when all it needs are listed, and the graph has no cycle. */
static double list_ancestors(extraction_t *x, int tensor)
{
    double flops = 0;
    int top = 0;

    memset(x->taken, 0, (size_t)x->ops * sizeof(*x->taken));
    x->count = 0;
    x->stack[top++] = ap_graph_tensor(x->graph, tensor)->producer;
    while (top > 0) {
        int id = x->stack[top - 1];
        const ap_op_t *op = ap_graph_op(x->graph, id);
        int missing = -1;

        for (int i = 0; i < op->operand_count && !x->taken[id] && missing < 0; ++i) {
            int producer = ap_graph_tensor(x->graph, op->operands[i])->producer;

            missing = producer >= 0 && !x->taken[producer] ? producer : -1;
        }
        if (missing >= 0) {
            x->stack[top++] = missing;
            continue;
        }
        --top;
        if (!x->taken[id]) {
            x->taken[id] = true;
            x->order[x->count++] = id;
            flops += op->flops;
        }
    }
    return flops;
}

/* Finds where all gradients start: of the last tensors that all depend on, the one with most
 * computation behind it. There are several where the step computes something beside the loss; so
 * many that a few are enough to try. */
static xm_status_t find_end(extraction_t *x, int *end)
{
    bool *continued = calloc((size_t)x->tensors + 1, sizeof(*continued));
    double most = -1;
    int tried = 0;

    XM_NEED_MEMORY(continued, "%d tensors", x->tensors);
    *end = -1;
    for (int o = x->ops - 1; o >= 0 && tried < ENDS_MOST; --o) {
        const ap_op_t *op = ap_graph_op(x->graph, o);
        bool full = false;

        for (int r = 0; r < op->result_count; ++r) {
            int tensor = op->results[r];
            double flops;

            if (!reaches_all(x, tensor)) {
                continue;
            }
            full = true;
            if (!continued[tensor]) {
                ++tried;
                flops = list_ancestors(x, tensor);
                *end = flops > most ? tensor : *end;
                most = flops > most ? flops : most;
            }
        }
        for (int i = 0; i < op->operand_count && full; ++i) {
            continued[op->operands[i]] = true;
        }
    }
    free(continued);
    return XM_OK;
}

static xm_status_t untold(const extraction_t *x, const char *why)
{
    return XM_UNSUPPORTED("the forward pass of '%s' cannot be told from its backward pass: %s; "
                          "give the forward pass with its loss instead",
                          ap_graph_name(x->graph), why);
}

/* Counts the weights that have no part in the operators that are listed. */
static xm_status_t find_missing(const extraction_t *x, int *missing, int *first)
{
    bool *used = calloc((size_t)x->tensors + 1, sizeof(*used));

    *missing = 0;
    XM_NEED_MEMORY(used, "%d tensors", x->tensors);
    for (int i = 0; i < x->count; ++i) {
        const ap_op_t *op = ap_graph_op(x->graph, x->order[i]);

        for (int j = 0; j < op->operand_count; ++j) {
            used[op->operands[j]] = true;
        }
    }
    for (int t = 0; t < x->tensors; ++t) {
        if (!used[t] && (x->step.weight[t] || x->step.retaught[t])) {
            *first = (*missing)++ == 0 ? t : *first;
        }
    }
    free(used);
    return XM_OK;
}

/* Every weight must have a part in what was found; else that is only a piece of the forward pass,
 * and planning it would leave out work. */
static xm_status_t check_weights(const extraction_t *x)
{
    int missing, first = -1;
    char why[300];
    xm_status_t status = find_missing(x, &missing, &first);

    if (status != XM_OK || missing == 0) {
        return status;
    }
    (void)snprintf(why, sizeof(why),
                   "%d weight%s that it updates have no part in what leads to all gradients, "
                   "the first of them '%s'",
                   missing, missing == 1 ? "" : "s", ap_graph_tensor(x->graph, first)->name);
    return untold(x, why);
}

/* Whether a tensor is a weight, or a weight in another type or order. The loop ends at a parameter
 * or input, because producers stand before their users. */
static bool is_weight(const extraction_t *x, int tensor)
{
    const ap_tensor_t *of = ap_graph_tensor(x->graph, tensor);

    while (of->kind == AP_TENSOR_ACTIVATION) {
        const ap_op_t *op = ap_graph_op(x->graph, of->producer);

        if (op->operand_count != 1 ||
            (op->kind != AP_OP_ELEMENTWISE && op->kind != AP_OP_RESHAPE)) {
            return false;
        }
        of = ap_graph_tensor(x->graph, op->operands[0]);
    }
    return of->kind == AP_TENSOR_PARAMETER && ap_dtype_is_smooth(of->dtype);
}

/* The result of the last operator that uses a weight, if the end can be its gradient; else -1.
 * Logits and their gradient have one shape, and so have an output and its error. */
static int find_output(const extraction_t *x, int end)
{
    for (int i = x->count - 1; i >= 0; --i) {
        const ap_op_t *op = ap_graph_op(x->graph, x->order[i]);
        bool weights = false, others = false;

        for (int j = 0; j < op->operand_count; ++j) {
            bool weight = is_weight(x, op->operands[j]);

            weights = weights || weight;
            others = others || !weight;
        }
        if (weights && others) {
            bool fits = op->results[0] != end &&
                        ap_shape_equal(&ap_graph_tensor(x->graph, end)->shape,
                                       &ap_graph_tensor(x->graph, op->results[0])->shape);

            return fits ? op->results[0] : -1;
        }
    }
    return -1;
}

/* The order of the list keeps operators near what needs them, which suits a graph that is to be cut
 * into layers. A graph with layers keeps its own order, and with it the layers. */
static xm_status_t copy_pass(extraction_t *x, int end, bool is_gradient, int output,
                             ap_graph_t **forward)
{
    ap_graph_copy_t copy;
    xm_status_t status = XM_OK;

    XM_TRY(ap_graph_copy_open(x->graph, &copy));
    if (ap_graph_layers(x->graph) > 1) {
        qsort(x->order, (size_t)x->count, sizeof(*x->order), xm_order_ints);
    }
    for (int i = 0; i < x->count && status == XM_OK; ++i) {
        status = ap_graph_set_layer(copy.to, ap_graph_op(x->graph, x->order[i])->layer);
        if (status == XM_OK) {
            status = ap_graph_copy_op(&copy, x->order[i]);
        }
    }
    if (status == XM_OK) {
        status = ap_graph_set_loss(copy.to, copy.tensor[end], is_gradient);
    }
    if (status == XM_OK && output >= 0) {
        status = ap_graph_set_gradient(copy.to, copy.tensor[end], copy.tensor[output]);
    }
    return ap_graph_copy_close(&copy, status, forward);
}

static xm_status_t from_loss(extraction_t *x, int loss, bool is_gradient, ap_graph_t **forward)
{
    int output = ap_graph_tensor(x->graph, loss)->gradient_of;

    if (ap_graph_tensor(x->graph, loss)->producer < 0) {
        return XM_UNSUPPORTED("the loss of '%s' is not computed from anything",
                              ap_graph_name(x->graph));
    }
    (void)list_ancestors(x, loss);
    return copy_pass(x, loss, is_gradient,
                     output >= 0 && ap_graph_tensor(x->graph, output)->kind == AP_TENSOR_ACTIVATION
                         ? output
                         : -1,
                     forward);
}

/* Lists the forward pass up to `end` and says where the FLOPs of the step are then. */
static xm_status_t account(extraction_t *x, int end, ap_step_flops_t *flops)
{
    (void)list_ancestors(x, end);
    return ap_step_account(&x->step, x->taken, end, find_output(x, end), flops);
}

static double unexplained(const ap_step_flops_t *flops)
{
    return fabs(flops->backward - flops->expected) + flops->beside;
}

/* Where one weight is all there is, or the backward pass begins with what all gradients need, the
 * last operator with a part in all of them is too late: it lacks products of the backward pass. The
 * end is then the one before it that explains most, as long as all weights lead to it. */
static xm_status_t step_back(extraction_t *x, int *end, ap_step_flops_t *flops)
{
    int last = ap_graph_tensor(x->graph, *end)->producer, best = *end;
    bool *before = malloc((size_t)x->ops + 1);
    ap_step_flops_t tried = *flops;
    xm_status_t status = XM_OK;

    XM_NEED_MEMORY(before, "%d operators", x->ops);
    memcpy(before, x->taken, (size_t)x->ops);
    for (int o = last - 1, tries = 0;
         o >= 0 && tries < WORK_MOST / x->ops && tried.expected > tried.backward && status == XM_OK;
         --o) {
        int tensor = ap_graph_op(x->graph, o)->results[0], missing = 1, first;

        if (!before[o] || !reaches_all(x, tensor)) {
            continue;
        }
        ++tries;
        (void)list_ancestors(x, tensor);
        status = find_missing(x, &missing, &first);
        if (status == XM_OK && missing == 0) {
            status = account(x, tensor, &tried);
            if (status == XM_OK && unexplained(&tried) < unexplained(flops)) {
                *flops = tried;
                best = tensor;
            }
        }
    }
    free(before);
    *end = best;
    (void)list_ancestors(x, best);
    return status;
}

/* Weights of the forward pass that the step gives back as they were: the derived step trains them
 * as well. */
static int count_untrained(const extraction_t *x)
{
    int count = 0;

    for (int t = 0; t < x->tensors; ++t) {
        const ap_tensor_t *of = ap_graph_tensor(x->graph, t);

        count += of->kind == AP_TENSOR_PARAMETER && of->taken_by < 0 && reaches_any(x, t) &&
                 ap_dtype_is_smooth(of->dtype);
    }
    return count;
}

/* The FLOPs of all products of the step must be those of this forward pass, of its backward pass,
 * of what is computed again, or of the optimizer. */
static xm_status_t check_flops(extraction_t *x, int *end, ap_forward_info_t *info)
{
    ap_step_flops_t flops;
    xm_status_t status = account(x, *end, &flops);
    char why[300];

    if (status == XM_OK && flops.expected > flops.backward) {
        status = step_back(x, end, &flops);
    }
    if (status != XM_OK) {
        return status;
    }
    if (unexplained(&flops) > unexplained_most * flops.all) {
        (void)snprintf(why, sizeof(why),
                       "its weights are all in what leads to all gradients, but %.0f %% of the "
                       "FLOPs of its products are not explained: %.3g forward would have %.3g "
                       "backward, there are %.3g, and %.3g beside",
                       100 * unexplained(&flops) / flops.all, flops.forward, flops.expected,
                       flops.backward, flops.beside);
        return untold(x, why);
    }
    info->again = flops.forward > 0 ? flops.again / flops.forward : 0;
    info->update = flops.all > 0 ? flops.update / flops.all : 0;
    info->untrained = count_untrained(x);
    return XM_OK;
}

/* Weights are donated buffers; a step that gives none back cannot be told from inference. */
static xm_status_t find_pass(extraction_t *x, bool numbers, int *end)
{
    ap_step_clear(&x->step);
    XM_TRY(ap_step_find(x->graph, numbers, &x->step));

    for (int t = 0; t < x->tensors && x->step.targets == 0; ++t) {
        if (x->step.retaught[t]) {
            return untold(x, "no weight has a part in the gradients of most others, as if each "
                             "followed from a loss of its own");
        }
    }
    if (x->step.targets == 0) {
        return XM_UNSUPPORTED("'%s' names no loss and gives no weight back with a gradient in it: "
                              "nothing can be trained (JAX: donate the weights, donate_argnums)",
                              ap_graph_name(x->graph));
    }
    XM_TRY(reach_back(x));
    XM_TRY(find_end(x, end));
    if (*end < 0) {
        return untold(x, "no operator has a part in the gradients of all weights");
    }
    (void)list_ancestors(x, *end);
    return check_weights(x);
}

/* Where gradients that are tied by single numbers explain the step, and others do not, the loss is
 * of that kind. The sentence of a refusal is that of the usual case. */
static xm_status_t from_step(extraction_t *x, ap_graph_t **forward, ap_forward_info_t *info)
{
    char sentence[SENTENCE];
    int end = -1;
    xm_status_t status = XM_ERR_UNSUPPORTED;

    for (int numbers = 0; numbers < 2 && status == XM_ERR_UNSUPPORTED; ++numbers) {
        status = find_pass(x, numbers == 1, &end);
        if (status == XM_OK) {
            status = check_flops(x, &end, info);
        }
        if (numbers == 0) {
            (void)snprintf(sentence, sizeof(sentence), "%s", xm_last_error());
        }
    }
    if (status == XM_ERR_UNSUPPORTED) {
        return xm_error_set(status, "%s", sentence);
    }
    return status == XM_OK ? copy_pass(x, end, true, find_output(x, end), forward) : status;
}

xm_status_t ap_forward_pass(const ap_graph_t *graph, ap_graph_t **forward, ap_forward_info_t *info)
{
    bool is_gradient;
    int loss = ap_graph_loss(graph, &is_gradient);
    ap_forward_info_t found = {0};
    extraction_t x;
    xm_status_t status = extraction_init(&x, graph);

    if (status == XM_OK) {
        status =
            loss >= 0 ? from_loss(&x, loss, is_gradient, forward) : from_step(&x, forward, &found);
    }
    if (status == XM_OK && info != NULL) {
        *info = found;
    }
    extraction_free(&x);
    return status;
}
