/* SPDX-License-Identifier: Apache-2.0 */
/* The hosts and machines of all ranks. Ranks share a host when their identity is equal, and a
 * machine when its boot id is; the two differ in emulated clusters. Cards of all ranks are
 * exchanged once, and all ranks number hosts by their lowest rank, so the numbers agree.
 * Settings that must be equal are compared here, at the start, because a job whose ranks differ
 * in XM_WINDOW would hang later without a reason that anybody sees. */
#include "comm/worker/slots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/topology.h"

/* The card of a rank, which tells the others who it is: NUL-terminated texts, one after the
 * other. */
enum { CARD_HOST, CARD_MACHINE, CARD_NAME, CARD_SETTINGS, CARD_TEXTS };
enum { SETTINGS_SIZE = 2048 };

/* A card that does not fit ends at its last byte, and reading it fails. */
static size_t append(char *card, size_t used, size_t size, const char *text)
{
    int length = snprintf(card + used, size - used, "%s", text);

    return used + (size_t)length + 1 <= size ? used + (size_t)length + 1 : size;
}

/* Fills in this rank's card and returns its length. */
static size_t write_card(const char *host, char *card, size_t size)
{
    xm_host_identity_t identity;
    char settings[SETTINGS_SIZE];
    size_t used = 0;
    int length;

    xm_host_identity_read(host, &identity);
    used = append(card, used, size, identity.host);
    used = append(card, used, size, identity.machine);
    used = append(card, used, size, identity.name);
    /* Where the ranks met over a caller's table nobody has compared the version before. */
    length = snprintf(settings, sizeof(settings), "crossmesh-wire-format=%d ", XM_WIRE_VERSION);
    (void)xm_config_fingerprint(settings + length, sizeof(settings) - (size_t)length);
    return append(card, used, size, settings);
}

/* Points `texts` at the parts of a card, none of which is copied. Each text must end inside the
 * card. */
static xm_status_t read_card(int rank, const char *card, size_t length,
                             const char *texts[CARD_TEXTS])
{
    size_t at = 0;

    for (int i = 0; i < CARD_TEXTS; ++i) {
        size_t text_length = strnlen(card + at, length - at);

        if (at + text_length >= length) {
            return xm_error_set(XM_ERR_CORRUPT,
                                "rank %d describes itself in %zu bytes that do not "
                                "hold %d texts",
                                rank, length, CARD_TEXTS);
        }
        texts[i] = card + at;
        at += text_length + 1;
    }
    return XM_OK;
}

/* Names the first setting that differs. Both are texts "XM_A=1 XM_B=2", with the names in the
 * same order. */
static xm_status_t compare_settings(const char *first, int rank, const char *other)
{
    while (*first != '\0' || *other != '\0') {
        size_t length = strcspn(first, " "), other_length = strcspn(other, " ");
        size_t name = strcspn(first, "= "), other_name = strcspn(other, "= ");

        if (name != other_name || strncmp(first, other, name) != 0 || first[name] != '=' ||
            other[name] != '=') {
            return XM_MISMATCH("rank 0 and rank %d have different settings: '%s' and '%s'", rank,
                               first, other);
        }
        if (length != other_length || strncmp(first, other, length) != 0) {
            return XM_MISMATCH("%.*s must be equal on all ranks: rank 0 has %.*s, rank %d has %.*s",
                               (int)name, first, (int)(length - name - 1), first + name + 1, rank,
                               (int)(other_length - name - 1), other + name + 1);
        }
        first += length + (first[length] == ' ');
        other += length + (other[length] == ' ');
    }
    return XM_OK;
}

/* Numbers hosts and machines by their lowest rank, from the cards of all ranks. */
static void number_slots(xm_worker_slots_t *slots, int size, const char **hosts,
                         const char **machines, const char **names)
{
    for (int rank = 0; rank < size; ++rank) {
        int first_of_host = 0, first_of_machine = 0;

        while (strcmp(hosts[first_of_host], hosts[rank]) != 0) {
            ++first_of_host;
        }
        while (strcmp(machines[first_of_machine], machines[rank]) != 0) {
            ++first_of_machine;
        }
        slots->machine_of[rank] = first_of_machine;
        if (first_of_host < rank) {
            slots->host_of[rank] = slots->host_of[first_of_host];
        } else {
            slots->host_of[rank] = slots->host_count;
            slots->host_name[slots->host_count++] = names[rank];
        }
    }
}

static xm_status_t allocate(xm_worker_slots_t *slots, int size)
{
    size_t count = (size_t)size;

    slots->host_of = calloc(count, sizeof(*slots->host_of));
    slots->machine_of = calloc(count, sizeof(*slots->machine_of));
    slots->host_name = calloc(count, sizeof(*slots->host_name));
    slots->topology_xml = calloc(count, sizeof(*slots->topology_xml));
    if (slots->host_of == NULL || slots->machine_of == NULL || slots->host_name == NULL ||
        slots->topology_xml == NULL) {
        return XM_NO_MEMORY("the slots of %d ranks", size);
    }
    return XM_OK;
}

/* Every rank finds the same difference in the same cards. One that left at once would be heard by
 * those that have not looked yet, who would fail for its leaving; so all look first. */
