/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file json.h
 * The JSON document of a command: --json prints it instead of the table, -J FILE writes it to a
 * file beside what is printed. Both mean the same in every command.
 *
 * @code
 *     XM_CLI_JSON_OPTIONS(XM_CLI_OUTPUT, &options.json, "Print JSON instead of a table."),
 *     …
 *     if (xm_cli_wants_json(&options->json)) {
 *         status = xm_cli_give_json(&options->json, json_pack("{s:i}", "answer", 42));
 *     }
 * @endcode
 */
#pragma once

#include <jansson.h>

#include "cli_support/options.h"

typedef struct xm_cli_json {
    bool print;
    const char *file;
} xm_cli_json_t;

/** Rows of a table of options. @p kind: XM_CLI_OUTPUT, or XM_CLI_STRING where only one rank of
 * several writes, which then checks the name itself. */
#define XM_CLI_JSON_OPTIONS(kind, json, help)                                                      \
    XM_CLI_ROW("json", 0, XM_CLI_FLAG, &(json)->print, NULL, 0, 0, help),                          \
        XM_CLI_ROW("json-file", 'J', kind, &(json)->file, "FILE", 0, 0,                            \
                   "Write the JSON document to a file.")

static inline bool xm_cli_wants_json(const xm_cli_json_t *json)
{
    return json->print || json->file != NULL;
}

/** Puts a text, which it frees, where @p json says: to standard output first, so that a file that
 * cannot be written does not cost the answer. NULL means that memory was short for @p what. */
xm_status_t xm_cli_give_text(const xm_cli_json_t *json, char *text, const char *what);

/** Puts a document, which it takes over, where @p json says. NULL means that building it ran out of
 * memory: callers hand in the result of json_pack() without a look at it. */
xm_status_t xm_cli_give_json(const xm_cli_json_t *json, json_t *document);
