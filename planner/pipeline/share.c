/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that share links, in max-min fair pace by progressive filling. The textbook algorithm
 * (Bertsekas and Gallager, Data Networks) visits all flows at every event; here only the channels
 * that are connected over full links with the one that begins or ends are visited, for no other
 * pace can change.
 *
 * Everything is in integers: paces are fixed-point fractions, times nanoseconds, products 128 bits
 * wide. Floating-point sums would depend on the order of events, and simulated steps would differ
 * in their last digits between machines and releases.
 */

#include "planner/pipeline/share.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

/* Shares, capacities and paces are multiples of 1 / ONE. */
enum { ONE_BITS = 30 };
static const int64_t ONE = INT64_C(1) << ONE_BITS;

__extension__ typedef __int128 product_t;

typedef struct part {
    int other; /* the link of a channel's part, the channel of a link's */
    int64_t share;
} part_t;

/* Parts of a channel, or of a link: entries first … first + count - 1 of a list. */
typedef struct range {
    int first, count;
} range_t;

typedef struct channel {
    range_t links;
    bool busy;
    int64_t since; /* when `left` was right */
    int64_t left;  /* of the message's own time */
    int64_t pace;
    int64_t next_pace;
    bool gathered, settled; /* in the group at hand */
} channel_t;

typedef struct link {
    range_t users;
    int64_t busy; /* shares of all that are on the way */
    bool gathered;
    int64_t free;    /* while paces are shared out */
    int64_t wanting; /* shares of those without a pace */
} link_t;

struct ap_pipeline_share {
    int channel_count, link_count;
    channel_t *channels;
    link_t *links;
    part_t *of_channels, *of_links;
    int *group; /* of channels: connected over full links */
    int group_count;
    int *full; /* links of the group */
    int full_count;
    xm_arena_t arena;
};

static int compare_uses(const void *a, const void *b)
{
    const ap_pipeline_use_t *one = a, *other = b;

    return one->link != other->link ? xm_order(one->link, other->link)
                                    : xm_order(one->channel, other->channel);
}

static xm_status_t check_uses(int channels, const ap_pipeline_use_t *uses, int count)
{
    for (int i = 0; i < count; ++i) {
        if (uses[i].channel < 0 || uses[i].channel >= channels || uses[i].link < 0 ||
            !(uses[i].share >= 0.0)) {
            return XM_INVALID("use %d: channel %d of %d takes a share of %g of link %d", i,
                              uses[i].channel, channels, uses[i].share, uses[i].link);
        }
    }
    return XM_OK;
}

/* Links become numbers without gaps, a channel has one use of each, and links that no more channels
 * use than fit together are left out: they are never full. Uses of nothing are left out, too.
 * Returns the number of uses. */
static int condense(ap_pipeline_use_t *uses, int count, int *links)
{
    int kept = 0;

    for (int i = 0; i < count; ++i) {
        if (uses[i].share > 0.0) {
            uses[kept++] = uses[i];
        }
    }
    count = kept;
    kept = 0;
    *links = 0;
    qsort(uses, (size_t)count, sizeof(*uses), compare_uses);
    for (int first = 0, end; first < count; first = end) {
        int begin = kept;
        double sum = 0.0;

        for (end = first; end < count && uses[end].link == uses[first].link; ++end) {
            ap_pipeline_use_t use = uses[end];

            if (kept > begin && uses[kept - 1].channel == use.channel) {
                uses[kept - 1].share += use.share;
            } else {
                uses[kept++] = use;
            }
        }
        for (int i = begin; i < kept; ++i) {
            uses[i].share = fmin(uses[i].share, 1.0);
            sum += uses[i].share;
        }
        if (sum <= 1.0) {
            kept = begin;
            continue;
        }
        for (int i = begin; i < kept; ++i) {
            uses[i].link = *links;
        }
        ++*links;
    }
    return kept;
}

/* Lists the uses by link, as they are sorted, and by channel. Shares are rounded once, here, so
 * sums over a link are exact from then on. */
