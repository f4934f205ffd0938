/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairs of ranks from texts such as 0:4,1:5 or 0-3:4-7. Every pair is checked against the
 * job's ranks when it is read, so later code can index by rank.
 */
#include "bench/baseline/pair_list.h"

#include <stdlib.h>
#include <string.h>

#include "resharding/layout.h"

enum { MOST_PAIRS = 4096, ENTRY_TEXT = 128 };

/* Appends every sender with every receiver. */
static xm_status_t append(rb_pair_list_t *list, const int *senders, int sender_count,
                          const int *receivers, int receiver_count, int ranks)
{
    for (int s = 0; s < sender_count; ++s) {
        for (int r = 0; r < receiver_count; ++r) {
            int largest = senders[s] > receivers[r] ? senders[s] : receivers[r];

            if (largest >= ranks) {
                return XM_INVALID("--pairs names rank %d, but the job has ranks 0 … %d", largest,
                                  ranks - 1);
            }
            if (senders[s] == receivers[r]) {
                return XM_INVALID("--pairs: rank %d sends to itself", senders[s]);
            }
            if (list->count == MOST_PAIRS) {
                return XM_INVALID("--pairs has more than %d pairs", MOST_PAIRS);
            }
            list->pairs[list->count++] = (rb_pair_t){senders[s], receivers[r]};
        }
    }
    return XM_OK;
}

/* An entry is two rank lists with a colon between them. */
static xm_status_t parse_entry(const char *entry, int ranks, rb_pair_list_t *list)
{
    char sender_text[ENTRY_TEXT];
    const char *colon = strchr(entry, ':');
    int *senders = NULL, *receivers = NULL, sender_count, receiver_count;
    xm_status_t status;

    if (colon == NULL) {
        return XM_MALFORMED("--pairs: '%s' is not of the form SENDER:RECEIVER", entry);
    }
    memcpy(sender_text, entry, (size_t)(colon - entry));
    sender_text[colon - entry] = '\0';
    status = xm_rank_list_parse("--pairs", sender_text, &senders, &sender_count);
    XM_THEN(status, xm_rank_list_parse("--pairs", colon + 1, &receivers, &receiver_count));
    XM_THEN(status, append(list, senders, sender_count, receivers, receiver_count, ranks));
    free(receivers);
    free(senders);
    return status;
}

xm_status_t rb_pair_list_parse(const char *text, int ranks, rb_pair_list_t *list)
{
    rb_pair_list_t parsed = {.pairs = malloc(MOST_PAIRS * sizeof(rb_pair_t))};
    xm_status_t status = XM_OK;

    XM_NEED_MEMORY(parsed.pairs, "the pairs");
    for (const char *at = text; status == XM_OK && at != NULL;) {
        char entry[ENTRY_TEXT];
        size_t length = xm_text_word(&at, ',', entry, sizeof(entry));

        status = length < sizeof(entry)
                     ? parse_entry(entry, ranks, &parsed)
                     : XM_MALFORMED("--pairs: an entry has %zu characters", length);
    }
    if (status < 0) {
        rb_pair_list_clear(&parsed);
        return status;
    }
    *list = parsed;
    return XM_OK;
}

void rb_pair_list_clear(rb_pair_list_t *list)
{
    free(list->pairs);
    *list = (rb_pair_list_t){0};
}
