/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transport_conformance.h
 * What every transport must do, as cases written against the ops table only.
 *
 * A case runs on all ranks of a small job at once. The program that tests a transport makes the
 * ranks (processes, usually), gives each a slot with its transport, and runs the case's function
 * on it; the case reports with local_expect().
 */
#pragma once

#include "comm/transport/transport.h"

typedef struct conformance_slot {
    xm_transport_t *transport;
    /* Returns when all ranks have called it; not used any more after a rank has died. */
    void (*barrier)(struct conformance_slot *slot);
    /* Ends this rank as if by kill -9. */
    void (*die)(struct conformance_slot *slot);
    void *arg;
    double limit; /* seconds that any wait may take */
} conformance_slot_t;

typedef struct conformance_case {
    const char *name;
    int ranks;
    unsigned doomed; /* ranks that die, as a bit mask */
    void (*run)(conformance_slot_t *slot);
    /* The transport itself must notice a death, without xm_transport_peer_failed(). */
    bool needs_detection;
} conformance_case_t;

/* After the transport's end: every operation of the case was counted once when it was posted and
 * once when it ended, and NICs carried at least the bytes of what ended well; @p nics: no message
 * of the transport ends well that nothing carried. */
void conformance_check_counters(const xm_counters_t *counters, bool nics);

extern const conformance_case_t conformance_cases[];
extern const int conformance_case_count;
