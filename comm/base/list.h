/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file list.h
 * Doubly linked lists whose links lie in the elements, in the spirit of ccan/list.
 *
 * An element embeds one ::xm_list_t for every list that it can be in, so that entering and leaving
 * a list allocates nothing, takes the same short time wherever the element stands, and cannot fail.
 * The list itself is one more ::xm_list_t, its head; the links form a ring through it, which is why
 * no operation asks whether an element is the first or the last.
 *
 * @code
 *     typedef struct message {
 *         xm_list_t unsent; // in queue->unsent until it is sent
 *         …
 *     } message_t;
 *
 *     for (xm_list_t *at = xm_list_first(&queue->unsent), *next; at != NULL; at = next) {
 *         next = xm_list_next(&queue->unsent, at); // before `at` may leave the list
 *         send(xm_list_entry(at, message_t, unsent));
 *     }
 * @endcode
 *
 * A head must be initialised, and must not be moved or copied. A zeroed link is in no list. Lists
 * own nothing. Threads: the caller's lock. Installed only because operations (transport.h) embed a
 * link.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/** A place in a list, or a list's head. */
typedef struct xm_list {
    struct xm_list *next, *previous; /**< private; NULL in a link that is in no list */
} xm_list_t;

/** The element whose link @p link is, not NULL; it is the member @p member of type @p type. */
#define xm_list_entry(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))

/** Makes @p list empty, whatever it was before. */
static inline void xm_list_init(xm_list_t *list)
{
    list->next = list->previous = list;
}

static inline bool xm_list_is_empty(const xm_list_t *list)
{
    return list->next == list;
}

/** Whether a link, which is not a head, is in any list. */
static inline bool xm_list_is_in(const xm_list_t *link)
{
    return link->next != NULL;
}

/** Puts a link that is in no list at the end. */
static inline void xm_list_append(xm_list_t *list, xm_list_t *link)
{
    link->next = list;
    link->previous = list->previous;
    list->previous->next = link;
    list->previous = link;
}

/** Puts a link that is in no list before the first one. */
static inline void xm_list_prepend(xm_list_t *list, xm_list_t *link)
{
    xm_list_append(list->next, link);
}

/** Takes a link out of the list that it is in. */
static inline void xm_list_remove(xm_list_t *link)
{
    link->previous->next = link->next;
    link->next->previous = link->previous;
    link->next = link->previous = NULL;
}

/** NULL: the list is empty. */
static inline xm_list_t *xm_list_first(const xm_list_t *list)
{
    return list->next != list ? list->next : NULL;
}

/** NULL: the list is empty. */
static inline xm_list_t *xm_list_last(const xm_list_t *list)
{
    return list->previous != list ? list->previous : NULL;
}

/** The link behind @p link in @p list; NULL: it is the last one. */
static inline xm_list_t *xm_list_next(const xm_list_t *list, const xm_list_t *link)
{
    return link->next != list ? link->next : NULL;
}
