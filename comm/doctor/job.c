/* SPDX-License-Identifier: Apache-2.0 */
/* A check-up of a whole job: every rank examines its machine, and equal findings of many ranks
 * become one row. Ranks exchange a card of fixed size first (versions, settings, clock),
 * because checks of one rank depend on its neighbours (how many share a host, which cores they
 * have). Everything goes over the bootstrap, since the transport is what may be ill. */
#include "comm/doctor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/doctor/compare.h"
#include "comm/doctor/doctor_private.h"

/* ROUNDS: allgathers of the bootstrap, for the clocks: each takes a round trip. */
enum { ROUNDS = 16, STAMP_SIZE = 8 };

typedef struct {
    xm_report_row_t row;
    int *ranks; /* the row's */
} entry_t;

struct xm_report {
    int ranks;
    xm_card_t *cards; /* by rank */
    entry_t *rows;
    int row_count;
    size_t row_room;
};

/* ---- the own card ---------------------------------------------------------------------------- */

/* The host's name as in the log; it is what ranks of one host have in common. */
static void name_host(char host[XM_CARD_HOST_SIZE])
{
    const char *named = xm_config_string(XM_CONFIG_HOST);

    if (named[0] != '\0') {
        (void)snprintf(host, XM_CARD_HOST_SIZE, "%.*s", XM_CARD_HOST_SIZE - 1, named);
    } else if (gethostname(host, XM_CARD_HOST_SIZE) != 0) {
        (void)snprintf(host, XM_CARD_HOST_SIZE, "?");
    }
    host[XM_CARD_HOST_SIZE - 1] = '\0';
}

static void set_text(xm_card_t *card, xm_aspect_t aspect, const char *text)
{
    (void)snprintf(card->text[aspect], sizeof(card->text[aspect]), "%.*s", XM_CARD_TEXT_SIZE - 1,
                   text);
}

/* Lists the different MTUs of a host's ports, "4096" or "1024 4096". */
static void format_rdma_mtus(const xm_doctor_facts_t *facts, char *text, size_t size)
{
    text[0] = '\0';
    for (int mtu = 256; mtu <= 4096; mtu *= 2) {
        bool found = false;

        for (int i = 0; i < facts->ports; ++i) {
            found = found || facts->port[i].mtu == mtu;
        }
        if (found) {
            xm_text_list_add(text, size, " ", "%d", mtu);
        }
    }
}

/* Fills in this rank's card; what is not known stays empty, and empty is equal to empty. */
static void fill_card(const xm_doctor_params_t *params, xm_card_t *card)
{
    char text[XM_CARD_TEXT_SIZE];
    xm_doctor_t doctor = {.params = params};
    xm_versions_t versions;

    *card = (xm_card_t){0};
    name_host(card->host);
    xm_versions_read(params->root != NULL ? params->root : "", &versions);
    set_text(card, XM_ASPECT_CROSSMESH, versions.crossmesh);
    set_text(card, XM_ASPECT_UCX, versions.ucx);
    set_text(card, XM_ASPECT_VERBS, versions.verbs);
    set_text(card, XM_ASPECT_HWLOC, versions.hwloc);
    set_text(card, XM_ASPECT_NVIDIA, versions.nvidia);
    set_text(card, XM_ASPECT_LINUX, versions.kernel);
    set_text(card, XM_ASPECT_SETTINGS, xm_config_fingerprint(text, sizeof(text)));
    xm_doctor_format_mtus(params->root, text, sizeof(text));
    set_text(card, XM_ASPECT_MTU, text);
    format_rdma_mtus(params->facts, text, sizeof(text));
    set_text(card, XM_ASPECT_RDMA_MTU, text);
    if (xm_doctor_read_cores(&doctor, text, sizeof(text))) {
        set_text(card, XM_ASPECT_CORES, text);
    }
}

/* ---- the clocks ------------------------------------------------------------------------------ */

/* Finds what to add to this rank's clock to have rank 0's. What rank 0 read is in the message
 * of its round: it is older than the round's end here, and newer than this rank's part in the
 * round before, without which rank 0 had not begun this one. Each round narrows both bounds; no
 * assumption about symmetric ways is needed. */
static xm_status_t compare_clocks(xm_bootstrap_t *bootstrap, double timeout, xm_card_t *card)
{
    int size = xm_bootstrap_size(bootstrap);
    uint8_t own[STAMP_SIZE], *all = malloc((size_t)size * STAMP_SIZE);
    int64_t low = INT64_MIN, high = INT64_MAX, before = 0;
    xm_status_t status = XM_OK;

    XM_NEED_MEMORY(all, "the clocks of %d ranks", size);
    for (int round = 0; status == XM_OK && round < ROUNDS; ++round) {
        int64_t begin = xm_clock_read_ns(CLOCK_REALTIME), end, theirs;

        xm_put_le(own, (uint64_t)begin, STAMP_SIZE);
        status = xm_bootstrap_allgather(bootstrap, own, all, STAMP_SIZE, timeout);
        end = xm_clock_read_ns(CLOCK_REALTIME);
        theirs = (int64_t)xm_get_le(all, STAMP_SIZE);
        low = theirs - end > low ? theirs - end : low;
        if (round > 0) {
            high = theirs - before < high ? theirs - before : high;
        }
        before = begin;
    }
    free(all);
    XM_TRY(status);
    /* A clock that was set meanwhile leaves nothing in between. */
    card->offset_ns = xm_bootstrap_rank(bootstrap) == 0 ? 0 : low + (high - low) / 2;
    card->uncertainty_ns = high > low ? (high - low) / 2 : 0;
    return XM_OK;
}

