/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/frontend/common/notes.h
 * What a front end could not understand: operators without a rule and how often they come. They
 * need all of everything on every device.
 *
 * Threads: one at a time per object.
 */
#pragma once

#include <autopar/frontend.h>

#include "comm/base.h"

/** For front ends: makes an empty list, and counts one more of @p name (at most 79 bytes count). */
xm_status_t ap_frontend_notes_create(ap_frontend_notes_t **notes);
xm_status_t ap_frontend_notes_add(ap_frontend_notes_t *notes, const char *name);

/**
 * For front ends that know the way back: where things stand in what was read. Belongs to the notes,
 * which give it to @p destroy; NULL where there is none.
 */
void ap_frontend_notes_keep(ap_frontend_notes_t *notes, void *source,
                            void (*destroy)(void *source));
const void *ap_frontend_notes_source(const ap_frontend_notes_t *notes);
