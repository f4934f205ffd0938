/* From variables, wires and uses to the arrays of a cost function network. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/shard_network.h"

/* Costs become integers of at most this sum: fine enough for ties to be broken as the costs do, and
 * coarse enough for the rounding of a bound to be far below 1. */
static const double largest_sum = 3e11;

/* Wires between the same terms of the same classes. */
typedef struct edge {
    int wire; /* the first of them */
    int count;
    double *costs; /* per pair of strategies; NULL: no edge any more */
    int copy;      /* variable that the users' copies are, or -1 */
} edge_t;

/* A copy of a tensor for its user: in one of the specs that the user may want, or none because the
 * tensor is kept in that spec already. */
typedef struct copy {
    int edge;
    int specs;
    ap_spec_t *spec;
    int *sample; /* per spec: a strategy of the user that wants it */
    bool twice;  /* the user may run again */
} copy_t;

/* What a variable uses during some of the times that were kept. */
typedef struct load {
    int variable, first, end;
    size_t amount; /* per option, in emission_t */
    bool own;      /* on the variable's node itself; others have a node for it */
    int levels;    /* different amounts */
} load_t;

typedef struct emission {
    ap_shard_network_t *n;
    bool limited;
    int edges;
    edge_t *edge;
    int *next; /* chains of edges with one hash */
    int *head; /* per hash */
    int copies, copy_capacity;
    copy_t *copy;
    double *unary;    /* per class and strategy: wires from a class to itself */
    size_t *unary_at; /* per class */
    ap_shard_span_t *span;
    int spans;
    load_t *load;
    int loads;
    int64_t *amount; /* of the loads */
    size_t amounts;
    int64_t *scratch; /* amounts of one load, sorted */
} emission_t;

enum { HASH_SIZE = 1 << 16 };

static xm_status_t no_memory(void)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the network of a sharding problem");
}

static int class_of(const emission_t *e, int node)
{
    return e->n->alike.class_of[node];
}

static const ap_shard_variable_t *variable(const emission_t *e, int node)
{
    return &e->n->variable[class_of(e, node)];
}

static unsigned hash_wire(const emission_t *e, const ap_shard_wire_t *wire)
{
    uint64_t hash = (uint64_t)class_of(e, wire->from) << 32 | (unsigned)class_of(e, wire->to);

    hash = (hash ^ (uint64_t)(wire->from_term * 16 + wire->to_term)) * UINT64_C(0x9e3779b97f4a7c15);
    return (unsigned)(hash >> 48) % HASH_SIZE;
}

static bool same_wire(const emission_t *e, const ap_shard_wire_t *a, const ap_shard_wire_t *b)
{
    return class_of(e, a->from) == class_of(e, b->from) && a->from_term == b->from_term &&
           class_of(e, a->to) == class_of(e, b->to) && a->to_term == b->to_term &&
           a->alias == b->alias && a->weight <= b->weight && a->weight >= b->weight &&
           ap_shard_same_segment(e->n, a) == ap_shard_same_segment(e->n, b);
}

static xm_status_t add_edge(emission_t *e, int w, unsigned hash)
{
    const ap_shard_problem_t *p = e->n->problem;
    const ap_shard_wire_t *wire = &p->wire[w];
    edge_t *edge = &e->edge[e->edges];
    size_t cells =
        (size_t)ap_shard_set_of(p, wire->from)->count * (size_t)ap_shard_set_of(p, wire->to)->count;

    *edge = (edge_t){.wire = w, .count = 1, .copy = -1};
    edge->costs = malloc(cells * sizeof(*edge->costs));
    if (edge->costs == NULL) {
        return no_memory();
    }
    e->next[e->edges] = e->head[hash];
    e->head[hash] = e->edges++;
    return ap_shard_wire_costs(p, wire, edge->costs);
}

static xm_status_t gather_edges(emission_t *e)
{
    const ap_shard_problem_t *p = e->n->problem;
    xm_status_t status = XM_OK;

    e->edge = calloc((size_t)p->wires + 1, sizeof(*e->edge));
    e->next = malloc(((size_t)p->wires + 1) * sizeof(int));
    e->head = malloc(HASH_SIZE * sizeof(int));
    if (e->edge == NULL || e->next == NULL || e->head == NULL) {
        return no_memory();
    }
    memset(e->head, -1, HASH_SIZE * sizeof(int));
    for (int w = 0; w < p->wires && status == XM_OK; ++w) {
        unsigned hash = hash_wire(e, &p->wire[w]);
        int k = e->head[hash];

        while (k >= 0 && !same_wire(e, &p->wire[w], &p->wire[e->edge[k].wire])) {
            k = e->next[k];
        }
        if (k >= 0) {
            ++e->edge[k].count;
        } else {
            status = add_edge(e, w, hash);
        }
    }
    return status;
}