/* ---- all cards and findings ------------------------------------------------------------------ */

/* Without a bootstrap there is one rank, whose card is there already. */
static xm_status_t gather_cards(xm_bootstrap_t *bootstrap, double timeout, xm_report_t *self)
{
    int rank = bootstrap != NULL ? xm_bootstrap_rank(bootstrap) : 0;
    uint8_t own[XM_CARD_SIZE], *all;
    xm_card_t mine = self->cards[rank];
    xm_status_t status;

    if (bootstrap == NULL) {
        return XM_OK;
    }
    all = malloc((size_t)self->ranks * XM_CARD_SIZE);
    XM_NEED_MEMORY(all, "the cards of %d ranks", self->ranks);
    xm_card_encode(&mine, own);
    status = xm_bootstrap_allgather(bootstrap, own, all, XM_CARD_SIZE, timeout);
    for (int r = 0; status == XM_OK && r < self->ranks; ++r) {
        if (!xm_card_decode(all + (size_t)r * XM_CARD_SIZE, XM_CARD_SIZE, &self->cards[r])) {
            status = xm_error_set(XM_ERR_CORRUPT, "rank %d sent no card", r);
        }
    }
    free(all);
    return status;
}

static bool same(const xm_finding_t *a, const xm_finding_t *b)
{
    return a->severity == b->severity && strcmp(a->subject, b->subject) == 0 &&
           strcmp(a->text, b->text) == 0 && strcmp(a->advice, b->advice) == 0;
}

/* A new row goes behind the last one of its subject, else at the end, so that what belongs
 * together stands together. */
static int place_of(const xm_report_t *self, const xm_finding_t *finding)
{
    for (int row = self->row_count - 1; row >= 0; --row) {
        if (strcmp(self->rows[row].row.finding.subject, finding->subject) == 0) {
            return row + 1;
        }
    }
    return self->row_count;
}

/* Adds ranks first … last, which have not had this finding yet, to the row of an equal finding,
 * or makes one. */
static xm_status_t add(xm_report_t *self, const xm_finding_t *finding, int first, int last)
{
    entry_t *entry = NULL;

    for (int i = 0; i < self->row_count && entry == NULL; ++i) {
        entry = same(&self->rows[i].row.finding, finding) ? &self->rows[i] : NULL;
    }
    if (entry == NULL && XM_ARRAY_ROOM(self->rows, self->row_room, self->row_count)) {
        int place = place_of(self, finding);

        entry = &self->rows[place];
        memmove(entry + 1, entry, (size_t)(self->row_count++ - place) * sizeof(*entry));
        *entry = (entry_t){.row = {.finding = *finding}};
        entry->row.ranks = entry->ranks = calloc((size_t)self->ranks, sizeof(*entry->ranks));
    }
    if (entry == NULL || entry->ranks == NULL) {
        return XM_NO_MEMORY("a row of findings");
    }
    for (int rank = first; rank <= last && entry->row.count < self->ranks; ++rank) {
        entry->ranks[entry->row.count++] = rank;
    }
    return XM_OK;
}

static xm_status_t add_all(xm_report_t *self, const xm_findings_t *findings, int first, int last)
{
    xm_status_t status = XM_OK;

    for (int i = 0; status == XM_OK && i < xm_findings_count(findings); ++i) {
        status = add(self, xm_findings_get(findings, i), first, last);
    }
    return status;
}

/* A blob is a sequence of findings of fixed size; anything else is a rank of another build. */
static xm_status_t add_blob(xm_report_t *self, int rank, const uint8_t *blob, size_t length)
{
    xm_status_t status = length % XM_FINDING_SIZE == 0 ? XM_OK : XM_ERR_CORRUPT;

    for (size_t at = 0; status == XM_OK && at < length; at += XM_FINDING_SIZE) {
        xm_finding_t finding;

        if (!xm_finding_decode(blob + at, XM_FINDING_SIZE, &finding)) {
            return xm_error_set(XM_ERR_CORRUPT, "rank %d sent no findings", rank);
        }
        status = add(self, &finding, rank, rank);
    }
    return status;
}

