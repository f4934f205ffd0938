/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file request.h
 * The command line of reshard-peer-mpi: methods, then the options of reshard-bench that say what is
 * moved, how often, and where the result goes.
 */
#pragma once

#include "bench/cases.h"
#include "bench/peers/method.h"

enum { RB_PEER_METHODS = 8 };

typedef struct rb_peer_request {
    const rb_peer_method_t *methods[RB_PEER_METHODS];
    int method_count;
    char **arguments; /**< of reshard-bench's parser; argc and argv of `options` are the user's */
    rb_options_t options;
    bool finished; /**< --help or --version was all that was wanted */
} rb_peer_request_t;

/**
 * Parses "reshard-peer-mpi METHOD[,METHOD…] OPTIONS…". @p speaks: this rank prints --help and
 * --version. Options of reshard-bench that are about plans, or about starting ranks, are refused by
 * name. Nothing is held after a failure. *request must not be moved afterwards.
 */
xm_status_t rb_peer_request_parse(int argc, char **argv, bool speaks, rb_peer_request_t *request);

void rb_peer_request_clear(rb_peer_request_t *request);