/* Wires from a class to itself: what one choice for both ends costs. They are no edges then. */
static xm_status_t fold_loops(emission_t *e)
{
    const ap_shard_problem_t *p = e->n->problem;

    e->unary_at = calloc((size_t)e->n->alike.classes + 1, sizeof(*e->unary_at));
    if (e->unary_at == NULL) {
        return no_memory();
    }
    for (int c = 0; c < e->n->alike.classes; ++c) {
        e->unary_at[c + 1] =
            e->unary_at[c] + (size_t)ap_shard_set_of(p, e->n->variable[c].node)->count;
    }
    e->unary = calloc(e->unary_at[e->n->alike.classes] + 1, sizeof(*e->unary));
    if (e->unary == NULL) {
        return no_memory();
    }
    for (int k = 0; k < e->edges; ++k) {
        const ap_shard_wire_t *wire = &p->wire[e->edge[k].wire];
        int from = class_of(e, wire->from), count = ap_shard_set_of(p, wire->from)->count;

        for (int s = 0; s < count && from == class_of(e, wire->to); ++s) {
            e->unary[e->unary_at[from] + (size_t)s] +=
                e->edge[k].count * e->edge[k].costs[(size_t)s * (size_t)count + (size_t)s];
        }
        if (from == class_of(e, wire->to)) {
            free(e->edge[k].costs);
            e->edge[k].costs = NULL;
        }
    }
    return XM_OK;
}

static xm_status_t add_copy(emission_t *e, int k)
{
    const ap_shard_problem_t *p = e->n->problem;
    const ap_shard_wire_t *wire = &p->wire[e->edge[k].wire];
    const ap_shard_set_t *to = ap_shard_set_of(p, wire->to);
    copy_t made = {.edge = k, .twice = variable(e, wire->to)->modes};

    if (e->copies == e->copy_capacity) {
        int wanted = e->copy_capacity == 0 ? 64 : 2 * e->copy_capacity;
        copy_t *grown = realloc(e->copy, (size_t)wanted * sizeof(*grown));

        if (grown == NULL) {
            return no_memory();
        }
        e->copy = grown;
        e->copy_capacity = wanted;
    }
    made.spec = malloc((size_t)to->count * sizeof(*made.spec));
    made.sample = malloc((size_t)to->count * sizeof(*made.sample));
    if (made.spec == NULL || made.sample == NULL) {
        free(made.spec);
        free(made.sample);
        return no_memory();
    }
    for (int t = 0; t < to->count; ++t) {
        ap_spec_t spec = ap_shard_spec_at(to, t, wire->to_term);
        int at = 0;

        while (at < made.specs && made.spec[at] != spec) {
            ++at;
        }
        if (at == made.specs) {
            made.spec[made.specs] = spec;
            made.sample[made.specs++] = t;
        }
    }
    e->edge[k].copy = e->n->alike.classes + e->copies;
    e->copy[e->copies++] = made;
    return XM_OK;
}

/* Options of a copy: per spec none or one, each once or twice when the user may run again. */
static int copy_options(const copy_t *copy)
{
    return copy->specs * 2 * (copy->twice ? 2 : 1);
}

static int copy_spec(int option, const copy_t *copy)
{
    return option % copy->specs;
}

static bool copy_is_made(int option, const copy_t *copy)
{
    return option / copy->specs % 2 == 1;
}

static bool copy_is_again(int option, const copy_t *copy)
{
    return option / copy->specs / 2 == 1;
}

