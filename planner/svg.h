/*
 * What the planner's figures share. Internal.
 */
#ifndef AP_PLANNER_SVG_H
#define AP_PLANNER_SVG_H

#include <stdio.h>

/* Writes text with XML's special characters escaped and control characters left out. */
void ap_svg_put_escaped(FILE *file, const char *text);

#endif
