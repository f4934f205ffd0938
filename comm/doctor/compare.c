/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing the ranks of a job. Different versions and settings are the faults that no single
 * machine can see; each aspect is one row that names the ranks which differ from the majority, with
 * what they have. Clocks are compared with rank 0's, and only the part of an offset that is certain
 * counts. */
#include "comm/doctor/compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/doctor/doctor_private.h"
#include "comm/base.h"

/* Seconds between two clocks. A larger offset makes the logs of several hosts misleading. */
static const double tolerable_offset = 1e-3;

static const struct {
    const char *subject;
    xm_severity_t severity; /* of a difference */
    const char *advice;
} aspects[XM_ASPECT_COMPARED] = {
    [XM_ASPECT_CROSSMESH] = {"crossmesh on all ranks", XM_SEVERITY_FAIL,
                             "Install the same version everywhere."},
    [XM_ASPECT_SETTINGS] = {"settings on all ranks", XM_SEVERITY_FAIL,
                            "Set them alike for all ranks; docs/configuration.md marks them as "
                            "uniform."},
    [XM_ASPECT_UCX] = {"UCX on all ranks", XM_SEVERITY_WARN,
                       "Install the same version everywhere: UCX promises nothing between "
                       "versions."},
    [XM_ASPECT_VERBS] = {"libibverbs on all ranks", XM_SEVERITY_WARN,
                         "Install the same version everywhere."},
    [XM_ASPECT_HWLOC] = {"hwloc on all ranks", XM_SEVERITY_WARN,
                         "Install the same version everywhere: they must read each other's "
                         "descriptions."},
    [XM_ASPECT_NVIDIA] = {"NVIDIA driver on all ranks", XM_SEVERITY_WARN,
                          "Install the same version everywhere."},
    [XM_ASPECT_LINUX] = {"Linux on all ranks", XM_SEVERITY_WARN,
                         "Boot the same kernel everywhere, or expect different limits and "
                         "speeds."},
    [XM_ASPECT_MTU] = {"interface MTUs on all hosts", XM_SEVERITY_WARN,
                       "Make those of one network equal: larger packets than a host takes are "
                       "lost."},
    [XM_ASPECT_RDMA_MTU] = {"RDMA MTUs on all hosts", XM_SEVERITY_WARN,
                            "Make those of one network equal: connections take the smaller one."},
};

/* The rank whose text most ranks have; the lowest of several. The usual case, all equal, ends
 * after the first rank. */
static int majority(const xm_card_t *cards, int ranks, int aspect)
{
    int best = 0, most = 0;

    for (int rank = 0; rank < ranks; ++rank) {
        int same = 0;

        for (int other = 0; other < ranks; ++other) {
            same += strcmp(cards[rank].text[aspect], cards[other].text[aspect]) == 0;
        }
        if (same > most) {
            most = same;
            best = rank;
        }
        if (most > ranks / 2) {
            break;
        }
    }
    return best;
}

/* An empty text means that the rank lacks what others have, which is a difference as well. */
static const char *or_none(const char *text)
{
    return text[0] != '\0' ? text : "none";
}

/* Finds where two texts of "NAME=VALUE …" begin to differ: at the beginning of a word. */
static const char *first_difference(const char *text, const char *other)
{
    const char *word = text;

    for (size_t i = 0; text[i] != '\0' && text[i] == other[i]; ++i) {
        word = text[i] == ' ' ? &text[i + 1] : word;
    }
    return word;
}

/* Names the ranks that differ, a few of them with what they have, as far as the text has room. */
static void describe(const xm_card_t *cards, int ranks, int aspect, xm_finding_t *finding)
{
    const char *usual = cards[majority(cards, ranks, aspect)].text[aspect];
    /* Settings are long lists, so only the first word that differs is shown. */
    bool one_word = aspect == XM_ASPECT_SETTINGS;
    int odd = 0;

    for (int rank = 0; rank < ranks; ++rank) {
        odd += strcmp(cards[rank].text[aspect], usual) != 0;
    }
    if (odd == 0) {
        (void)snprintf(finding->text, sizeof(finding->text), "%s", or_none(usual));
        return;
    }
    finding->severity = aspects[aspect].severity;
    (void)snprintf(finding->advice, sizeof(finding->advice), "%s", aspects[aspect].advice);
    finding->text[0] = '\0';
    if (!one_word) {
        (void)snprintf(finding->text, sizeof(finding->text), "%s on %d ranks", or_none(usual),
                       ranks - odd);
    }
    /* A thousand odd ranks do not fit; the first ones are enough to find the cause. */
    for (int rank = 0; rank < ranks; ++rank) {
        const char *text = cards[rank].text[aspect];

        if (strcmp(text, usual) == 0) {
            continue;
        }
        text = one_word ? first_difference(text, usual) : or_none(text);
        xm_text_list_add(finding->text, sizeof(finding->text), "; ", "rank %d (%s) has %.*s", rank,
                         cards[rank].host, one_word ? (int)strcspn(text, " ") : (int)strlen(text),
                         text);
    }
}

