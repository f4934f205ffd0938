/*
 * Finds the forward pass in a whole training step that names no loss, as JAX lowers one. Names are
 * no help: marks of differentiation are optional and differ between frameworks. What holds for
 * every step is its flow of data, and three facts of it are used: each weight's new value is made,
 * elementwise, from the old one and a gradient; the whole forward pass leads to all gradients;
 * nothing of the backward pass behind the first weight does. So the last operator that all
 * gradients depend on is the boundary.
 *
 * Where the facts do not hold, such as with several losses for separate weights, the answer is a
 * refusal and not a guess. The cost is a pass over the operators with a bit per weight.
 */

#include "planner/passes/forward_pass.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/graph.h"

enum { WORD = 64, ENDS_MOST = 64 };

typedef struct extraction {
    const ap_graph_t *graph;
    int ops, tensors;
    int *target; /* per tensor: number of the gradient it is, -1: none */
    int targets;
    int *stack; /* of tensors or operators, for walks */
    int *seen;  /* per tensor, per walk */
    int walk;
    size_t words;
    uint64_t *reached; /* per tensor: the gradients that depend on it */
    int *order;        /* operators of the forward pass */
    int count;
    bool *taken; /* per operator: in `order` */
} extraction_t;

static void extraction_free(extraction_t *x)
{
    free(x->target);
    free(x->stack);
    free(x->seen);
    free(x->reached);
    free(x->order);
    free(x->taken);
}

static xm_status_t extraction_init(extraction_t *x, const ap_graph_t *graph)
{
    size_t ops, tensors;

    *x = (extraction_t){
        .graph = graph, .ops = ap_graph_ops(graph), .tensors = ap_graph_tensors(graph)};
    ops = (size_t)x->ops + 1;
    tensors = (size_t)x->tensors + 1;
    x->target = malloc(tensors * sizeof(*x->target));
    /* A walk pushes each operand of each operator at most once. */
    x->stack = malloc((ops * (AP_MAX_OPERANDS + 1) + tensors) * sizeof(*x->stack));
    x->seen = calloc(tensors, sizeof(*x->seen));
    x->order = malloc(ops * sizeof(*x->order));
    x->taken = calloc(ops, sizeof(*x->taken));
    if (x->target == NULL || x->stack == NULL || x->seen == NULL || x->order == NULL ||
        x->taken == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the %d operators of '%s'", x->ops,
                            ap_graph_name(graph));
    }
    for (int t = 0; t < x->tensors; ++t) {
        x->target[t] = -1;
    }
    return XM_OK;
}

static double elements(const extraction_t *x, int tensor)
{
    return ap_graph_tensor_bytes(x->graph, tensor) /
           ap_dtype_bytes(ap_graph_tensor(x->graph, tensor)->dtype);
}

/* Numbers a gradient, or, where they are numbered, ticks it off. */
static void note_target(extraction_t *x, int tensor, bool *ticked)
{
    if (ticked == NULL && x->target[tensor] < 0) {
        x->target[tensor] = x->targets++;
    } else if (ticked != NULL && x->target[tensor] >= 0) {
        ticked[x->target[tensor]] = true;
    }
}

/* Whether an operator may stand between a weight's new value and its gradient. Movements keep the
 * number of elements, and so do elementwise operators but for scalars. What is put together of
 * several is none of these. */
static bool passes_on(const ap_op_t *op)
{
    return op->kind == AP_OP_ELEMENTWISE || op->kind == AP_OP_UPDATE ||
           (op->kind == AP_OP_RESHAPE && op->operand_count == 1);
}

/* Walks back from the new value of a weight over operators of its size to what was computed in some
 * other way: its gradient. Moments and the old weight are inputs, where the walk ends by itself.
 * What was spread from less is a constant or a rate, and counts as the gradient only where there is
 * nothing else (pieces written into an array by a loop). No tensor is pushed twice in a walk, so it
 * ends. */