static xm_status_t tell_together(xm_bootstrap_t *bootstrap, double timeout, xm_status_t status)
{
    char sentence[512];

    (void)snprintf(sentence, sizeof(sentence), "%s", xm_last_error());
    (void)xm_bootstrap_barrier(bootstrap, timeout);
    return xm_error_set(status, "%s", sentence);
}

/* The cards stay as long as the worker, since host names point into them. */
static xm_status_t exchange_cards(xm_worker_slots_t *slots, xm_bootstrap_t *bootstrap,
                                  const char *host, double timeout)
{
    int size = xm_bootstrap_size(bootstrap);
    char card[sizeof(xm_host_identity_t) + SETTINGS_SIZE];
    size_t *offsets = NULL, length = write_card(host, card, sizeof(card));
    const char **texts = calloc(3 * (size_t)size, sizeof(*texts)), *settings = NULL;
    xm_status_t status;

    XM_NEED_MEMORY(texts, "the hosts of %d ranks", size);
    status = xm_bootstrap_allgatherv(bootstrap, card, length, &slots->cards, &offsets, timeout);
    for (int rank = 0; rank < size && status == XM_OK; ++rank) {
        const char *parts[CARD_TEXTS] = {NULL};

        status = read_card(rank, (const char *)slots->cards + offsets[rank],
                           offsets[rank + 1] - offsets[rank], parts);
        if (status < 0) {
            break;
        }
        texts[rank] = parts[CARD_HOST];
        texts[size + rank] = parts[CARD_MACHINE];
        texts[2 * (size_t)size + (size_t)rank] = parts[CARD_NAME];
        settings = rank == 0 ? parts[CARD_SETTINGS] : settings;
        status = compare_settings(settings, rank, parts[CARD_SETTINGS]);
    }
    if (status == XM_OK) {
        number_slots(slots, size, texts, texts + size, texts + 2 * (size_t)size);
    } else if (status == XM_ERR_MISMATCH) {
        status = tell_together(bootstrap, timeout, status);
    }
    free(offsets);
    free(texts);
    return status;
}

/* Exchanges topologies: the lowest rank of each host describes it, so each is made and sent
 * once. */
static xm_status_t exchange_topologies(xm_worker_slots_t *slots, xm_bootstrap_t *bootstrap,
                                       bool lowest, double timeout)
{
    xm_topology_t *topology = NULL;
    char *xml = NULL;
    size_t *offsets = NULL;
    xm_status_t status = XM_OK;

    if (lowest) {
        status = xm_topology_create(NULL, 0, &topology);
        XM_THEN(status, xm_topology_export_xml(topology, &xml));
        xm_topology_destroy(topology);
    }
    XM_THEN(status, xm_bootstrap_allgatherv(bootstrap, xml, xml != NULL ? strlen(xml) + 1 : 0,
                                            &slots->topologies, &offsets, timeout));
    free(xml);
    if (status < 0) {
        return status;
    }
    for (int rank = 0; rank < xm_bootstrap_size(bootstrap) && status == XM_OK; ++rank) {
        const char *text = (const char *)slots->topologies + offsets[rank];
        size_t length = offsets[rank + 1] - offsets[rank];
        const char **slot = &slots->topology_xml[slots->host_of[rank]];

        if (length == 0) {
            continue;
        }
        if (text[length - 1] != '\0') {
            status = xm_error_set(XM_ERR_CORRUPT, "rank %d sent a topology without an end", rank);
        }
        *slot = *slot == NULL ? text : *slot;
    }
    free(offsets);
    return status;
}

/* Checks this rank's settings. Bad values end the job; an unknown name may belong to a newer
 * version, so it is only reported, by one rank of each host. */
static xm_status_t check_settings(bool report)
{
    xm_status_t status = xm_config_check();

    if (status == XM_ERR_NOT_FOUND) {
        if (report) {
            xm_log_warn("%s", xm_last_error());
        }
        return XM_OK;
    }
    return status;
}

xm_status_t xm_worker_slots_exchange(xm_worker_slots_t *slots, xm_bootstrap_t *bootstrap,
                                     const char *host, double timeout)
{
    int rank = xm_bootstrap_rank(bootstrap), lowest = 0;
    /* Settings are checked before they are compared: only well-formed ones can be told apart in
     * one text. */

    XM_TRY(check_settings(false));
    XM_TRY(allocate(slots, xm_bootstrap_size(bootstrap)));
    XM_TRY(exchange_cards(slots, bootstrap, host, timeout));
    while (slots->host_of[lowest] != slots->host_of[rank]) {
        ++lowest;
    }
    XM_TRY(check_settings(lowest == rank));
    return exchange_topologies(slots, bootstrap, lowest == rank, timeout);
}

/* Frees what an exchange has made, also after a failure half way. */
void xm_worker_slots_free(xm_worker_slots_t *slots)
{
    free(slots->host_of);
    free(slots->machine_of);
    free(slots->host_name);
    free(slots->topology_xml);
    free(slots->nic_rates);
    xm_worker_rails_free(&slots->rails);
    free(slots->cards);
    free(slots->topologies);
}
