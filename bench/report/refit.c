/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lines of the suite `refit`. After a dry run published and planned seconds stand side by
 * side; after runs on real ranks, which are of scaled models, the published ones would mean
 * nothing, and the times are split into what messages and what bytes cost.
 */
#include "bench/report/refit.h"

#include <math.h>
#include <stdlib.h>

/* Adds a transfer's hops between hosts to both ends, [host][out, in]. */
static void add_transfer(const xm_plan_t *plan, int64_t number, rb_load_t (*hosts)[2])
{
    xm_transfer_t transfer = xm_plan_transfer(plan, number);
    const xm_route_t *route = xm_plan_route(plan, transfer.route);
    double bytes = (double)xm_plan_transfer_bytes(plan, number);
    double chunks = (double)xm_plan_chunks(plan, number);

    for (int i = 0; i < route->count; ++i) {
        int from = xm_plan_host_of(plan, xm_hop_sender(&transfer, route, i));
        int to = xm_plan_host_of(plan, route->ranks[i]);

        if (from != to) {
            hosts[from][0].bytes += bytes;
            hosts[from][0].messages += chunks;
            hosts[to][1].bytes += bytes;
            hosts[to][1].messages += chunks;
        }
    }
}

xm_status_t rb_load_of(const xm_plan_t *plan, rb_load_t *load)
{
    size_t hosts = (size_t)xm_network_hosts(xm_plan_network(plan));
    rb_load_t(*loads)[2] = calloc(hosts, sizeof(*loads));

    XM_NEED_MEMORY(loads, "the loads of %zu hosts", hosts);
    for (int64_t t = 0; t < xm_plan_transfer_count(plan); ++t) {
        add_transfer(plan, t, loads);
    }
    *load = (rb_load_t){0};
    for (size_t i = 0; i < 2 * hosts; ++i) {
        const rb_load_t *one = &loads[i / 2][i % 2];

        *load = one->bytes > load->bytes ? *one : *load;
    }
    free(loads);
    return XM_OK;
}

/* The normal equations of errors relative to the times. A term that would be negative is left
 * out, and the other one is fitted alone. */
bool rb_terms_fit(const rb_outcome_t *outcomes, size_t count, rb_terms_t *terms)
{
    double mm = 0, mb = 0, bb = 0, m = 0, b = 0, overhead, per_byte;

    for (size_t i = 0; i < count; ++i) {
        double messages = outcomes[i].load.messages / outcomes[i].time_s;
        double bytes = outcomes[i].load.bytes / outcomes[i].time_s;

        mm += messages * messages;
        mb += messages * bytes;
        bb += bytes * bytes;
        m += messages;
        b += bytes;
    }
    if (count < 2 || mm * bb - mb * mb <= 1e-9 * mm * bb) {
        return false;
    }
    overhead = (m * bb - b * mb) / (mm * bb - mb * mb);
    per_byte = (b * mm - m * mb) / (mm * bb - mb * mb);
    if (overhead < 0) {
        overhead = 0;
        per_byte = b / bb;
    } else if (per_byte < 0) {
        overhead = m / mm;
        per_byte = 0;
    }
    *terms = (rb_terms_t){.overhead_s = overhead, .bytes_per_s = 1 / per_byte};
    for (size_t i = 0; i < count; ++i) {
        double time = outcomes[i].load.messages * overhead + outcomes[i].load.bytes * per_byte;
        double error = time / outcomes[i].time_s - 1;

        terms->worst_error = fabs(error) > terms->worst_error ? fabs(error) : terms->worst_error;
    }
    return true;
}

/* "2.39-2.83", or one number. */
static void print_seconds(xm_table_t *table, const rb_published_t *published)
{
    if (published->most_s > published->least_s) {
        xm_table_text(table, "%.2f-%.2f", published->least_s, published->most_s);
    } else {
        xm_table_text(table, "%.2f", published->least_s);
    }
}

