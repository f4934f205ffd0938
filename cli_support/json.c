/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a command's JSON goes. Numbers have all their digits, so that what is read is what was
 * computed.
 */
#include "cli_support/json.h"

#include <stdio.h>
#include <stdlib.h>

xm_status_t xm_cli_give_text(const xm_cli_json_t *json, char *text, const char *what)
{
    xm_status_t status = XM_OK;
    FILE *file;

    XM_NEED_MEMORY(text, "%s", what);
    if (json->print) {
        (void)puts(text);
    }
    if (json->file != NULL) {
        status = xm_file_create(json->file, &file);
        if (status == XM_OK) {
            (void)fprintf(file, "%s\n", text);
            status = xm_file_close(file, json->file, XM_OK);
        }
    }
    free(text);
    return status == XM_OK ? xm_cli_flush() : status;
}

xm_status_t xm_cli_give_json(const xm_cli_json_t *json, json_t *document)
{
    char *text = document != NULL ? json_dumps(document, JSON_INDENT(1)) : NULL;

    json_decref(document);
    return xm_cli_give_text(json, text, "JSON");
}
