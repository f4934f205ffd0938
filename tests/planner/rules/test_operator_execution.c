/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every operator's rule checked by running it on small SPMD devices. What an operator computes is
 * told here once more, as an equation that the rule knows nothing of. Under every strategy of the
 * rule each device evaluates the elements of its result tile from the operand tiles that it holds
 * and from nothing else; what is partial is then combined over its axes, and must be the tile of
 * the whole result.
 *
 * Equations: small letters tie dimensions as in einsum. Capital letters run over all of a dimension
 * whatever the result's element, as in a sort: each element counts with a weight of its own.
 */
#include <ctype.h>

#include "planner/frontend/hlo/hlo.h"
#include "planner/frontend/json.h"
#include "planner/cost/strategy.h"
#include "tests/planner/cost/profile_fixture.h"

enum { MOST = 1024, DEVICES = 4, LETTERS = 64, MOST_TERMS = 8 };

typedef struct shape {
    int rank;
    int size[AP_MAX_MESH_RANK];
} shape_t;

static const shape_t meshes[] = {{1, {4}}, {2, {2, 2}}};

enum { MESHES = sizeof(meshes) / sizeof(meshes[0]) };

typedef enum how {
    SUM,      /* of the products of all operands */
    LARGEST,  /* of the same */
    LOOK_UP,  /* the sum over 'v' of the rows whose number is in the operand of integers */
    PICK,     /* the same, and the sum of all */
    ADD_ROWS, /* operand 0, and the updates (2) whose index (1) is 'a' */
    MIRROR    /* 'b' is read backwards */
} how_t;

/* An equation taken apart. */
typedef struct equation {
    int terms, operands;
    int rank[MOST_TERMS];
    int letters[MOST_TERMS][AP_MAX_RANK];
    char letter[MOST_TERMS][AP_MAX_RANK][AP_MAX_DIM_FACTORS];
    int64_t size[LETTERS];
} equation_t;

static int number_of(char letter)
{
    return letter - 'A';
}

static void read_equation(equation_t *e, const char *text, const char *sizes, const ap_op_t *op,
                          const ap_shape_t *shapes)
{
    int term = 0;

    memset(e, 0, sizeof(*e));
    for (; *sizes != '\0'; sizes += 2) {
        e->size[number_of(sizes[0])] = sizes[1] - '0';
    }
    for (const char *c = text; *c != '\0'; ++c) {
        if (*c == ',' || *c == '-') {
            ++term;
            if (*c == '-') {
                e->operands = term;
                ++c;
            }
        } else if (*c == '(') {
            int d = e->rank[term]++;

            while (*++c != ')') {
                e->letter[term][d][e->letters[term][d]++] = *c;
            }
        } else {
            int d = e->rank[term]++;

            e->letters[term][d] = 1;
            e->letter[term][d][0] = *c;
            e->size[number_of(*c)] = shapes[term].dims[d];
        }
    }
    e->terms = term + 1;
    ck_assert_int_eq(e->operands, op->operand_count);
    ck_assert_int_eq(e->terms - e->operands, op->result_count);
    for (int t = 0; t < e->terms; ++t) {
        ck_assert_int_eq(e->rank[t], shapes[t].rank);
    }
}

/* Where a device is on an axis; devices are numbered row-major. */
static int position_of(const shape_t *mesh, int device, int axis)
{
    for (int a = mesh->rank - 1; a > axis; --a) {
        device /= mesh->size[a];
    }
    return device % mesh->size[axis];
}

/* The device at the other end of some axes. */
static int mirrored(const shape_t *mesh, int device, unsigned axes)
{
    int made = 0;

    for (int a = 0; a < mesh->rank; ++a) {
        int at = position_of(mesh, device, a);

        made = made * mesh->size[a] + ((axes >> a & 1U) != 0 ? mesh->size[a] - 1 - at : at);
    }
    return made;
}

