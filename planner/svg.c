#include "planner/svg.h"

void ap_svg_put_escaped(FILE *file, const char *text)
{
    for (const char *c = text; *c != '\0'; ++c) {
        if (*c == '<' || *c == '>' || *c == '&') {
            (void)fputs(*c == '<' ? "&lt;" : *c == '>' ? "&gt;" : "&amp;", file);
        } else if ((unsigned char)*c >= ' ') {
            (void)putc(*c, file);
        }
    }
}