static void find_gradients(extraction_t *x, int weight, int updated, bool *ticked)
{
    double size = elements(x, weight);
    int top = 0, spread = -1;
    bool found = false;

    ++x->walk;
    x->stack[top++] = updated;
    x->seen[updated] = x->walk;
    while (top > 0) {
        int tensor = x->stack[--top];
        const ap_op_t *op = ap_graph_op(x->graph, ap_graph_tensor(x->graph, tensor)->producer);
        bool other_size = false, same_size = false;

        for (int i = 0; i < op->operand_count && passes_on(op); ++i) {
            int operand = op->operands[i];
            bool made = ap_graph_tensor(x->graph, operand)->kind == AP_TENSOR_ACTIVATION;
            double operand_size = elements(x, operand);

            if (operand_size < size || operand_size > size) {
                other_size = other_size || (made && operand_size > 1);
                continue;
            }
            same_size = true;
            if (made && x->seen[operand] != x->walk) {
                x->seen[operand] = x->walk;
                x->stack[top++] = operand;
            }
        }
        if (!passes_on(op)) {
            note_target(x, tensor, ticked);
            found = true;
        } else if (op->kind == AP_OP_RESHAPE && other_size && !same_size) {
            spread = tensor;
        }
    }
    if (!found && spread >= 0) {
        note_target(x, spread, ticked);
    }
}

/* What depends on a gradient is none: norms for clipping, checks for overflow. Gradients are
 * renumbered without these. */
static xm_status_t drop_late_targets(extraction_t *x)
{
    bool *late = calloc((size_t)x->tensors + 1, sizeof(*late));

    if (late == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d tensors", x->tensors);
    }
    x->targets = 0;
    for (int o = 0; o < x->ops; ++o) {
        const ap_op_t *op = ap_graph_op(x->graph, o);
        bool depends = false;

        for (int i = 0; i < op->operand_count; ++i) {
            depends = depends || late[op->operands[i]] || x->target[op->operands[i]] >= 0;
        }
        for (int r = 0; r < op->result_count; ++r) {
            int tensor = op->results[r];

            late[tensor] = depends;
            if (x->target[tensor] >= 0) {
                x->target[tensor] = depends ? -1 : x->targets++;
            }
        }
    }
    free(late);
    return XM_OK;
}

/* The parameter that a tensor is the new value of, or -1. */
static int updated_weight(const extraction_t *x, int tensor)
{
    const ap_tensor_t *updated = ap_graph_tensor(x->graph, tensor);

    return updated->alias_of >= 0 && updated->producer >= 0 && ap_dtype_is_smooth(updated->dtype) &&
                   ap_graph_tensor(x->graph, updated->alias_of)->kind == AP_TENSOR_PARAMETER
               ? updated->alias_of
               : -1;
}

static xm_status_t find_targets(extraction_t *x)
{
    for (int t = 0; t < x->tensors; ++t) {
        int weight = updated_weight(x, t);

        if (weight >= 0) {
            find_gradients(x, weight, t, NULL);
        }
    }
    return drop_late_targets(x);
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

    x->words = ((size_t)x->targets + WORD - 1) / WORD;
    x->reached = calloc(((size_t)x->tensors + 1) * x->words, sizeof(*x->reached));
    of_op = malloc(x->words * sizeof(*of_op));
    if (x->reached == NULL || of_op == NULL) {
        free(of_op);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the gradients of %d weights",
                            x->targets);
    }
    for (int o = x->ops - 1; o >= 0; --o) {
        const ap_op_t *op = ap_graph_op(x->graph, o);

        memset(of_op, 0, x->words * sizeof(*of_op));
        for (int r = 0; r < op->result_count; ++r) {
            int tensor = op->results[r], target = x->target[tensor];

            if (target >= 0) {
                row(x, tensor)[target / WORD] = UINT64_C(1) << (target % WORD);
            }
            for (size_t w = 0; w < x->words; ++w) {
                of_op[w] |= row(x, tensor)[w];
            }
        }
        for (int i = 0; i < op->operand_count; ++i) {
            for (size_t w = 0; w < x->words && x->target[op->operands[i]] < 0; ++w) {
                row(x, op->operands[i])[w] |= of_op[w];
            }
        }
    }
    free(of_op);
    return XM_OK;
}

static bool reaches_all(const extraction_t *x, int tensor)
{
    int count = 0;

    for (size_t w = 0; w < x->words; ++w) {
        count += __builtin_popcountll(row(x, tensor)[w]);
    }
    return count == x->targets;
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

    if (continued == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d tensors", x->tensors);
    }
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
    return xm_error_set(XM_ERR_UNSUPPORTED,
                        "the forward pass of '%s' cannot be told from its backward pass: %s; give "
                        "the forward pass with its loss instead",
                        ap_graph_name(x->graph), why);
}