static bool in_tile(const shape_t *mesh, const ap_shape_t *shape, ap_spec_t spec, int device,
                    const int64_t *at)
{
    for (int d = 0; d < shape->rank; ++d) {
        unsigned axes = ap_spec_axes(spec, d);
        int64_t shards = 1, block = 0, size;

        for (int a = 0; a < mesh->rank; ++a) {
            if ((axes >> a & 1U) != 0) {
                shards *= mesh->size[a];
                block = block * mesh->size[a] + position_of(mesh, device, a);
            }
        }
        size = (shape->dims[d] + shards - 1) / shards;
        if (at[d] / size != block) {
            return false;
        }
    }
    return true;
}

static int64_t flat(const ap_shape_t *shape, const int64_t *at)
{
    int64_t index = 0;

    for (int d = 0; d < shape->rank; ++d) {
        index = index * shape->dims[d] + at[d];
    }
    return index;
}

static bool next(const ap_shape_t *shape, int64_t *at)
{
    for (int d = shape->rank - 1; d >= 0; --d) {
        if (++at[d] < shape->dims[d]) {
            return true;
        }
        at[d] = 0;
    }
    return false;
}

/* One operator on one device, or with `strategy` NULL on all of the data. */
typedef struct job {
    const equation_t *equation;
    how_t how;
    const shape_t *mesh;
    const ap_op_t *op;
    ap_shape_t shape[MOST_TERMS];
    double (*operand)[MOST];
    int index_term; /* of LOOK_UP: the operand of integers */
    const ap_strategy_t *strategy;
    int device;
    bool missed; /* something was not there */
} job_t;

/* Axes that cut factors whose shards are exchanged. */
static unsigned exchanged(const job_t *job)
{
    unsigned axes = 0;

    for (int f = 0; f < job->op->rule.factors; ++f) {
        axes |= job->op->rule.factor[f].kind == AP_FACTOR_PERMUTATION ? job->strategy->axes[f] : 0;
    }
    return axes;
}

/* An operand's element at the letters' values; false when this device does not have it. */
static bool take(job_t *job, int term, const int64_t *values, double *number)
{
    const equation_t *e = job->equation;
    int64_t at[AP_MAX_RANK] = {0};

    for (int d = 0; d < e->rank[term]; ++d) {
        for (int k = 0; k < e->letters[term][d]; ++k) {
            int letter = number_of(e->letter[term][d][k]);
            bool back = job->how == MIRROR && letter == number_of('b');

            at[d] = at[d] * e->size[letter] +
                    (back ? e->size[letter] - 1 - values[letter] : values[letter]);
        }
    }
    if (job->strategy != NULL && !in_tile(job->mesh, &job->shape[term], job->strategy->spec[term],
                                          mirrored(job->mesh, job->device, exchanged(job)), at)) {
        job->missed = true;
        return false;
    }
    *number = job->operand[term][flat(&job->shape[term], at)];
    return true;
}

/* What one setting of all letters adds to the result; false when something of it is not there. */
static bool contribution(job_t *job, const int64_t *values, double *number)
{
    double product = 1, factor;

    for (int t = job->how == ADD_ROWS ? 1 : 0; t < job->equation->operands; ++t) {
        bool index = (job->how == LOOK_UP || job->how == PICK) ? t == job->index_term
                                                               : job->how == ADD_ROWS && t == 1;

        if (!take(job, t, values, &factor)) {
            return false;
        }
        if (index) {
            int64_t row = values[number_of(job->how == ADD_ROWS ? 'a' : 'v')];

            product *= (int64_t)factor == row ? 1 : job->how == PICK ? 0.125 : 0;
        } else {
            product *= factor;
        }
    }
    *number = product;
    return true;
}

/* Whether the device counts what is there before updates are added: the first of those that share
 * them. */
static bool is_first(const job_t *job)
{
    for (int a = 0; a < job->mesh->rank && job->strategy != NULL; ++a) {
        if ((job->strategy->partial[0] >> a & 1U) != 0 &&
            position_of(job->mesh, job->device, a) != 0) {
            return false;
        }
    }
    return true;
}

