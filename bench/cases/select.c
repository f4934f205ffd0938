/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which cases are run and in which variants. A case comes from one of five origins,
 * options override what it says, and each combination of strategy and scheduler becomes a
 * variant. The variants of a case stand next to each other, which the runners and the
 * comparison rely on.
 */
#include "bench/cases/select.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/cases/boundary.h"
#include "comm/base.h"

enum { MOST_CASES = 64 /* of all suites */ };

/* The cases begin as zeros, so a selection can be cleared at any point. */
static xm_status_t allocate(int capacity, rb_selection_t *selection)
{
    *selection = (rb_selection_t){.cases = calloc((size_t)capacity, sizeof(rb_case_t))};
    return selection->cases != NULL ? XM_OK : XM_NO_MEMORY("%d cases", capacity);
}

static xm_status_t select_all(const rb_options_t *options, rb_selection_t *selection)
{
    XM_TRY(allocate(rb_suite_cases(), selection));

    for (int i = 0; i < rb_suite_cases(); ++i) {
        if (options->suite == RB_ANY || rb_suite_holds((rb_suite_t)options->suite, i)) {
            XM_TRY(rb_suite_case(i, &selection->cases[selection->count++]));
        }
    }
    return XM_OK;
}

/* Names are looked up among the cases of the suite, if one is given, and among all cases
 * otherwise. */
static xm_status_t select_named(const rb_options_t *options, rb_selection_t *selection)
{
    const char *names[MOST_CASES];
    int index_of[MOST_CASES], count = 0;
    xm_status_t status = allocate((int)options->cases.count, selection);

    for (int i = 0; i < rb_suite_cases() && count < MOST_CASES; ++i) {
        if (options->suite == RB_ANY || rb_suite_holds((rb_suite_t)options->suite, i)) {
            index_of[count] = i;
            names[count++] = rb_suite_case_name(i);
        }
    }
    for (size_t i = 0; status == XM_OK && i < options->cases.count; ++i) {
        int index;

        status = xm_text_choose("case", options->cases.items[i], names, (size_t)count, &index);
        XM_THEN(status, rb_suite_case(index_of[index], &selection->cases[selection->count++]));
    }
    return status;
}

/* Meshes are parsed for their shapes here; ranks are placed later, when the hosts are
 * known. */
static xm_status_t describe_side(const char *option_mesh, const char *mesh_text,
                                 const char *option_ranks, const char *ranks_text,
                                 const char *option_spec, const char *spec_text, rb_side_t *side)
{
    xm_mesh_t *mesh;
    int count;
    xm_status_t status = xm_mesh_parse(mesh_text, NULL, 0, &mesh);

    if (status < 0) {
        return xm_error_prefix(status, "%s", option_mesh);
    }
    side->axes = xm_mesh_axes(mesh);
    for (int a = 0; a < side->axes; ++a) {
        side->sizes[a] = xm_mesh_axis_size(mesh, a);
    }
    xm_mesh_destroy(mesh);
    status = xm_spec_parse(spec_text, &side->spec);
    if (status < 0) {
        return xm_error_prefix(status, "%s", option_spec);
    }
    if (ranks_text == NULL) {
        return XM_OK;
    }
    XM_TRY(xm_rank_list_parse(option_ranks, ranks_text, &side->ranks, &count));
    if (count != rb_side_size(side)) {
        return XM_INVALID("%s names %d ranks, but %s %s has %d", option_ranks, count, option_mesh,
                          mesh_text, rb_side_size(side));
    }
    return XM_OK;
}

/* The ranks of a host: hosts are the rows of the meshes where both have rows of the same
 * length; else 0. */
static int rows_of_both(const rb_case_t *described)
{
    int row =
        rb_side_size(&described->src) / (described->src.axes > 0 ? described->src.sizes[0] : 1);

    if (described->src.axes < 2 || described->dst.axes < 2 ||
        rb_side_size(&described->dst) != row * described->dst.sizes[0]) {
        return 0;
    }
    return row;
}

static xm_status_t parse_shape(const char *text, rb_case_t *described)
{
    xm_status_t status = xm_shape_parse(text, &described->dims, described->shape);

    if (status < 0) {
        return xm_error_prefix(status, "--shape");
    }
    for (int d = 0; d < described->dims; ++d) {
        if (described->shape[d] == 0) {
            return XM_INVALID("--shape: '%s' has an extent of 0 in dimension %d, so there is "
                              "nothing to move (0x begins no hexadecimal number here)",
                              text, d);
        }
    }
    return XM_OK;
}

