/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tool.h
 * Runs a command of the system, such as ip(8), with orders on its standard input.
 */
#pragma once

#include <stdio.h>

#include "comm/base.h"

/**
 * Orders for a tool, collected in memory. `stream` is closed and the text freed by
 * rb_tool_run_orders().
 */
typedef struct rb_orders {
    FILE *stream;
    char *text;
    size_t length;
} rb_orders_t;

xm_status_t rb_orders_open(rb_orders_t *orders);

/**
 * Runs argv[0] (looked for in PATH, then in /usr/sbin and /sbin) with the orders as its standard
 * input, and waits for it; it dies with the caller. Fails with the first line of its standard error
 * when its status is not 0. Frees the orders in any case.
 */
xm_status_t rb_tool_run_orders(const char *const *argv, rb_orders_t *orders);