/* Sets the letters of a result's element; capital ones give the element a weight. */
static double set_letters(const equation_t *e, int term, const int64_t *at, int64_t *values,
                          bool *fixed)
{
    double weight = 1;

    for (int d = 0; d < e->rank[term]; ++d) {
        int64_t rest = at[d];

        for (int k = e->letters[term][d] - 1; k >= 0; --k) {
            int letter = number_of(e->letter[term][d][k]);

            values[letter] = rest % e->size[letter];
            rest /= e->size[letter];
            fixed[letter] = islower(e->letter[term][d][k]) != 0;
            weight += fixed[letter] ? 0 : 0.25 * (double)(d + 1) * (double)values[letter];
        }
    }
    return weight;
}

static double evaluate(job_t *job, int result, const int64_t *at)
{
    const equation_t *e = job->equation;
    int64_t values[LETTERS] = {0};
    bool fixed[LETTERS] = {false}, runs[LETTERS] = {false};
    double weight = set_letters(e, e->operands + result, at, values, fixed);
    double sum = job->how == LARGEST ? -HUGE_VAL : 0, number;
    int letter = 0;

    for (int t = 0; t < e->operands; ++t) {
        for (int d = 0; d < e->rank[t]; ++d) {
            for (int k = 0; k < e->letters[t][d]; ++k) {
                int of = number_of(e->letter[t][d][k]);

                runs[of] = !fixed[of];
                values[of] = fixed[of] ? values[of] : 0;
            }
        }
    }
    if (job->how == ADD_ROWS && is_first(job) && take(job, 0, values, &number)) {
        sum = number;
    }
    while (letter < LETTERS) {
        if (contribution(job, values, &number)) {
            for (int l = 0; l < number_of('a'); ++l) {
                number *= runs[l] ? 1 + 0.5 * (double)values[l] : 1;
            }
            sum = job->how == LARGEST ? fmax(sum, number) : sum + number;
        }
        for (letter = 0; letter < LETTERS; ++letter) {
            if (runs[letter] && ++values[letter] < e->size[letter]) {
                break;
            }
            values[letter] = runs[letter] ? 0 : values[letter];
        }
    }
    return weight * sum;
}

static bool same_group(const shape_t *mesh, int a, int b, unsigned axes)
{
    for (int axis = 0; axis < mesh->rank; ++axis) {
        if ((axes >> axis & 1U) == 0 && position_of(mesh, a, axis) != position_of(mesh, b, axis)) {
            return false;
        }
    }
    return true;
}

/* All devices under one strategy, result by result. */
static void check_strategy(job_t *job, const char *what, double whole[][MOST])
{
    static double local[DEVICES][MOST];
    char text[256];

    (void)ap_strategy_format(&job->op->rule, job->strategy, text, sizeof(text));
    for (int r = 0; r < job->op->result_count; ++r) {
        const int term = job->op->operand_count + r;
        const ap_shape_t *shape = &job->shape[term];
        const unsigned partial = job->strategy->partial[r];
        int64_t at[AP_MAX_RANK] = {0};

        for (job->device = 0; job->device < DEVICES; ++job->device) {
            memset(at, 0, sizeof(at));
            job->missed = false;
            do {
                if (in_tile(job->mesh, shape, job->strategy->spec[term], job->device, at)) {
                    local[job->device][flat(shape, at)] = evaluate(job, r, at);
                }
            } while (next(shape, at));
            ck_assert_msg(!job->missed || partial != 0,
                          "%s, %s: a device reads what it does not have", what, text);
        }
        do {
            for (int device = 0; device < DEVICES; ++device) {
                double sum = job->how == LARGEST ? -HUGE_VAL : 0;
                int64_t i = flat(shape, at);

                if (!in_tile(job->mesh, shape, job->strategy->spec[term], device, at)) {
                    continue;
                }
                for (int other = 0; other < DEVICES; ++other) {
                    if (same_group(job->mesh, device, other, partial)) {
                        sum = job->how == LARGEST ? fmax(sum, local[other][i])
                                                  : sum + local[other][i];
                    }
                }
                ck_assert_msg(fabs(sum - whole[r][i]) <= 1e-9 * (1 + fabs(whole[r][i])),
                              "%s, %s: element %d of result %d on device %d is %g, not %g", what,
                              text, (int)i, r, device, sum, whole[r][i]);
            }
        } while (next(shape, at));
    }
}

