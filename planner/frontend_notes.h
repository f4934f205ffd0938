/**
 * @file frontend_notes.h
 * What a front end could not understand: operators without a rule and how often they come. They
 * need all of everything on every device.
 *
 * Threads: one at a time per object.
 */
#ifndef AP_PLANNER_FRONTEND_NOTES_H
#define AP_PLANNER_FRONTEND_NOTES_H

#include "comm/status.h"

typedef struct ap_frontend_notes ap_frontend_notes_t;

/** Number of entries, and one: what it is and how often it comes. */
XM_API int ap_frontend_notes_count(const ap_frontend_notes_t *notes);
XM_API const char *ap_frontend_notes_get(const ap_frontend_notes_t *notes, int index, int *count);

/** For front ends: makes an empty list, and counts one more of @p name (at most 79 bytes count). */
XM_API xm_status_t ap_frontend_notes_create(ap_frontend_notes_t **notes);
XM_API xm_status_t ap_frontend_notes_add(ap_frontend_notes_t *notes, const char *name);

/**
 * For front ends that know the way back: where things stand in what was read. Belongs to the notes,
 * which give it to @p destroy; NULL where there is none.
 */
XM_API void ap_frontend_notes_keep(ap_frontend_notes_t *notes, void *source,
                                   void (*destroy)(void *source));
XM_API const void *ap_frontend_notes_source(const ap_frontend_notes_t *notes);

XM_API void ap_frontend_notes_destroy(ap_frontend_notes_t *notes);

#endif
