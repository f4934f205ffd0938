/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/pipeline/share.h
 * Messages between pipeline stages that share what lies between hosts: NICs and uplinks.
 *
 * Messages travel in channels (from a device to another), one at a time in each. A channel that is
 * alone moves a message in the message's own time, and takes a share of the capacity of some links
 * meanwhile: all of it where the link is what limits the message, less where another does. Channels
 * whose messages are on the way together slow each other down where their shares of a link add up
 * to more than 1. Then all that use that link go at the same pace, a part of their own, such that
 * it is just full; those that are held back more by another link leave what they do not need to
 * the others (max-min fair in the pace). That is what flows of a transport with congestion
 * control do of which each has the link for a part of its time.
 *
 * Paces are fixed-point numbers and times whole nanoseconds: the same on every machine, and
 * messages that share nothing take their own time to the nanosecond.
 *
 * The cost of a begin or an end is that of the channels on the way that are, over full links,
 * connected with the one that begins or ends.
 *
 * @code
 *     ap_pipeline_share_create(channels, uses, use_count, &share);
 *     ap_pipeline_share_begin(share, channel, now, time, on_moved, arg);
 *     ap_pipeline_share_end(share, channel, now, on_moved, arg);   // at the time last told
 * @endcode
 *
 * Threads: no shared state.
 */
#pragma once

#include <stdint.h>

#include "comm/base.h"

typedef struct ap_pipeline_share ap_pipeline_share_t;

/** What the messages of a channel take of a link. */
typedef struct ap_pipeline_use {
    int channel;
    int link;     /**< 0, 1, …: any number that stands for it */
    double share; /**< of its capacity while alone, 0 … 1; larger counts as 1 */
} ap_pipeline_use_t;

/** A message now ends at another time. */
typedef void (*ap_pipeline_moved_t)(void *arg, int channel, int64_t end);

/** For channels 0 … @p channels - 1. Of several uses of one link by one channel the shares add up.
 * XM_ERR_INVALID_ARGUMENT: a channel, link or share that cannot be. */
xm_status_t ap_pipeline_share_create(int channels, const ap_pipeline_use_t *uses, int use_count,
                                     ap_pipeline_share_t **share);

/** A message that alone takes @p time leaves in a channel, which has none on the way. @p moved is
 * called for it, and for every other whose end moves. */
void ap_pipeline_share_begin(ap_pipeline_share_t *share, int channel, int64_t now, int64_t time,
                             ap_pipeline_moved_t moved, void *arg);

/** The channel's message ends. @p moved is called for the others whose end moves. */
void ap_pipeline_share_end(ap_pipeline_share_t *share, int channel, int64_t now,
                           ap_pipeline_moved_t moved, void *arg);

/** NULL is accepted. */
void ap_pipeline_share_destroy(ap_pipeline_share_t *share);
