/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/probe/state.h
 * What a probe has measured so far: named lists of numbers, one list for each finished step.
 * Internal to the probe.
 *
 * Every rank holds the same state after every step. Rank 0 saves it, so that a probe that was
 * interrupted goes on where it was. As JSON: {"probe": 1, "job": "…", "steps": {"inter_host":
 * [1e-5, …], …}}; the job's text says for which ranks and sizes the numbers are good.
 */
#pragma once

#include <stddef.h>

#include "comm/base.h"

typedef struct xm_probe_state xm_probe_state_t;

xm_status_t xm_probe_state_create(const char *job, xm_probe_state_t **state);

/** The numbers of a step, or NULL when it has not been done. */
const double *xm_probe_state_find(const xm_probe_state_t *state, const char *step, size_t *count);

/** Adds a finished step; a step is done once. */
xm_status_t xm_probe_state_add(xm_probe_state_t *state, const char *step, const double *numbers,
                               size_t count);

/** As text, freed with free(); every number comes back as it was. */
xm_status_t xm_probe_state_to_text(const xm_probe_state_t *state, char **text);

/** From text, for the job @p job: another job's numbers are refused (XM_ERR_MISMATCH). @p source
 * names the text in sentences. */
xm_status_t xm_probe_state_from_text(const char *text, size_t length, const char *source,
                                     const char *job, xm_probe_state_t **state);

void xm_probe_state_destroy(xm_probe_state_t *state);