static void print_published(FILE *file, const rb_comparison_t *comparison)
{
    static const xm_table_column_t columns[] = {
        {"case", "", -10, false},         {"model", "", -21, false},
        {"mapping", "", -25, false},      {"published (s)", "", 13, false},
        {"bound (s)", "", 9, false},      {"planned (s)", "", 11, false},
        {"planned/bound", "", 13, false}, {"planning (s)", "", 12, false}};
    xm_table_t table = {file, columns, sizeof(columns) / sizeof(columns[0]), .start = '#'};

    (void)fprintf(file, "#\n# Published refits beside their plans\n");
    xm_table_head(&table);
    for (size_t i = 0; i < comparison->count; ++i) {
        const rb_outcome_t *outcome = &comparison->outcomes[i];
        const rb_published_t *published = rb_published_find(outcome->name);

        if (published != NULL) {
            xm_table_text(&table, "%s", outcome->name);
            xm_table_text(&table, "%s", published->model);
            xm_table_text(&table, "%s", published->mapping);
            print_seconds(&table, published);
            xm_table_number(&table, 4, outcome->time_s * outcome->bound_fraction);
            xm_table_number(&table, 4, outcome->time_s);
            xm_table_number(&table, 4, 1 / outcome->bound_fraction);
            xm_table_number(&table, 2, outcome->plan_s);
        }
    }
}

/* Where the published times are from, once a case. */
static void print_sources(FILE *file, const rb_comparison_t *comparison)
{
    for (size_t i = 0; i < comparison->count; ++i) {
        const rb_published_t *published = rb_published_find(comparison->outcomes[i].name);

        if (published != NULL && comparison->outcomes[i].variant == 0) {
            (void)fprintf(file, "# %-10s %s%s%s\n", published->name, published->source,
                          published->assumed != NULL ? "; assumed: " : "",
                          published->assumed != NULL ? published->assumed : "");
        }
    }
    (void)fprintf(file,
                  "# Planned seconds are a simulation of the transfer alone, published ones a "
                  "measurement of a whole refit.\n#\n");
}

static void print_terms(FILE *file, const rb_comparison_t *comparison, const rb_terms_t *terms)
{
    static const xm_table_column_t columns[] = {{"case", "", -10, false},
                                                {"messages", "", 9, false},
                                                {"bytes", "", 12, false},
                                                {"messages x overhead (s)", "", 23, false},
                                                {"bytes / bandwidth (s)", "", 21, false},
                                                {"time (s)", "", 9, false},
                                                {"registration (s)", "", 16, false}};
    xm_table_t table = {file, columns, sizeof(columns) / sizeof(columns[0]), .start = '#'};

    (void)fprintf(
        file,
        "#\n# time = messages x %.1f us + bytes / %.4f GB/s, fitted, of the busiest host; "
        "worst error %.1f %%. Registration comes once, before the first run.\n",
        terms->overhead_s * 1e6, terms->bytes_per_s * 1e-9, terms->worst_error * 100);
    xm_table_head(&table);
    for (size_t i = 0; i < comparison->count; ++i) {
        const rb_outcome_t *outcome = &comparison->outcomes[i];

        xm_table_text(&table, "%s", outcome->name);
        xm_table_number(&table, 0, outcome->load.messages);
        xm_table_number(&table, 0, outcome->load.bytes);
        xm_table_number(&table, 4, outcome->load.messages * terms->overhead_s);
        xm_table_number(&table, 4, outcome->load.bytes / terms->bytes_per_s);
        xm_table_number(&table, 4, outcome->time_s);
        xm_table_number(&table, 4, outcome->setup_s);
    }
    (void)fprintf(file, "#\n");
}

void rb_refit_print(FILE *file, const rb_comparison_t *comparison)
{
    size_t published = 0;
    rb_terms_t terms;

    for (size_t i = 0; i < comparison->count; ++i) {
        published += rb_published_find(comparison->outcomes[i].name) != NULL;
    }
    if (published > 0 && comparison->outcomes[0].runs == 0) {
        print_published(file, comparison);
        print_sources(file, comparison);
    } else if (published > 0 && rb_terms_fit(comparison->outcomes, comparison->count, &terms)) {
        print_terms(file, comparison, &terms);
    }
}