static xm_status_t gather_findings(xm_bootstrap_t *bootstrap, double timeout, xm_report_t *self,
                                   const xm_findings_t *own)
{
    size_t count = (size_t)xm_findings_count(own), *offsets = NULL;
    uint8_t *blob;
    void *all = NULL;
    xm_status_t status;

    if (bootstrap == NULL) {
        return add_all(self, own, 0, 0);
    }
    blob = malloc(count * XM_FINDING_SIZE + 1);
    XM_NEED_MEMORY(blob, "%zu findings", count);
    for (size_t i = 0; i < count; ++i) {
        xm_finding_encode(xm_findings_get(own, (int)i), blob + i * XM_FINDING_SIZE);
    }
    status =
        xm_bootstrap_allgatherv(bootstrap, blob, count * XM_FINDING_SIZE, &all, &offsets, timeout);
    free(blob);
    for (int rank = 0; status == XM_OK && rank < self->ranks; ++rank) {
        status = add_blob(self, rank, (const uint8_t *)all + offsets[rank],
                          offsets[rank + 1] - offsets[rank]);
    }
    free(offsets);
    free(all);
    return status;
}

/* A difference between the ranks is a finding of all of them. */
static xm_status_t compare(xm_report_t *self)
{
    xm_findings_t *findings;
    xm_status_t status;

    if (self->ranks == 1) {
        return XM_OK;
    }
    XM_TRY(xm_findings_create(&findings));
    status = xm_doctor_compare(self->cards, self->ranks, findings)
                 ? add_all(self, findings, 0, self->ranks - 1)
                 : XM_NO_MEMORY("findings");
    xm_findings_destroy(findings);
    return status;
}

/* Counts the ranks of this host and their cores. Launchers bind ranks to cores of their own:
 * what counts is what those of a host have together. */
static void count_local(const xm_report_t *self, int rank, xm_doctor_params_t *params)
{
    bool marks[XM_DOCTOR_CORES] = {false}, given = true;

    params->ranks = self->ranks;
    params->local_ranks = params->local_cores = 0;
    for (int r = 0; r < self->ranks; ++r) {
        if (strcmp(self->cards[r].host, self->cards[rank].host) == 0) {
            ++params->local_ranks;
            given =
                xm_doctor_mark_list(self->cards[r].text[XM_ASPECT_CORES], marks, XM_DOCTOR_CORES) &&
                given;
        }
    }
    for (int i = 0; given && i < XM_DOCTOR_CORES; ++i) {
        params->local_cores += marks[i];
    }
}

/* The order is fixed: cards before the examination, which needs them; findings after it. */
static xm_status_t examine(xm_bootstrap_t *bootstrap, double timeout,
                           const xm_doctor_params_t *params, xm_report_t *self)
{
    int rank = bootstrap != NULL ? xm_bootstrap_rank(bootstrap) : 0;
    xm_doctor_params_t own = *params;
    xm_findings_t *findings;
    xm_status_t status = XM_OK;

    fill_card(params, &self->cards[rank]);
    if (bootstrap != NULL) {
        status = compare_clocks(bootstrap, timeout, &self->cards[rank]);
    }
    XM_THEN(status, gather_cards(bootstrap, timeout, self));
    if (status == XM_OK) {
        count_local(self, rank, &own);
        status = xm_doctor_examine(&own, &findings);
    }
    XM_TRY(status);
    status = gather_findings(bootstrap, timeout, self, findings);
    xm_findings_destroy(findings);
    return status == XM_OK ? compare(self) : status;
}

/* Collective; a NULL bootstrap means this process alone. */
xm_status_t xm_report_create(xm_bootstrap_t *bootstrap, double timeout,
                             const xm_doctor_params_t *params, xm_report_t **report)
{
    xm_report_t *self = calloc(1, sizeof(*self));
    xm_status_t status;

    XM_NEED_MEMORY(self, "a check-up");
    self->ranks = bootstrap != NULL ? xm_bootstrap_size(bootstrap) : 1;
    self->cards = calloc((size_t)self->ranks, sizeof(*self->cards));
    status = self->cards != NULL ? examine(bootstrap, timeout, params, self)
                                 : XM_NO_MEMORY("the cards of %d ranks", self->ranks);
    if (status < 0) {
        xm_report_destroy(self);
        return status;
    }
    *report = self;
    return XM_OK;
}

int xm_report_ranks(const xm_report_t *report)
{
    return report->ranks;
}

const char *xm_report_host(const xm_report_t *report, int rank)
{
    return report->cards[rank].host;
}

int xm_report_rows(const xm_report_t *report)
{
    return report->row_count;
}

const xm_report_row_t *xm_report_row(const xm_report_t *report, int row)
{
    return &report->rows[row].row;
}

int xm_report_count(const xm_report_t *report, xm_severity_t severity)
{
    int count = 0;

    for (int row = 0; row < report->row_count; ++row) {
        count += report->rows[row].row.finding.severity == severity;
    }
    return count;
}

void xm_report_destroy(xm_report_t *report)
{
    if (report == NULL) {
        return;
    }
    for (int row = 0; row < report->row_count; ++row) {
        free(report->rows[row].ranks);
    }
    free(report->rows);
    free(report->cards);
    free(report);
}
