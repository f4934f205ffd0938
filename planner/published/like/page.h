/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/like/page.h
 * docs/published-systems.md as the program has it. Who asks for a system that is no row of the
 * table of planners gets what the page says of it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/**
 * What the page says of a system, "NAME: what stands for it; COMMAND", without marks. A name is
 * one of those in the first column, or its first words; case, blanks and hyphens do not matter.
 * False: it is not on the page, and the text is untouched.
 */
bool ap_published_page_find(const char *name, char *text, size_t size);