/* Every gradient must be that of a weight which the forward pass uses; else what was found is only
 * a part, and planning it would leave out work. */
static xm_status_t check_weights(extraction_t *x)
{
    bool *used = calloc((size_t)x->tensors + (size_t)x->targets + 1, sizeof(*used));
    bool *ticked = used + x->tensors;
    xm_status_t status = XM_OK;

    if (used == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d tensors", x->tensors);
    }
    for (int i = 0; i < x->count; ++i) {
        const ap_op_t *op = ap_graph_op(x->graph, x->order[i]);

        for (int j = 0; j < op->operand_count; ++j) {
            used[op->operands[j]] = true;
        }
    }
    for (int t = 0; t < x->tensors; ++t) {
        int weight = updated_weight(x, t);

        if (weight >= 0 && used[weight]) {
            find_gradients(x, weight, t, ticked);
        }
    }
    for (int t = 0; t < x->tensors && status == XM_OK; ++t) {
        if (x->target[t] >= 0 && !ticked[x->target[t]]) {
            char why[300];

            (void)snprintf(why, sizeof(why), "no weight with the gradient '%s' has a part in it",
                           ap_graph_tensor(x->graph, t)->name);
            status = untold(x, why);
        }
    }
    free(used);
    return status;
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

static bool same_shape(const ap_tensor_t *a, const ap_tensor_t *b)
{
    return a->shape.rank == b->shape.rank &&
           memcmp(a->shape.dims, b->shape.dims, (size_t)a->shape.rank * sizeof(a->shape.dims[0])) ==
               0;
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
            bool fits =
                op->results[0] != end && same_shape(ap_graph_tensor(x->graph, end),
                                                    ap_graph_tensor(x->graph, op->results[0]));

            return fits ? op->results[0] : -1;
        }
    }
    return -1;
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* The order of the list keeps operators near what needs them, which suits a graph that is to be cut
 * into layers. A graph with layers keeps its own order, and with it the layers. */
static xm_status_t copy_pass(extraction_t *x, int end, bool is_gradient, int output,
                             ap_graph_t **forward)
{
    ap_graph_copy_t copy;
    xm_status_t status = ap_graph_copy_open(x->graph, &copy);

    if (status != XM_OK) {
        return status;
    }
    if (ap_graph_layers(x->graph) > 1) {
        qsort(x->order, (size_t)x->count, sizeof(*x->order), by_number);
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
        return xm_error_set(XM_ERR_UNSUPPORTED, "the loss of '%s' is not computed from anything",
                            ap_graph_name(x->graph));
    }
    (void)list_ancestors(x, loss);
    return copy_pass(x, loss, is_gradient,
                     output >= 0 && ap_graph_tensor(x->graph, output)->kind == AP_TENSOR_ACTIVATION
                         ? output
                         : -1,
                     forward);
}

/* Weights are donated buffers; a step that gives none back cannot be told from inference. */
static xm_status_t from_step(extraction_t *x, ap_graph_t **forward)
{
    int end = -1;
    xm_status_t status = find_targets(x);

    if (status == XM_OK && x->targets == 0) {
        return xm_error_set(XM_ERR_UNSUPPORTED,
                            "'%s' names no loss and gives no weight back with a gradient in it: "
                            "nothing can be trained (JAX: donate the weights, donate_argnums)",
                            ap_graph_name(x->graph));
    }
    if (status == XM_OK) {
        status = reach_back(x);
    }
    if (status == XM_OK) {
        status = find_end(x, &end);
    }
    if (status == XM_OK && end < 0) {
        return untold(x, "no operator has a part in the gradients of all weights");
    }
    if (status == XM_OK) {
        (void)list_ancestors(x, end);
        status = check_weights(x);
    }
    return status == XM_OK ? copy_pass(x, end, true, find_output(x, end), forward) : status;
}

xm_status_t ap_forward_pass(const ap_graph_t *graph, ap_graph_t **forward)
{
    bool is_gradient;
    int loss = ap_graph_loss(graph, &is_gradient);
    extraction_t x;
    xm_status_t status = extraction_init(&x, graph);

    if (status == XM_OK) {
        status = loss >= 0 ? from_loss(&x, loss, is_gradient, forward) : from_step(&x, forward);
    }
    extraction_free(&x);
    return status;
}