/* Every strategy of a graph's only operator; returns their number. */
static int check_operator(const ap_graph_t *graph, const char *what, const char *text,
                          const char *sizes, how_t how, bool uneven)
{
    static double operands[MOST_TERMS][MOST], whole[MOST_TERMS][MOST];
    const ap_strategy_options_t options = {.scatter = false};
    ap_alpa_params_t alpa = AP_ALPA_PARAMS_INIT;
    const ap_op_t *op = ap_graph_op(graph, 0);
    job_t job = {.how = how, .op = op, .operand = operands};
    ap_strategy_context_t site = {.rule = &op->rule};
    equation_t equation;
    ap_cost_model_t *model;
    unsigned seed = 7;
    int count = 0;

    ck_assert_int_eq(ap_graph_ops(graph), 1);
    for (int t = 0; t < op->operand_count + op->result_count; ++t) {
        int tensor = t < op->operand_count ? op->operands[t] : op->results[t - op->operand_count];
        const ap_tensor_t *of = ap_graph_tensor(graph, tensor);
        int64_t elements = 1;

        job.shape[t] = of->shape;
        for (int d = 0; d < of->shape.rank; ++d) {
            elements *= of->shape.dims[d];
        }
        ck_assert_int_le(elements, MOST);
        if (t < op->operand_count && of->dtype == AP_DTYPE_I32) {
            job.index_term = t;
        }
        for (int64_t i = 0; i < elements && t < op->operand_count; ++i) {
            operands[t][i] = fixture_random(&seed) % (of->dtype == AP_DTYPE_I32 ? 4 : 9) +
                             (of->dtype == AP_DTYPE_I32 ? 0 : 1);
        }
    }
    site.element_bytes = 4;
    read_equation(&equation, text, sizes, op, job.shape);
    job.equation = &equation;
    for (int r = 0; r < op->result_count; ++r) {
        int64_t at[AP_MAX_RANK] = {0};

        job.mesh = &meshes[0];
        do {
            whole[r][flat(&job.shape[op->operand_count + r], at)] = evaluate(&job, r, at);
        } while (next(&job.shape[op->operand_count + r], at));
    }
    ck_assert_xm_ok(ap_cost_model_create_alpa(&alpa, &model));
    for (int m = 0; m < MESHES; ++m) {
        ap_strategy_list_t list;
        ap_cost_mesh_t *mesh;

        ck_assert_xm_ok(
            ap_cost_mesh_create(model, 1, DEVICES, meshes[m].size, meshes[m].rank, &mesh));
        if (uneven) {
            ap_cost_mesh_allow_uneven(mesh);
        }
        site.mesh = mesh;
        job.mesh = &meshes[m];
        ck_assert_xm_ok(ap_strategy_enumerate(&site, &options, &list));
        for (int s = 0; s < list.count; ++s) {
            job.strategy = &list.items[s];
            check_strategy(&job, what, whole);
        }
        count += list.count;
        ap_strategy_list_free(&list);
        ap_cost_mesh_destroy(mesh);
    }
    ap_cost_model_destroy(model);
    return count;
}

/* In shapes and attributes A, B, C and D are sizes: 4 4 4 4, and where nothing must divide 5 3 6 7.
 * `cuts`: at least so many strategies more than leaving all whole, over both meshes. */
