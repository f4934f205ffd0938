/* SPDX-License-Identifier: Apache-2.0 */
/* The rails of a job's hosts, from what the ranks tell each other of their NICs. Names are sent as
 * hashes: what they are does not matter, only which are equal. */
#include "comm/worker/rails.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/topology.h"
#include "comm/worker/worker_private.h"

/* What a rank tells, little-endian. */
enum { CARD_COUNT, CARD_NICS, CARD_NUMBERS = CARD_NICS + 2 * XM_NICS_MAX };
typedef uint64_t card_t[CARD_NUMBERS];

/* Not 0, which is the NIC that nobody names. */
static uint64_t hash_name(const char *name)
{
    uint64_t hash = 1;

    for (; *name != '\0'; ++name) {
        hash = xm_hash_mix(hash, (uint64_t)(unsigned char)*name);
    }
    return hash | 1;
}

static void write_card(const xm_nics_t *nics, card_t card)
{
    memset(card, 0, sizeof(card_t));
    card[CARD_COUNT] = htole64((uint64_t)nics->count);
    for (int i = 0; i < nics->count; ++i) {
        const xm_nic_t *nic = &nics->nic[i];

        card[CARD_NICS + 2 * i] = htole64(nic->device[0] != '\0' ? hash_name(nic->device) : 0);
        card[CARD_NICS + 2 * i + 1] = htole64(nic->rate);
    }
}

static bool has(const card_t card, uint64_t name)
{
    for (uint64_t i = 0; i < card[CARD_COUNT]; ++i) {
        if (card[CARD_NICS + 2 * i] == name) {
            return true;
        }
    }
    return false;
}

/* How many NICs of one rank the other uses, too; all where one does not know what it uses. */
static uint64_t common(const card_t card, const card_t other)
{
    uint64_t count = 0;

    if (has(card, 0) || has(other, 0)) {
        return card[CARD_COUNT];
    }
    for (uint64_t i = 0; i < card[CARD_COUNT]; ++i) {
        count += has(other, card[CARD_NICS + 2 * i]);
    }
    return count;
}

/* Ranks that overlap in part are worth a line, because plans then know less than there is. */
static void join_rails(xm_worker_rails_t *rails, const int *host_of, const card_t *cards, int size)
{
    bool told = false;

    for (int rank = 0; rank < size; ++rank) {
        rails->of[rank] = rank;
        for (int other = 0; other < rank; ++other) {
            uint64_t shared =
                host_of[other] == host_of[rank] ? common(cards[rank], cards[other]) : 0;
            int from = rails->of[rank], to = rails->of[other];

            if (shared == 0) {
                continue;
            }
            if (!told && (shared < cards[rank][CARD_COUNT] ||
                          common(cards[other], cards[rank]) < cards[other][CARD_COUNT])) {
                told = true;
                xm_log_debug("ranks %d and %d have some NICs in common and others not; plans take "
                             "all of them for one",
                             other, rank);
            }
            /* The lower name stays, so that rails are named by their lowest rank. */
            for (int i = 0; i <= rank && from != to; ++i) {
                if (rails->of[i] == (from > to ? from : to)) {
                    rails->of[i] = from > to ? to : from;
                }
            }
        }
    }
}

/* Adds the NICs of a rank that no earlier one of its rail has named to the rate of the rail, which
 * is negative once one does not tell its speed. */
static void add_rate(const xm_worker_rails_t *rails, const card_t *cards, int rank, double *rate)
{
    for (uint64_t i = 0; i < cards[rank][CARD_COUNT]; ++i) {
        const uint64_t *nic = &cards[rank][CARD_NICS + 2 * i];
        bool counted = false;

        for (int other = 0; other < rank && !counted; ++other) {
            counted = rails->of[other] == rails->of[rank] && has(cards[other], nic[0]);
        }
        for (uint64_t k = 0; k < i && !counted; ++k) {
            counted = cards[rank][CARD_NICS + 2 * k] == nic[0];
        }
        if (!counted) {
            *rate = *rate < 0 || nic[1] == 0 ? -1 : *rate + (double)nic[1] / 8;
        }
    }
}

