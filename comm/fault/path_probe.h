/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file path_probe.h
 * Finds peers that live but whose messages do not get through: a link that is down between two
 * hosts, a connection that was reset, a NIC that drops. Internal.
 *
 * Whom a rank has waited for during half an interval of the heartbeat without anything moving it
 * *doubts*. Two things happen then.
 *  - The heartbeat asks after that rank directly, so a lost path between two hosts is found
 * although both answer the lowest rank.
 *  - A *probe* is made, because the transport may use other wires than the heartbeat, and
 *    connections can break on their own: by heartbeat the doubted rank is asked to get ready; its
 *    own thread posts a receive for a message of one byte and says so; the message is sent, and is
 *    answered by another one. When both have passed, the doubt is over for an interval: the peer is
 *    just slow. When the answer does not come, the reason may still be that the peer's thread
 *    computes. So only the time counts in which it looks after its transport: it tells how often it
 *    has done so in its heartbeats, and after ::XM_PATH_PROBE_SIGNS of those that show new activity
 * (the first may come at once, the others an interval apart each), with the probe sent but not
 *    answered, the peer is unreachable. Of two who blame each other the lower rank speaks first.
 *
 * So a peer that computes is never blamed, whatever it takes; a waiting peer that cannot be reached
 * is, after half an interval for the doubt and about three more. Where the heartbeat finds gaps
 * meanwhile, because a link comes and goes, it takes an interval longer than four times the time
 * until the end of the last one, which leaves TCP two attempts. The path has to carry two messages
 * of one byte past what is queued on it in that time: links where that takes longer need a longer
 * XM_HEARTBEAT.
 *
 * Both sides act from inside their waits (worker.h) only: the transport belongs to that thread.
 */
#pragma once

#include "comm/fault/detector.h"
#include "comm/transport.h"

/** MOST: intervals from the last message to the blame, whatever gaps there are. */
enum { XM_PATH_PROBE_SIGNS = 4, XM_PATH_PROBE_MOST = 16 };

typedef struct xm_path_probe xm_path_probe_t;

/** @p job_rank: by rank of the transport, the rank in the job as it began; it and the others must
 *  outlive the object; destroy it after the transport. */
xm_status_t xm_path_probe_create(xm_transport_t *transport, xm_detector_t *detector,
                                 const xm_endpoints_t *endpoints, const int *job_rank,
                                 double interval, xm_path_probe_t **path_probe);

/** Does what is due at @p now (the transport's clock). @p fault gets a status below 0 when a peer
 * is unreachable (its rank is the transport's). Returns when to call again. */
int64_t xm_path_probe_look(xm_path_probe_t *path_probe, int64_t now, xm_bootstrap_fault_t *fault);

/** Takes up the heartbeat's news: probes that others want, or are ready for. */
void xm_path_probe_on_news(xm_path_probe_t *path_probe);

void xm_path_probe_destroy(xm_path_probe_t *path_probe);