static const struct {
    const char *type, *line, *equation;
    how_t how;
    const char *sizes; /* of letters that share a dimension; such cases are even only */
    int cuts;
} lines[] = {
    {"f32[A,B,C]", "add(x, y)", "abc,abc->abc", SUM, "", 3},
    {"f32[A,B,C]", "multiply(x, x)", "abc->abc", SUM, "", 3},
    {"f32[A,B,C]", "select(p, x, y)", "abc,abc,abc->abc", SUM, "", 3},
    {"f32[A,B,C]", "clamp(g, x, g)", ",abc->abc", SUM, "", 3},
    {"f16[A,B,C]", "convert(x)", "abc->abc", SUM, "", 3},
    {"u8[A,B,C,4]", "bitcast-convert(x)", "abc->abcD", SUM, "", 3},
    {"f32[A,B,C]", "broadcast(v), dimensions={1}", "b->abc", SUM, "", 3},
    {"f32[C,A,B]", "transpose(x), dimensions={2,0,1}", "abc->cab", SUM, "", 3},
    {"f32[16,C]", "reshape(x)", "abc->(ab)c", SUM, "a4b4", 3},
    {"f32[A,2,2,C]", "reshape(x)", "a(bd)c->abdc", SUM, "b2d2", 3},
    {"f32[A,B,D]", "dot(x, w), lhs_contracting_dims={2}, rhs_contracting_dims={0}", "abc,cd->abd",
     SUM, "", 3},
    {"f32[A,B,B]",
     "dot(x, y), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
     "rhs_contracting_dims={2}",
     "abc,adc->abd", SUM, "", 3},
    {"f32[B]", "reduce(x, zero), dimensions={0,2}, to_apply=add", "abc->b", SUM, "", 3},
    {"f32[A,C]", "reduce(x, zero), dimensions={1}, to_apply=larger", "abc->ac", LARGEST, "", 3},
    {"f32[A,C]", "reduce(x, zero), dimensions={1}, to_apply=swap", "aBc->ac", SUM, "", 2},
    {"f32[A,1,C]", "slice(x), slice={[0:A], [1:2], [0:C]}", "aBc->aDc", SUM, "", 2},
    {"f32[A,8,C]", "pad(x, g), padding=0_0x1_xx0_0", "aBc->aDc", SUM, "", 2},
    {"f32[A,1,C]", "dynamic-slice(x, none, none, none), dynamic_slice_sizes={A,1,C}", "aBc->aDc",
     SUM, "", 2},
    {"f32[A,B,C]", "dynamic-update-slice(x, u, none, none, none)", "aBc,aDc->aEc", SUM, "", 2},
    {"f32[A,B,C]", "reverse(x), dimensions={1}", "abc->abc", MIRROR, "", 3},
    {"f32[A,B,D]",
     "gather(w, i), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, "
     "index_vector_dim=2, slice_sizes={1,D}",
     "vd,ab->abd", LOOK_UP, "", 3},
    {"f32[C,D]",
     "scatter(w, i, z), update_window_dims={2}, inserted_window_dims={0}, "
     "scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=add",
     "ad,bc,bcd->ad", ADD_ROWS, "", 3},
    {"f32[C,D]",
     "scatter(w, i, z), update_window_dims={2}, inserted_window_dims={0}, "
     "scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=swap",
     "ad,BC,BCd->ad", SUM, "", 2},
    {"f32[A,B,C]", "sort(x), dimensions={1}, to_apply=swap", "aBc->aDc", SUM, "", 2},
    {"f32[A,B,B]", "cholesky(s), lower=true", "aBC->aDE", SUM, "", 1},
    {"f32[A,B,C]", "triangular-solve(s, x), left_side=true", "aBC,aDE->aFG", SUM, "", 1},
    {"f32[A,B,C]", "fft(x), fft_type=FFT, fft_length={C}", "abC->abD", SUM, "", 2},
    {"f32[A,B,C]", "reduce-window(x, zero), window={size=1x3x1 pad=0_0x1_1x0_0}, to_apply=add",
     "aBc->aDc", SUM, "", 2},
    {"f32[A,B,C]",
     "select-and-scatter(x, y, zero), window={size=1x3x1 pad=0_0x1_1x0_0}, select=swap, "
     "scatter=add",
     "aBc,aDc->aEc", SUM, "", 2},
    {"(f32[A,B,2], s32[A,B,2])", "custom-call(x), custom_call_target=\"TopK\"", "abC->abD,abD", SUM,
     "", 2},
    {"f32[A,B,C]", "custom-call(x), custom_call_target=\"mystery\"", "ABC->DEF", SUM, "", 0},
    {"f32[A,B,C]",
     "custom-call(x), custom_call_target=\"Sharding\", sharding={devices=[4,1,1]<=[4]}", "abc->abc",
     SUM, "", 3},
    {"f32[A,1,1,D]", "convolution(m, k), window={size=3x3}, dim_labels=b01f_01io->b01f",
     "aHWc,JKcd->aXYd", SUM, "", 3},
    {"f32[A,3,3,D]", "convolution(m, l), window={size=1x1}, dim_labels=b01f_01io->b01f",
     "ahwc,JKcd->ahwd", SUM, "", 3},
    {"f32[A,1,1,8]",
     "convolution(m, n), window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=2",
     "aHW(gi),JKi(go)->aXY(go)", SUM, "g2i2o4", 3},
    {"f32[2,1,1,8]",
     "convolution(m, o), window={size=3x3}, dim_labels=b01f_01io->b01f, batch_group_count=2",
     "(gb)HWi,JKi(go)->bXY(go)", SUM, "g2b2o4", 2},
};