/* From rates of rails, which are in `share`, to shares of hosts. `rails_of` counts a host's. */
static void share_out(xm_worker_rails_t *rails, const int *host_of, const int *lowest, int hosts,
                      double *rails_of)
{
    for (int r = 0; r < rails->count; ++r) {
        double *sum = &rails->host_rate[host_of[lowest[r]]];

        ++rails_of[host_of[lowest[r]]];
        *sum = *sum < 0 || rails->share[r] <= 0 ? -1 : *sum + rails->share[r];
    }
    for (int r = 0; r < rails->count; ++r) {
        int h = host_of[lowest[r]];

        rails->share[r] =
            rails->host_rate[h] > 0 ? rails->share[r] / rails->host_rate[h] : 1 / rails_of[h];
    }
    for (int h = 0; h < hosts; ++h) {
        rails->host_rate[h] = rails->host_rate[h] > 0 ? rails->host_rate[h] : 0;
    }
}

static xm_status_t number_rails(xm_worker_rails_t *rails, const int *host_of, const card_t *cards,
                                int size)
{
    int *lowest = malloc((size_t)size * sizeof(*lowest));
    double *rails_of = calloc((size_t)size, sizeof(*rails_of));

    if (lowest == NULL || rails_of == NULL) {
        free(rails_of);
        free(lowest);
        return XM_NO_MEMORY("the rails of %d ranks", size);
    }
    for (int rank = 0; rank < size; ++rank) {
        int first = rails->of[rank];

        if (first == rank) {
            lowest[rails->count++] = rank;
        }
        rails->of[rank] = first == rank ? rails->count - 1 : rails->of[first];
        add_rate(rails, cards, rank, &rails->share[rails->of[rank]]);
    }
    share_out(rails, host_of, lowest, size, rails_of);
    free(rails_of);
    free(lowest);
    return XM_OK;
}

static bool on_one_host(const int *host_of, int size)
{
    for (int rank = 1; rank < size; ++rank) {
        if (host_of[rank] != host_of[0]) {
            return false;
        }
    }
    return true;
}

static xm_status_t exchange(xm_bootstrap_t *bootstrap, const char *nics, double timeout,
                            card_t *cards, int size)
{
    int rank = xm_bootstrap_rank(bootstrap);
    xm_nics_t own;
    card_t card;
    xm_status_t status;

    XM_TRY(xm_nics_parse(nics, rank, "/sys", &own));
    write_card(&own, card);
    status = xm_bootstrap_allgather(bootstrap, card, cards, sizeof(card), timeout);
    for (int r = 0; r < size && status == XM_OK; ++r) {
        for (int i = 0; i < CARD_NUMBERS; ++i) {
            cards[r][i] = le64toh(cards[r][i]);
        }
        if (cards[r][CARD_COUNT] < 1 || cards[r][CARD_COUNT] > XM_NICS_MAX) {
            status = xm_error_set(XM_ERR_CORRUPT, "rank %d does not say which NICs it uses", r);
        }
    }
    return status;
}

xm_status_t xm_worker_rails_exchange(xm_worker_rails_t *rails, xm_bootstrap_t *bootstrap,
                                     const int *host_of, const char *nics, double timeout)
{
    int size = xm_bootstrap_size(bootstrap);
    card_t *cards = calloc((size_t)size, sizeof(*cards));
    xm_status_t status = XM_OK;

    rails->of = calloc((size_t)size, sizeof(*rails->of));
    rails->share = calloc((size_t)size, sizeof(*rails->share));
    rails->host_rate = calloc((size_t)size, sizeof(*rails->host_rate));
    if (cards == NULL || rails->of == NULL || rails->share == NULL || rails->host_rate == NULL) {
        status = XM_NO_MEMORY("the NICs of %d ranks", size);
    } else if (on_one_host(host_of, size)) {
        rails->count = 1;
        rails->share[0] = 1;
    } else {
        status = exchange(bootstrap, nics, timeout, cards, size);
        if (status == XM_OK) {
            join_rails(rails, host_of, cards, size);
            status = number_rails(rails, host_of, cards, size);
        }
    }
    free(cards);
    return status;
}

void xm_worker_rails_free(xm_worker_rails_t *rails)
{
    free(rails->host_rate);
    free(rails->share);
    free(rails->of);
    *rails = (xm_worker_rails_t){0};
}

const xm_worker_rails_t *xm_worker_rails(const xm_worker_t *worker)
{
    return &worker->slots.rails;
}