static xm_status_t make_copies(emission_t *e)
{
    const ap_shard_problem_t *p = e->n->problem;
    int *row_of = malloc(((size_t)e->edges + 1) * sizeof(int));
    xm_status_t status = row_of == NULL ? no_memory() : XM_OK;

    for (int k = 0; k < e->edges && status == XM_OK; ++k) {
        const ap_shard_wire_t *wire = &p->wire[e->edge[k].wire];
        const copy_t *copy;

        if (e->edge[k].costs == NULL || !e->limited || !ap_shard_has_copies(e->n, wire)) {
            continue;
        }
        status = add_copy(e, k);
        if (status != XM_OK) {
            break;
        }
        copy = &e->copy[e->copies - 1];
        status = ap_shard_row_add(e->n, e->edge[k].copy, copy_options(copy), AP_SHARD_TEMPORARIES,
                                  &row_of[k]);
        for (int o = 0; o < copy_options(copy) && status == XM_OK; ++o) {
            if (copy_is_made(o, copy)) {
                e->n->row[row_of[k]].bytes[o] =
                    ap_shard_local_bytes(p, wire->tensor, copy->spec[copy_spec(o, copy)]);
            }
        }
    }
    for (int w = 0; w < p->wires && status == XM_OK && e->copies > 0; ++w) {
        const ap_shard_wire_t *wire = &p->wire[w];

        for (int k = e->head[hash_wire(e, wire)]; k >= 0 && status == XM_OK; k = e->next[k]) {
            if (e->edge[k].copy >= 0 && same_wire(e, wire, &p->wire[e->edge[k].wire])) {
                int op = p->node[wire->to].op;

                status = ap_shard_use_add(e->n, row_of[k], op, op + 1);
            }
        }
    }
    free(row_of);
    return status;
}

static int options_of(const emission_t *e, int v)
{
    return v < e->n->alike.classes ? e->n->variable[v].options
                                   : copy_options(&e->copy[v - e->n->alike.classes]);
}

/* Per time, the first and the last operator of its class: one of them has the most of it all. */
static xm_status_t find_like(const emission_t *e, int **like)
{
    const ap_shard_problem_t *p = e->n->problem;
    int ops = ap_graph_ops(p->params.graph), classes = e->n->alike.classes;
    int *ends = malloc(2 * ((size_t)classes + 1) * sizeof(int));

    *like = malloc(2 * ((size_t)ops + 1) * sizeof(int));
    if (ends == NULL || *like == NULL) {
        free(ends);
        return no_memory();
    }
    for (int o = ops - 1; o >= 0; --o) {
        ends[2 * class_of(e, p->op_node[o])] = o;
    }
    for (int o = 0; o < ops; ++o) {
        ends[2 * class_of(e, p->op_node[o]) + 1] = o;
    }
    for (int o = 0; o < ops; ++o) {
        (*like)[2 * o] = ends[2 * class_of(e, p->op_node[o])];
        (*like)[2 * o + 1] = ends[2 * class_of(e, p->op_node[o]) + 1];
    }
    free(ends);
    return XM_OK;
}

static int compare_loads(const void *left, const void *right)
{
    const load_t *a = left, *b = right;

    if (a->variable != b->variable) {
        return a->variable < b->variable ? -1 : 1;
    }
    if (a->first != b->first) {
        return a->first < b->first ? -1 : 1;
    }
    return (a->end > b->end) - (a->end < b->end);
}

static int compare_amounts(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;

    return (a > b) - (a < b);
}

/* Sorts amounts and removes repetitions; returns how many are left. */
static int distinct(int64_t *amounts, int count)
{
    int kept = 0;

    qsort(amounts, (size_t)count, sizeof(*amounts), compare_amounts);
    for (int k = 0; k < count; ++k) {
        if (kept == 0 || amounts[k] != amounts[kept - 1]) {
            amounts[kept++] = amounts[k];
        }
    }
    return kept;
}

/* Loads of one variable over the same times become one; the first with a choice is its own. */
static xm_status_t merge_loads(emission_t *e)
{
    int kept = 0, widest = 1;

    for (int l = 0; l < e->loads; ++l) {
        int options = options_of(e, e->load[l].variable);

        widest = options > widest ? options : widest;
        if (kept > 0 && compare_loads(&e->load[l], &e->load[kept - 1]) == 0) {
            for (int o = 0; o < options; ++o) {
                e->amount[e->load[kept - 1].amount + (size_t)o] +=
                    e->amount[e->load[l].amount + (size_t)o];
            }
            continue;
        }
        e->load[kept++] = e->load[l];
    }
    e->loads = kept;
    e->scratch = malloc((size_t)widest * sizeof(*e->scratch));
    if (e->scratch == NULL) {
        return no_memory();
    }
    for (int l = 0; l < e->loads; ++l) {
        int options = options_of(e, e->load[l].variable);

        memcpy(e->scratch, e->amount + e->load[l].amount, (size_t)options * sizeof(*e->scratch));
        e->load[l].levels = distinct(e->scratch, options);
        e->load[l].own = l == 0 || e->load[l].variable != e->load[l - 1].variable;
    }
    return XM_OK;
}