/* A line with its sizes put in; xx is what pads a dimension of B to 8. */
static void put_sizes(const char *text, bool uneven, char *buffer, size_t size)
{
    static const char even[] = "4444", odd[] = "5367";
    size_t used = 0;

    for (const char *c = text; *c != '\0' && used + 4 < size; ++c) {
        bool bare = c == text || strchr("[,:{", c[-1]) != NULL;

        if (*c >= 'A' && *c <= 'D' && bare && strchr(",]}:", c[1]) != NULL) {
            buffer[used++] = (uneven ? odd : even)[*c - 'A'];
        } else if (c[0] == 'x' && c[1] == 'x') {
            buffer[used++] = uneven ? '4' : '3';
            ++c;
            buffer[used++] = 'x';
        } else {
            buffer[used++] = *c;
        }
    }
    buffer[used] = '\0';
}

static const char module[] =
    "HloModule m\n"
    "add {\n  p = f32[] parameter(0)\n  q = f32[] parameter(1)\n  ROOT s = f32[] add(p, q)\n}\n"
    "larger {\n  p = f32[] parameter(0)\n  q = f32[] parameter(1)\n"
    "  ROOT s = f32[] maximum(p, q)\n}\n"
    "swap {\n  p = f32[] parameter(0)\n  q = f32[] parameter(1)\n  ROOT s = f32[] subtract(q, "
    "p)\n}\n"
    "ENTRY main {\n"
    "  x = f32[A,B,C] parameter(0)\n  y = f32[A,B,C] parameter(1)\n  w = f32[C,D] parameter(2)\n"
    "  i = s32[A,B] parameter(3)\n  v = f32[B] parameter(4)\n  g = f32[] parameter(5)\n"
    "  p = pred[A,B,C] parameter(6)\n  u = f32[A,1,C] parameter(7)\n  z = f32[A,B,D] parameter(8)\n"
    "  s = f32[A,B,B] parameter(9)\n  m = f32[A,3,3,C] parameter(10)\n"
    "  k = f32[3,3,C,D] parameter(11)\n  l = f32[1,1,C,D] parameter(12)\n"
    "  n = f32[3,3,2,8] parameter(13)\n  o = f32[3,3,C,8] parameter(14)\n"
    "  zero = f32[] constant(0)\n  none = s32[] constant(0)\n";

START_TEST(operators_of_hlo_run_under_every_strategy)
{
    for (int uneven = 0; uneven < 2; ++uneven) {
        char text[4096], filled[4096];
        ap_graph_t *graph;
        int count;

        if (uneven && lines[_i].sizes[0] != '\0') {
            continue;
        }
        (void)snprintf(text, sizeof(text), "%s  ROOT r = %s %s\n}\n", module, lines[_i].type,
                       lines[_i].line);
        put_sizes(text, uneven, filled, sizeof(filled));
        ck_assert_xm_ok(ap_hlo_from_text(filled, strlen(filled), "test", &graph, NULL));
        count = check_operator(graph, lines[_i].line, lines[_i].equation, lines[_i].sizes,
                               lines[_i].how, uneven);
        ck_assert_msg(count >= MESHES + (uneven ? 0 : lines[_i].cuts), "%s: %d strategies",
                      lines[_i].line, count);
        ap_graph_destroy(graph);
    }
}
END_TEST