static void fill_parts(ap_pipeline_share_t *share, const ap_pipeline_use_t *uses, int count)
{
    int first = 0;

    for (int i = 0; i < count; ++i) {
        link_t *link = &share->links[uses[i].link];

        if (link->users.count++ == 0) {
            link->users.first = i;
        }
        share->of_links[i] = (part_t){uses[i].channel, llround(uses[i].share * (double)ONE)};
        ++share->channels[uses[i].channel].links.count;
    }
    for (int c = 0; c < share->channel_count; ++c) {
        range_t *links = &share->channels[c].links;

        links->first = first;
        first += links->count;
        links->count = 0;
    }
    for (int i = 0; i < count; ++i) {
        range_t *links = &share->channels[uses[i].channel].links;

        share->of_channels[links->first + links->count++] =
            (part_t){uses[i].link, share->of_links[i].share};
    }
}

xm_status_t ap_pipeline_share_create(int channels, const ap_pipeline_use_t *uses, int use_count,
                                     ap_pipeline_share_t **result)
{
    ap_pipeline_share_t *share = NULL;
    ap_pipeline_use_t *condensed;
    int links, count;

    XM_TRY(check_uses(channels, uses, use_count));
    share = calloc(1, sizeof(*share));
    XM_NEED_MEMORY(share, "the links of %d channels", channels);
    condensed = xm_arena_get(&share->arena, (size_t)use_count + 1, sizeof(*condensed));
    if (condensed == NULL) {
        goto destroy_share;
    }
    for (int i = 0; i < use_count; ++i) {
        condensed[i] = uses[i];
    }
    count = condense(condensed, use_count, &links);
    share->channel_count = channels;
    share->link_count = links;
    share->channels = xm_arena_get(&share->arena, (size_t)channels + 1, sizeof(*share->channels));
    share->links = xm_arena_get(&share->arena, (size_t)links + 1, sizeof(*share->links));
    share->of_channels =
        xm_arena_get(&share->arena, (size_t)count + 1, sizeof(*share->of_channels));
    share->of_links = xm_arena_get(&share->arena, (size_t)count + 1, sizeof(*share->of_links));
    share->group = xm_arena_get(&share->arena, (size_t)channels + 1, sizeof(*share->group));
    share->full = xm_arena_get(&share->arena, (size_t)links + 1, sizeof(*share->full));
    if (share->arena.failed) {
        goto destroy_share;
    }
    fill_parts(share, condensed, count);
    *result = share;
    return XM_OK;

destroy_share:
    ap_pipeline_share_destroy(share);
    return XM_NO_MEMORY("the links of %d channels", channels);
}

static void gather_channel(ap_pipeline_share_t *share, int index)
{
    channel_t *channel = &share->channels[index];

    if (channel->busy && !channel->gathered) {
        channel->gathered = true;
        channel->settled = false;
        share->group[share->group_count++] = index;
    }
}

/* Gathers a link's users, where it is full or `was`. A link that was full and is not any more lets
 * its users go faster. */
static void gather_link(ap_pipeline_share_t *share, int index, int64_t was)
{
    link_t *link = &share->links[index];

    if (link->gathered || (link->busy <= ONE && was <= ONE)) {
        return;
    }
    link->gathered = true;
    link->free = ONE;
    link->wanting = 0;
    share->full[share->full_count++] = index;
    for (int u = link->users.first; u < link->users.first + link->users.count; ++u) {
        gather_channel(share, share->of_links[u].other);
    }
}

/* Gathers all whose pace can change when a channel's message begins (`more` is 1) or ends (-1): its
 * own full links, their users, the full links of these, and so on. The group grows while it is gone
 * through, and each channel joins once. */
static void gather(ap_pipeline_share_t *share, int index, int more)
{
    const range_t *links = &share->channels[index].links;

    share->group_count = share->full_count = 0;
    gather_channel(share, index);
    for (int p = links->first; p < links->first + links->count; ++p) {
        const part_t *part = &share->of_channels[p];
        int64_t was = share->links[part->other].busy;

        share->links[part->other].busy += more * part->share;
        gather_link(share, part->other, was);
    }
    for (int g = 0; g < share->group_count; ++g) {
        links = &share->channels[share->group[g]].links;
        for (int p = links->first; p < links->first + links->count; ++p) {
            gather_link(share, share->of_channels[p].other, 0);
        }
    }
}

/* The largest pace that all without one can have on a link. Rounding down keeps the link from being
 * overfull. */
static int64_t pace_on(const link_t *link)
{
    return link->wanting > 0
               ? (int64_t)(((product_t)link->free << ONE_BITS) / (product_t)link->wanting)
               : INT64_MAX;
}

/* The channel's pace is known: what it needs is taken from its links. A pace of 0 would never
 * end. */
