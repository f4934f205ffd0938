/* A file of HLO text, mapped and not loaded. Private. */
#ifndef AP_PLANNER_FRONTEND_HLO_FILE_H
#define AP_PLANNER_FRONTEND_HLO_FILE_H

#include <stddef.h>

#include "comm/base.h"

typedef struct hlo_file {
    char *bytes;
    size_t size;
} hlo_file_t;

/* Refused: a file that cannot be read, is empty or is no regular file. */
xm_status_t hlo_file_map(const char *path, hlo_file_t *file);

void hlo_file_unmap(hlo_file_t *file);

#endif
