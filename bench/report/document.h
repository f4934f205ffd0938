/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file document.h
 * The report for programs: one JSON document, of --json and -J. docs/reshard-bench.md lists the
 * keys.
 */
#pragma once

#include <stdio.h>

#include "bench/run.h"

typedef struct rb_document rb_document_t;

/** Starts a document. *document is NULL, which the functions below accept, when none is wanted. */
xm_status_t rb_document_create(const rb_job_info_t *job, rb_document_t **document);

/** Adds the result of a case. */
xm_status_t rb_document_add(rb_document_t *document, const rb_result_t *result);

/** Prints it (--json) and writes the file (-J). */
xm_status_t rb_document_write(const rb_document_t *document);

void rb_document_destroy(rb_document_t *document);