static void settle(ap_pipeline_share_t *share, channel_t *channel, int64_t pace)
{
    channel->settled = true;
    channel->next_pace = pace > 0 ? pace : 1;
    for (int p = channel->links.first; p < channel->links.first + channel->links.count; ++p) {
        const part_t *part = &share->of_channels[p];
        link_t *link = &share->links[part->other];

        if (link->gathered) {
            link->wanting -= part->share;
            link->free -= (int64_t)(((product_t)pace * (product_t)part->share) >> ONE_BITS);
        }
    }
}

/* Progressive filling: the link that allows the least sets the pace of all that use it. `wanting`
 * is above 0 only while some user has no pace yet, so every round gives at least one channel its
 * pace. */
static void share_out(ap_pipeline_share_t *share)
{
    int left = share->group_count;

    for (int g = 0; g < share->group_count; ++g) {
        const range_t *links = &share->channels[share->group[g]].links;

        for (int p = links->first; p < links->first + links->count; ++p) {
            link_t *link = &share->links[share->of_channels[p].other];

            link->wanting += link->gathered ? share->of_channels[p].share : 0;
        }
    }
    while (left > 0) {
        int64_t least = ONE;
        int tightest = -1;

        for (int f = 0; f < share->full_count; ++f) {
            int64_t pace = pace_on(&share->links[share->full[f]]);

            if (pace < least) {
                least = pace;
                tightest = share->full[f];
            }
        }
        for (int g = 0; tightest < 0 && g < share->group_count; ++g) {
            channel_t *channel = &share->channels[share->group[g]];

            if (!channel->settled) {
                settle(share, channel, ONE);
            }
        }
        /* No link holds the others back: they go at their own pace. */
        if (tightest < 0) {
            return;
        }
        for (int u = share->links[tightest].users.first, n = share->links[tightest].users.count;
             n > 0; ++u, --n) {
            channel_t *channel = &share->channels[share->of_links[u].other];

            if (channel->gathered && !channel->settled) {
                settle(share, channel, least);
                --left;
            }
        }
    }
}

/* When a message ends at its pace, rounded up. A pace that others' end will change may tell a time
 * that there is no number for; the largest number stands for it. */
static int64_t end_of(const channel_t *channel)
{
    product_t scaled = (product_t)channel->left << ONE_BITS, end;

    if (channel->pace == ONE) {
        return channel->since + channel->left;
    }
    end = channel->since + (scaled + channel->pace - 1) / channel->pace;
    return end < INT64_MAX ? (int64_t)end : INT64_MAX;
}

/* The group's messages go on at their new paces. What is left is brought up to date only where the
 * pace changes, so a message that is never slowed down ends to the nanosecond when it would
 * alone. */
static void change_paces(ap_pipeline_share_t *share, int64_t now, ap_pipeline_moved_t moved,
                         void *arg)
{
    for (int g = 0; g < share->group_count; ++g) {
        channel_t *channel = &share->channels[share->group[g]];

        channel->gathered = false;
        if (channel->next_pace != channel->pace) {
            channel->left -=
                (int64_t)(((product_t)(now - channel->since) * (product_t)channel->pace) >>
                          ONE_BITS);
            channel->since = now;
            channel->pace = channel->next_pace;
            moved(arg, share->group[g], end_of(channel));
        }
    }
    for (int f = 0; f < share->full_count; ++f) {
        share->links[share->full[f]].gathered = false;
    }
}

void ap_pipeline_share_begin(ap_pipeline_share_t *share, int index, int64_t now, int64_t time,
                             ap_pipeline_moved_t moved, void *arg)
{
    channel_t *channel = &share->channels[index];

    channel->busy = true;
    channel->since = now;
    channel->left = time;
    channel->pace = 0; /* so that its end is told in any case */
    gather(share, index, 1);
    share_out(share);
    change_paces(share, now, moved, arg);
}

void ap_pipeline_share_end(ap_pipeline_share_t *share, int index, int64_t now,
                           ap_pipeline_moved_t moved, void *arg)
{
    share->channels[index].busy = false;
    gather(share, index, -1);
    share_out(share);
    change_paces(share, now, moved, arg);
}

void ap_pipeline_share_destroy(ap_pipeline_share_t *share)
{
    if (share != NULL) {
        xm_arena_clear(&share->arena);
        free(share);
    }
}