static xm_status_t make_loads(emission_t *e)
{
    size_t amounts = 0;

    for (int k = 0; k < e->spans; ++k) {
        amounts += (size_t)options_of(e, e->n->row[e->span[k].row].variable);
    }
    e->load = malloc(((size_t)e->spans + 1) * sizeof(*e->load));
    e->amount = malloc((amounts + 1) * sizeof(*e->amount));
    if (e->load == NULL || e->amount == NULL) {
        return no_memory();
    }
    for (int k = 0; k < e->spans; ++k) {
        const ap_shard_span_t *span = &e->span[k];
        const ap_shard_row_t *row = &e->n->row[span->row];
        int options = options_of(e, row->variable);
        int64_t any = 0;

        for (int o = 0; o < options; ++o) {
            int64_t bytes = (int64_t)ceil(row->bytes[o]);

            e->amount[e->amounts + (size_t)o] = span->weight * bytes;
            any |= bytes;
        }
        if (any != 0) {
            e->load[e->loads++] = (load_t){.variable = row->variable,
                                           .first = span->first,
                                           .end = span->end,
                                           .amount = e->amounts};
            e->amounts += (size_t)options;
        }
    }
    if (e->loads > 0) {
        qsort(e->load, (size_t)e->loads, sizeof(*e->load), compare_loads);
    }
    return merge_loads(e);
}

static xm_status_t gather_loads(emission_t *e)
{
    int *like = NULL;
    xm_status_t status = XM_OK;

    if (!e->limited) {
        return XM_OK;
    }
    if (e->n->alike.repeats > 0) {
        status = find_like(e, &like);
    }
    if (status == XM_OK) {
        status = ap_shard_spans_find(e->n->use, e->n->uses, e->n->rows,
                                     ap_graph_ops(e->n->problem->params.graph), like, &e->span,
                                     &e->spans);
    }
    free(like);
    return status == XM_OK ? make_loads(e) : status;
}

/* A unit that lets all costs together fit. */
static void choose_scale(emission_t *e)
{
    double sum = 0;

    for (int c = 0; c < e->n->alike.classes; ++c) {
        const ap_shard_variable_t *v = &e->n->variable[c];
        double largest = 0;

        for (int o = 0; o < v->options; ++o) {
            double cost =
                v->option[o].cost + 2 * e->unary[e->unary_at[c] + (size_t)v->option[o].strategy];

            largest = cost < AP_COST_INFINITE ? fmax(largest, cost) : largest;
        }
        sum += largest;
    }
    for (int k = 0; k < e->edges; ++k) {
        const ap_shard_wire_t *wire = &e->n->problem->wire[e->edge[k].wire];
        int cells = ap_shard_set_of(e->n->problem, wire->from)->count *
                    ap_shard_set_of(e->n->problem, wire->to)->count;
        double largest = 0;

        for (int c = 0; c < cells && e->edge[k].costs != NULL; ++c) {
            double cost = e->edge[k].costs[c];

            largest = cost < AP_COST_INFINITE ? fmax(largest, cost) : largest;
        }
        sum += 2 * e->edge[k].count * largest;
    }
    e->n->scale = sum > 0 ? largest_sum / sum : 1;
}

static int64_t scaled(const emission_t *e, double cost)
{
    /* Rounded down, so that a bound on the integers is one on the costs. */
    return cost >= AP_COST_INFINITE ? AP_CFN_INFINITE : (int64_t)floor(cost * e->n->scale);
}