/* An aspect that no rank has (no NVIDIA driver, no RDMA) makes no row. */
static bool compare_aspect(const xm_card_t *cards, int ranks, int aspect, xm_findings_t *findings)
{
    xm_finding_t finding = {.severity = XM_SEVERITY_OK};
    bool any = false;

    for (int rank = 0; rank < ranks; ++rank) {
        any = any || cards[rank].text[aspect][0] != '\0';
    }
    if (!any) {
        return true; /* nobody has it */
    }
    (void)snprintf(finding.subject, sizeof(finding.subject), "%s", aspects[aspect].subject);
    describe(cards, ranks, aspect, &finding);
    return xm_findings_add(findings, &finding);
}

/* How far off a clock certainly is, in seconds: the measurement's own uncertainty is taken off. */
static double certain_offset(const xm_card_t *card)
{
    double offset = (double)card->offset_ns * 1e-9,
           uncertainty = (double)card->uncertainty_ns * 1e-9;
    double size = offset < 0 ? -offset : offset;

    return size > uncertainty ? size - uncertainty : 0;
}

/* The worst host is named; hosts within the tolerance are one row together. */
static bool compare_clocks(const xm_card_t *cards, int ranks, xm_findings_t *findings)
{
    xm_finding_t finding = {.severity = XM_SEVERITY_OK, .subject = "clocks of the hosts"};
    char offset[32], uncertainty[32];
    double off;
    int worst = -1;

    for (int rank = 1; rank < ranks; ++rank) {
        /* Ranks on the host of rank 0 have its clock. */
        if (strcmp(cards[rank].host, cards[0].host) != 0 &&
            (worst < 0 || certain_offset(&cards[rank]) > certain_offset(&cards[worst]))) {
            worst = rank;
        }
    }
    if (worst < 0) {
        finding.severity = XM_SEVERITY_ABSENT;
        (void)snprintf(finding.text, sizeof(finding.text), "all ranks are on %s", cards[0].host);
        return xm_findings_add(findings, &finding);
    }
    off = (double)cards[worst].offset_ns * 1e-9;
    (void)xm_text_format_seconds(off < 0 ? -off : off, offset, sizeof(offset));
    (void)xm_text_format_seconds((double)cards[worst].uncertainty_ns * 1e-9, uncertainty,
                                 sizeof(uncertainty));
    if (certain_offset(&cards[worst]) > tolerable_offset) {
        finding.severity = XM_SEVERITY_WARN;
        (void)snprintf(finding.advice, sizeof(finding.advice),
                       "Keep the hosts' clocks in step (chrony, ntpd, ptp4l): logs and traces of "
                       "several hosts cannot be compared.");
    }
    (void)snprintf(finding.text, sizeof(finding.text),
                   "rank %d (%s) is %s %s rank 0 (%s), to within %s%s", worst, cards[worst].host,
                   offset, off > 0 ? "behind" : "ahead of", cards[0].host, uncertainty,
                   finding.severity == XM_SEVERITY_OK ? "; no other is farther off" : "");
    return xm_findings_add(findings, &finding);
}

/* Adds one row for each aspect and one for the clocks. False means that memory is missing, and then
 * the findings are incomplete. */
bool xm_doctor_compare(const xm_card_t *cards, int ranks, xm_findings_t *findings)
{
    bool ok = true;

    for (int aspect = 0; ok && aspect < XM_ASPECT_COMPARED; ++aspect) {
        ok = compare_aspect(cards, ranks, aspect, findings);
    }
    return ok && compare_clocks(cards, ranks, findings);
}
