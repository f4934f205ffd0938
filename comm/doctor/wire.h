/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/doctor/wire.h
 * What ranks tell each other when a job is examined: fixed-width records. Internal.
 *
 * A *card* is what is compared: texts of fixed width, and the clock's offset from rank 0's with its
 * uncertainty (i64 little-endian nanoseconds each). A *finding* is u8 severity and three texts of
 * fixed width. Texts end with a 0 and are zero behind it. Decoders take any bytes: what they accept
 * encodes to the same bytes again.
 */
#pragma once

#include "comm/doctor/doctor.h"

/** What a card says; all but the last is compared. */
typedef enum xm_aspect {
    XM_ASPECT_CROSSMESH,
    XM_ASPECT_SETTINGS,
    XM_ASPECT_UCX,
    XM_ASPECT_VERBS,
    XM_ASPECT_HWLOC,
    XM_ASPECT_NVIDIA,
    XM_ASPECT_LINUX,
    XM_ASPECT_MTU,
    XM_ASPECT_RDMA_MTU,
    XM_ASPECT_COMPARED,
    XM_ASPECT_CORES = XM_ASPECT_COMPARED, /**< that the rank may run on; not compared */
    XM_ASPECT_COUNT
} xm_aspect_t;

enum {
    XM_CARD_HOST_SIZE = 64,
    XM_CARD_TEXT_SIZE = 160,
    XM_CARD_SIZE = XM_CARD_HOST_SIZE + XM_ASPECT_COUNT * XM_CARD_TEXT_SIZE + 16,
    XM_FINDING_SIZE = 1 + XM_FINDING_SUBJECT + 2 * XM_FINDING_TEXT
};

typedef struct xm_card {
    char host[XM_CARD_HOST_SIZE];
    char text[XM_ASPECT_COUNT][XM_CARD_TEXT_SIZE]; /**< "": there is none here */
    int64_t offset_ns, uncertainty_ns;             /**< the latter at least 0 */
} xm_card_t;

void xm_card_encode(const xm_card_t *card, uint8_t bytes[XM_CARD_SIZE]);
bool xm_card_decode(const uint8_t *bytes, size_t size, xm_card_t *card);

void xm_finding_encode(const xm_finding_t *finding, uint8_t bytes[XM_FINDING_SIZE]);
bool xm_finding_decode(const uint8_t *bytes, size_t size, xm_finding_t *finding);