static xm_status_t allocate(emission_t *e)
{
    int variables = e->n->alike.classes + e->copies;
    size_t nodes = (size_t)variables, edges = 0, values = 0, cells = 0;
    ap_cfn_t *cfn = e->n->cfn = calloc(1, sizeof(*cfn));

    if (cfn == NULL) {
        return no_memory();
    }
    for (int v = 0; v < variables; ++v) {
        values += (size_t)options_of(e, v);
    }
    for (int k = 0; k < e->edges; ++k) {
        const ap_shard_wire_t *wire = &e->n->problem->wire[e->edge[k].wire];
        size_t from = (size_t)variable(e, wire->from)->options;
        size_t to = (size_t)variable(e, wire->to)->options;

        if (e->edge[k].costs != NULL && e->edge[k].copy < 0) {
            ++edges;
            cells += from * to;
        } else if (e->edge[k].costs != NULL) {
            edges += 2;
            cells += (from + to) * (size_t)options_of(e, e->edge[k].copy);
        }
    }
    for (int l = 0; l < e->loads; ++l) {
        if (!e->load[l].own) {
            ++nodes;
            ++edges;
            values += (size_t)e->load[l].levels;
            cells += (size_t)e->load[l].levels * (size_t)options_of(e, e->load[l].variable);
        }
    }
    cfn->node_at = calloc(nodes + 2, sizeof(*cfn->node_at));
    cfn->costs = calloc(values + 1, sizeof(*cfn->costs));
    cfn->usages = calloc(values + 1, sizeof(*cfn->usages));
    cfn->interval = calloc(2 * nodes + 1, sizeof(*cfn->interval));
    cfn->scope_at = calloc(edges + 2, sizeof(*cfn->scope_at));
    cfn->scope = calloc(2 * edges + 1, sizeof(*cfn->scope));
    cfn->cell_at = calloc(edges + 2, sizeof(*cfn->cell_at));
    cfn->cells = malloc((cells + 1) * sizeof(*cfn->cells));
    if (cfn->node_at == NULL || cfn->costs == NULL || cfn->usages == NULL ||
        cfn->interval == NULL || cfn->scope_at == NULL || cfn->scope == NULL ||
        cfn->cell_at == NULL || cfn->cells == NULL) {
        return no_memory();
    }
    return XM_OK;
}

static size_t add_node(ap_cfn_t *cfn, int options)
{
    size_t at = cfn->node_at[cfn->nodes];

    ++cfn->nodes;
    cfn->node_at[cfn->nodes] = at + (size_t)options;
    return at;
}

static int64_t *add_table(ap_cfn_t *cfn, int a, int b)
{
    size_t at = cfn->cell_at[cfn->edges];

    cfn->scope[2 * cfn->edges] = a;
    cfn->scope[2 * cfn->edges + 1] = b;
    ++cfn->edges;
    cfn->scope_at[cfn->edges] = 2 * cfn->edges;
    cfn->cell_at[cfn->edges] =
        at + ap_cfn_strategies(cfn, (size_t)a) * ap_cfn_strategies(cfn, (size_t)b);
    return cfn->cells + at;
}

static void emit_variables(emission_t *e)
{
    ap_cfn_t *cfn = e->n->cfn;

    for (int c = 0; c < e->n->alike.classes; ++c) {
        const ap_shard_variable_t *v = &e->n->variable[c];
        size_t at = add_node(cfn, v->options);

        for (int o = 0; o < v->options; ++o) {
            double loop = e->unary[e->unary_at[c] + (size_t)v->option[o].strategy];

            cfn->costs[at + (size_t)o] =
                scaled(e, v->option[o].cost + (v->option[o].keep == AP_SHARD_AGAIN ? 2 : 1) * loop);
        }
    }
    for (int k = 0; k < e->copies; ++k) {
        (void)add_node(cfn, copy_options(&e->copy[k]));
    }
}

/* What the two ends of an edge cost together. */
static int64_t pair_cost(const emission_t *e, const edge_t *edge, const ap_shard_option_t *from,
                         int strategy, bool again, int to_count)
{
    const ap_shard_wire_t *wire = &e->n->problem->wire[edge->wire];
    double cost = edge->costs[(size_t)from->strategy * (size_t)to_count + (size_t)strategy];
    bool there = from->keep == AP_SHARD_KEPT ||
                 (from->keep == AP_SHARD_AGAIN && ap_shard_same_segment(e->n, wire));

    if (cost >= AP_COST_INFINITE || (again && !there)) {
        return AP_CFN_INFINITE;
    }
    return scaled(e, (again ? 2 : 1) * edge->count * cost);
}

static void emit_plain_edge(emission_t *e, const edge_t *edge)
{
    const ap_shard_problem_t *p = e->n->problem;
    const ap_shard_wire_t *wire = &p->wire[edge->wire];
    const ap_shard_variable_t *from = variable(e, wire->from), *to = variable(e, wire->to);
    int to_count = ap_shard_set_of(p, wire->to)->count;
    int64_t *cell = add_table(e->n->cfn, class_of(e, wire->from), class_of(e, wire->to));

    for (int f = 0; f < from->options; ++f) {
        for (int t = 0; t < to->options; ++t) {
            *cell++ = pair_cost(e, edge, &from->option[f], to->option[t].strategy,
                                to->option[t].keep == AP_SHARD_AGAIN && !wire->alias, to_count);
        }
    }
}