/* A case from the command line, with the defaults that suites' cases have. */
static xm_status_t describe(const rb_options_t *options, rb_case_t *described)
{
    xm_status_t status;

    (void)snprintf(described->name, sizeof(described->name), "own");
    (void)snprintf(described->dtype, sizeof(described->dtype), "float32");
    described->element_size = sizeof(float);
    described->strategy = RB_ANY;
    described->scheduler = RB_ANY;
    status = parse_shape(options->shape != NULL ? options->shape : "1", described);
    XM_THEN(status,
            describe_side("--src-mesh", options->src_mesh, "--src-ranks", options->src_ranks,
                          "--src-spec", options->src_spec, &described->src));
    XM_THEN(status,
            describe_side("--dst-mesh", options->dst_mesh, "--dst-ranks", options->dst_ranks,
                          "--dst-spec", options->dst_spec, &described->dst));
    described->ranks_per_host = rows_of_both(described);
    return status;
}

/* The parts that a side cuts dimension 0 into. */
static int64_t parts_of(const rb_side_t *side)
{
    int64_t parts = 1;

    for (int i = 0; side->spec.dims > 0 && i < side->spec.axis_count[0]; ++i) {
        parts *= side->axes > side->spec.axes[0][i] ? side->sizes[side->spec.axes[0][i]] : 1;
    }
    return parts;
}

/* Names a case of a sweep by its size as people ask for it: 8, 64K, 128M. */
static void name_size(uint64_t size, rb_case_t *one)
{
    const char *unit = " KMGT";

    for (; unit[1] != '\0' && size % 1024 == 0; size /= 1024) {
        ++unit;
    }
    (void)snprintf(one->name, sizeof(one->name), "%" PRIu64 "%.*s", size, *unit != ' ', unit);
}

/* Gives a case of a sweep the extent in dimension 0 that comes nearest to a size from below, and
 * that both sides can cut evenly, as nccl-tests rounds sizes to the number of ranks. */
static xm_status_t fit(const rb_options_t *options, uint64_t size, rb_case_t *one)
{
    int64_t parts = parts_of(&one->src), other = parts_of(&one->dst), row, whole = parts;

    XM_TRY(options->dtype != NULL ? rb_case_set_dtype(one, options->dtype) : XM_OK);
    if (one->dims == 0) {
        return XM_INVALID("a scalar has no sizes to sweep");
    }
    row = one->element_size;
    for (int d = 1; d < one->dims; ++d) {
        row *= one->shape[d];
    }
    while (whole % other != 0) {
        whole += parts;
    }
    one->shape[0] = (int64_t)size / row / whole * whole;
    one->shape[0] = one->shape[0] > 0 ? one->shape[0] : whole;
    name_size(size, one);
    return XM_OK;
}

static xm_status_t select_described(const rb_options_t *options, rb_selection_t *selection)
{
    uint64_t sizes[XM_SWEEP_MOST] = {0};
    bool sweep = xm_sweep_given(&options->sweep);
    int count = 1;
    XM_TRY(sweep ? xm_sweep_sizes(&options->sweep, sizes, &count) : XM_OK);

    XM_TRY(allocate(count, selection));
    for (int i = 0; i < count; ++i) {
        rb_case_t *one = &selection->cases[selection->count++];

        XM_TRY(describe(options, one));
        if (sweep) {
            XM_TRY(fit(options, sizes[i], one));
        }
        /* Sizes that come to the same tensor are one case. */
        if (i > 0 && sweep && one->shape[0] == one[-1].shape[0]) {
            rb_case_clear(one);
            *one = (rb_case_t){0};
            --selection->count;
        }
    }
    return XM_OK;
}

static xm_status_t select_boundary(const rb_options_t *options, rb_selection_t *selection)
{
    XM_TRY(allocate(1, selection));

    return rb_boundary_load(options->plan, options->boundary,
                            &selection->cases[selection->count++]);
}

static xm_status_t select_files(const rb_options_t *options, rb_selection_t *selection)
{
    XM_TRY(allocate(1, selection));

    rb_case_of_model(&(rb_model_request_t){.model_config = options->model_config, .packed = true},
                     &selection->cases[selection->count++]);
    return XM_OK;
}

/* Options that concern one tensor are refused for models, rather than ignored. */
static xm_status_t apply_to_model(const rb_options_t *options, rb_case_t *one)
{
    if (options->dtype != NULL || xm_cli_given(options->cli, "partition")) {
        return XM_INVALID(
            "--%s is about cases of one tensor; the tensors of a model have their own",
            options->dtype != NULL ? "dtype" : "partition");
    }
    one->request.system_config = options->system_config;
    one->request.shard_table = options->shard_table;
    one->request.scale = options->scale_divisor;
    return rb_case_load_model(one);
}

static xm_status_t apply_to_tensor(const rb_options_t *options, rb_case_t *one)
{
    xm_status_t status;

    if (options->system_config != NULL || options->shard_table != NULL) {
        return XM_INVALID("--%s is about models, but case %s is not one",
                          options->system_config != NULL ? "system-config" : "shard-table",
                          one->name);
    }
    status = rb_case_scale(one, options->scale_divisor);
    if (status == XM_OK && options->dtype != NULL) {
        status = rb_case_set_dtype(one, options->dtype);
    }
    one->partition = options->partition;
    return status;
}

