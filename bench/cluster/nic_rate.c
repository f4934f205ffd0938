/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rates of NICs as texts, in the units of tc(8), and the share of them that is left for
 * data.
 */
#include "bench/cluster/nic_rate.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "comm/base.h"

/* IPv4 and TCP headers with timestamps, inside the MTU; the Ethernet header, outside of
 * it. */
enum {
    TCP_HEADERS = 52,
    FRAME_HEADER = 14,
    MOST_SEGMENT = 62500 /* bytes: what TCP makes without being told */
};

static const struct {
    const char *name, *printed;
    double factor;
} units[] = {
    {"gbit", "Gbit/s", 1e9}, {"mbit", "Mbit/s", 1e6}, {"kbit", "kbit/s", 1e3}, {"bit", "bit/s", 1}};
enum { UNITS = sizeof(units) / sizeof(units[0]) };

/* Upper and lower case are the same; the unit must be given. */
xm_status_t rb_nic_rate_parse(const char *what, const char *text, int64_t *rate)
{
    size_t digits = strspn(text, "0123456789.");
    char number[32], low[32], high[32];
    double value, factor = 0;

    for (int i = 0; i < UNITS; ++i) {
        if (strcasecmp(text + digits, units[i].name) == 0) {
            factor = units[i].factor;
        }
    }
    if (digits == 0 || digits >= sizeof(number) || factor <= 0) {
        return XM_MALFORMED("%s: '%s' is not a rate such as 1gbit, 500mbit or 64kbit", what, text);
    }
    (void)snprintf(number, sizeof(number), "%.*s", (int)digits, text);
    XM_TRY(xm_text_parse_double(what, number, 0, 1e15, &value));
    value *= factor;
    if (value < (double)RB_NIC_RATE_MIN || value > (double)RB_NIC_RATE_MAX) {
        return XM_INVALID("%s: %s is outside %s … %s", what, text,
                          rb_nic_rate_format(RB_NIC_RATE_MIN, low, sizeof(low)),
                          rb_nic_rate_format(RB_NIC_RATE_MAX, high, sizeof(high)));
    }
    *rate = (int64_t)(value + 0.5);
    return XM_OK;
}

/* On failure *count is left as it was. */
xm_status_t rb_nic_rate_parse_list(const char *what, const char *text, int64_t *rates, int capacity,
                                   int *count)
{
    int found = 0;

    while (text != NULL) {
        char item[64];

        if (found == capacity) {
            return XM_INVALID("%s has more than %d rates", what, capacity);
        }
        (void)xm_text_word(&text, ',', item, sizeof(item));
        XM_TRY(rb_nic_rate_parse(what, item, &rates[found]));
        ++found;
    }
    *count = found;
    return XM_OK;
}

/* The largest unit that leaves at least one. */
char *rb_nic_rate_format(int64_t rate, char *buffer, size_t size)
{
    int i = 0;

    while (i + 1 < UNITS && (double)rate < units[i].factor) {
        ++i;
    }
    (void)snprintf(buffer, size, "%.6g %s", (double)rate / units[i].factor, units[i].printed);
    return buffer;
}

/* Returns the part of a rate that is left for data when every packet is full. */
double rb_nic_rate_payload(double rate, int mtu)
{
    return rate * (mtu - TCP_HEADERS) / (mtu + FRAME_HEADER);
}

int64_t rb_nic_rate_segment(int64_t rate, int mtu)
{
    int64_t bytes = rate / 8 / 500, least = 2 * (int64_t)mtu;

    bytes = bytes > least ? bytes : least;
    return bytes < MOST_SEGMENT ? bytes : MOST_SEGMENT;
}

/* With less than two segments the rate is not reached. */
int64_t rb_nic_rate_burst(int64_t rate, int mtu)
{
    int64_t bytes = rate / 8 / 500, two = 2 * rb_nic_rate_segment(rate, mtu);

    return bytes > two ? bytes : two;
}