/* The way to a copy costs; the way from it is free, and only for the spec that it has. */
static void emit_copied_edge(emission_t *e, const edge_t *edge)
{
    const ap_shard_problem_t *p = e->n->problem;
    const ap_shard_wire_t *wire = &p->wire[edge->wire];
    const ap_shard_variable_t *from = variable(e, wire->from), *to = variable(e, wire->to);
    const ap_shard_set_t *makes = ap_shard_set_of(p, wire->from),
                         *uses = ap_shard_set_of(p, wire->to);
    const copy_t *copy = &e->copy[edge->copy - e->n->alike.classes];
    int options = copy_options(copy);
    int64_t *cell = add_table(e->n->cfn, class_of(e, wire->from), edge->copy);

    for (int f = 0; f < from->options; ++f) {
        ap_spec_t made = ap_shard_spec_at(makes, from->option[f].strategy, wire->from_term);

        for (int o = 0; o < options; ++o) {
            int spec = copy_spec(o, copy);

            *cell++ = !copy_is_made(o, copy) && made != copy->spec[spec]
                          ? AP_CFN_INFINITE
                          : pair_cost(e, edge, &from->option[f], copy->sample[spec],
                                      copy_is_again(o, copy), uses->count);
        }
    }
    cell = add_table(e->n->cfn, edge->copy, class_of(e, wire->to));
    for (int o = 0; o < options; ++o) {
        for (int t = 0; t < to->options; ++t) {
            const ap_shard_option_t *option = &to->option[t];
            bool fits =
                ap_shard_spec_at(uses, option->strategy, wire->to_term) ==
                    copy->spec[copy_spec(o, copy)] &&
                (!copy->twice || (option->keep == AP_SHARD_AGAIN) == copy_is_again(o, copy));

            *cell++ = fits ? 0 : AP_CFN_INFINITE;
        }
    }
}

static void emit_loads(emission_t *e)
{
    ap_cfn_t *cfn = e->n->cfn;

    for (int l = 0; l < e->loads; ++l) {
        const load_t *load = &e->load[l];
        const int64_t *amount = e->amount + load->amount;
        size_t options = (size_t)options_of(e, load->variable), levels = (size_t)load->levels;
        size_t node = load->own ? (size_t)load->variable : cfn->nodes;

        if (load->own) {
            memcpy(cfn->usages + cfn->node_at[node], amount, options * sizeof(*amount));
        } else {
            size_t at = add_node(cfn, load->levels);
            int64_t *cell = add_table(cfn, load->variable, (int)node);

            memcpy(e->scratch, amount, options * sizeof(*amount));
            (void)distinct(e->scratch, (int)options);
            memcpy(cfn->usages + at, e->scratch, levels * sizeof(*amount));
            for (size_t c = 0; c < options * levels; ++c) {
                cell[c] = amount[c / levels] == e->scratch[c % levels] ? 0 : AP_CFN_INFINITE;
            }
        }
        cfn->interval[2 * node] = load->first;
        cfn->interval[2 * node + 1] = load->end;
    }
}

static void release(emission_t *e)
{
    for (int k = 0; k < e->edges; ++k) {
        free(e->edge[k].costs);
    }
    for (int k = 0; k < e->copies; ++k) {
        free(e->copy[k].spec);
        free(e->copy[k].sample);
    }
    free(e->edge);
    free(e->next);
    free(e->head);
    free(e->copy);
    free(e->unary);
    free(e->unary_at);
    free(e->span);
    free(e->load);
    free(e->amount);
    free(e->scratch);
}

xm_status_t ap_shard_network_emit(ap_shard_network_t *network, double memory_limit)
{
    emission_t e = {.n = network, .limited = memory_limit > 0};
    xm_status_t status = gather_edges(&e);

    if (status == XM_OK) {
        status = fold_loops(&e);
    }
    if (status == XM_OK) {
        status = make_copies(&e);
    }
    if (status == XM_OK) {
        status = gather_loads(&e);
    }
    if (status == XM_OK) {
        choose_scale(&e);
        status = allocate(&e);
    }
    if (status == XM_OK) {
        emit_variables(&e);
        for (int k = 0; k < e.edges; ++k) {
            if (e.edge[k].costs != NULL && e.edge[k].copy < 0) {
                emit_plain_edge(&e, &e.edge[k]);
            } else if (e.edge[k].costs != NULL) {
                emit_copied_edge(&e, &e.edge[k]);
            }
        }
        emit_loads(&e);
        network->cfn->limited = e.limited;
        network->cfn->limit = (int64_t)fmin(memory_limit, 9e18);
        status = ap_cfn_check(network->cfn);
    }
    release(&e);
    return status;
}