static xm_status_t apply_overrides(const rb_options_t *options, rb_case_t *one)
{
    xm_status_t status =
        rb_case_is_model(one) ? apply_to_model(options, one) : apply_to_tensor(options, one);

    XM_TRY(status);
    one->seed = options->seed;
    return XM_OK;
}

/* The choices that are named, else what the case is made for, else a default. */
static rb_choices_t resolve(const rb_choices_t *named, int own, int fallback)
{
    return named->count > 0 ? *named : (rb_choices_t){{own != RB_ANY ? own : fallback}, .count = 1};
}

/* The schedulers that the ablation compares, unless others are named. */
static rb_choices_t schedulers_of(const rb_options_t *options, const rb_case_t *one)
{
    static const rb_choices_t ablation = {{XM_SCHEDULER_NAIVE, XM_SCHEDULER_BALANCE,
                                           XM_SCHEDULER_DFS, XM_SCHEDULER_GREEDY,
                                           XM_SCHEDULER_OPENSHOP},
                                          .count = 5};

    return options->suite == RB_SUITE_ABLATION && options->schedulers.count == 0
               ? ablation
               : resolve(&options->schedulers, one->scheduler, XM_SCHEDULER_AUTO);
}

/* The ablation is about schedulers, so like the paper's it stays with one strategy. */
static rb_choices_t strategies_of(const rb_options_t *options, const rb_case_t *one)
{
    return resolve(&options->strategies, one->strategy,
                   options->suite == RB_SUITE_ABLATION ? XM_STRATEGY_BROADCAST : XM_STRATEGY_AUTO);
}

/*
 * Puts every combination of strategy and scheduler in the place of each case. Variants
 * are copies that share what the case owns; the first of them owns it, so the old array
 * can simply be freed.
 */
static xm_status_t make_variants(const rb_options_t *options, rb_selection_t *selection)
{
    rb_selection_t made;

    XM_TRY(allocate(selection->count * RB_CHOICES * RB_CHOICES, &made));
    for (int i = 0; i < selection->count; ++i) {
        const rb_case_t *one = &selection->cases[i];
        rb_choices_t strategies = strategies_of(options, one);
        rb_choices_t schedulers = schedulers_of(options, one);
        int variants = strategies.count * schedulers.count;

        for (int v = 0; v < variants; ++v) {
            rb_case_t *variant = &made.cases[made.count++];

            *variant = *one;
            variant->variant = v;
            variant->variants = variants;
            variant->strategy = strategies.items[v / schedulers.count];
            variant->scheduler = schedulers.items[v % schedulers.count];
        }
    }
    free(selection->cases);
    *selection = made;
    return XM_OK;
}

/* A figure and a plan file show one plan, so more than one selected case or variant is
 * refused. */
static xm_status_t check_single(const rb_options_t *options, const rb_selection_t *selection)
{
    const char *option = options->plot_path != NULL ? "--plot" : "--dump-plan";

    if (selection->count == 1 || (options->plot_path == NULL && options->dump_path == NULL)) {
        return XM_OK;
    }
    if (selection->count == selection->cases[0].variants) {
        return XM_INVALID(
            "%s is about one plan, but %d are asked for; name one with --strategy and --scheduler",
            option, selection->count);
    }
    return XM_INVALID("%s is about one case, but %d are selected; name one with --case", option,
                      rb_selection_cases(selection));
}

int rb_selection_cases(const rb_selection_t *selection)
{
    int cases = 0;

    for (int i = 0; i < selection->count; ++i) {
        cases += selection->cases[i].variant == 0;
    }
    return cases;
}

xm_status_t rb_select(const rb_options_t *options, rb_selection_t *selection)
{
    rb_selection_t selected = {0};
    xm_status_t status;

    if (options->cases.count > 0) {
        status = select_named(options, &selected);
    } else if (options->src_mesh != NULL) {
        status = select_described(options, &selected);
    } else if (options->model_config != NULL) {
        status = select_files(options, &selected);
    } else if (options->plan != NULL) {
        status = select_boundary(options, &selected);
    } else {
        status = select_all(options, &selected);
    }
    for (int i = 0; status == XM_OK && i < selected.count; ++i) {
        status = apply_overrides(options, &selected.cases[i]);
    }
    XM_THEN(status, make_variants(options, &selected));
    XM_THEN(status, check_single(options, &selected));
    if (status < 0) {
        rb_selection_clear(&selected);
        return status;
    }
    *selection = selected;
    return XM_OK;
}

void rb_selection_clear(rb_selection_t *selection)
{
    for (int i = 0; i < selection->count; ++i) {
        rb_case_clear(&selection->cases[i]);
    }
    free(selection->cases);
    *selection = (rb_selection_t){0};
}