static const struct {
    const char *op, *equation;
    how_t how;
} kinds[] = {
    {"\"kind\": \"matmul\", \"operands\": [\"x\", \"w\"]", "abc,cd->abd", SUM},
    {"\"kind\": \"einsum\", \"operands\": [\"x\", \"y\"], \"equation\": \"abc,adc->bd\"",
     "abc,adc->bd", SUM},
    {"\"kind\": \"elementwise\", \"operands\": [\"x\", \"c\"]", "abc,c->abc", SUM},
    {"\"kind\": \"reduce\", \"operands\": [\"x\"], \"dims\": [1]", "abc->ac", SUM},
    {"\"kind\": \"softmax\", \"operands\": [\"x\"]", "abC->abD", SUM},
    {"\"kind\": \"layer_norm\", \"operands\": [\"x\", \"c\", \"c2\"]", "abC,D,E->abF", SUM},
    {"\"kind\": \"embedding\", \"operands\": [\"i\", \"w\"]", "ab,vd->abd", LOOK_UP},
    {"\"kind\": \"cross_entropy\", \"operands\": [\"x\", \"i\"]", "abv,ab->ab", PICK},
    {"\"kind\": \"transpose\", \"operands\": [\"x\"], \"order\": [0, 2, 1]", "abc->acb", SUM},
    {"\"kind\": \"broadcast\", \"operands\": [\"w\"], \"shape\": [3, 4, 4]", "ab->cab", SUM},
    {"\"kind\": \"slice\", \"operands\": [\"x\"], \"shape\": [4, 4, 2]", "abC->abD", SUM},
    {"\"kind\": \"concat\", \"operands\": [\"x\", \"y\"]", "abC,abD->abE", SUM},
    {"\"kind\": \"split\", \"operands\": [\"x\"], \"parts\": [2, 2]", "abC->abD,abD", SUM},
    {"\"kind\": \"bias\", \"operands\": [\"x\", \"c\"], \"dim\": 1", "abc,b->abc", SUM},
    {"\"kind\": \"custom\", \"operands\": [\"x\"], \"results\": [{\"shape\": [4]}]", "ABC->D", SUM},
};

START_TEST(operators_of_json_run_under_every_strategy)
{
    static const char head[] =
        "{\"format\": \"autopar-graph\", \"version\": 1, \"name\": \"g\", \"tensors\": [\n"
        "{\"name\": \"x\", \"kind\": \"input\", \"shape\": [4, 4, 4]},\n"
        "{\"name\": \"y\", \"kind\": \"input\", \"shape\": [4, 4, 4]},\n"
        "{\"name\": \"w\", \"kind\": \"input\", \"shape\": [4, 4]},\n"
        "{\"name\": \"c\", \"kind\": \"input\", \"shape\": [4]},\n"
        "{\"name\": \"c2\", \"kind\": \"input\", \"shape\": [4]},\n"
        "{\"name\": \"i\", \"kind\": \"input\", \"shape\": [4, 4], \"dtype\": \"int32\"}],\n";
    char text[2048];
    ap_graph_t *graph;

    (void)snprintf(text, sizeof(text), "%s\"ops\": [{\"name\": \"r\", %s}]}", head, kinds[_i].op);
    ck_assert_xm_ok(ap_json_from_text(text, strlen(text), "test", &graph));
    (void)check_operator(graph, kinds[_i].op, kinds[_i].equation, "", kinds[_i].how, false);
    ap_graph_destroy(graph);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("operator_execution");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, operators_of_hlo_run_under_every_strategy, 0,
                        (int)(sizeof(lines) / sizeof(lines[0])));
    tcase_add_loop_test(tcase, operators_of_json_run_under_every_strategy, 0,
                        (int)(sizeof(kinds) / sizeof(kinds[0])));
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
