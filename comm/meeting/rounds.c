/* SPDX-License-Identifier: Apache-2.0 */
/* What a place decides: which worlds move data in one job, when a round has ended, and what its
 * members are told then. All of it is a function of what members have said and of the clock, in
 * one thread, so that there is nothing to agree on. A round is called only for worlds that are
 * complete, and a rank that is gone ends the round for all, so nobody waits for the dead. */
#include "comm/meeting/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long the others' word that a rank has died may come before the end of its connection here. */
static const int64_t LAST_WORD_NS = INT64_C(8000000000);

typedef bool (*member_is_t)(const xm_member_t *member);

static bool is_there(const xm_member_t *member)
{
    return member != NULL;
}

static bool is_ready(const xm_member_t *member)
{
    return member != NULL && member->ready;
}

static bool passes_on(const xm_member_t *member)
{
    return member != NULL && member->passes_on && !member->ready;
}

static bool all_are(const xm_world_t *world, member_is_t is)
{
    for (int rank = 0; rank < world->size; ++rank) {
        if (!is(world->members[rank])) {
            return false;
        }
    }
    return true;
}

bool xm_world_is_complete(const xm_world_t *world)
{
    return all_are(world, is_there);
}

const char *xm_world_name_missing(const xm_world_t *world, bool idle, char *text, size_t size)
{
    member_is_t is = idle ? is_ready : is_there;
    char list[128] = "";
    int count = 0;

    for (int rank = 0; rank < world->size; ++rank) {
        if (!is(world->members[rank])) {
            xm_bootstrap_list_rank(list, sizeof(list), rank, &count);
        }
    }
    (void)snprintf(text, size, "%s %s of world '%s' (%d ranks)", count > 1 ? "ranks" : "rank", list,
                   world->name, world->size);
    return text;
}

/* The oldest version that a rank of the world has: what the world has. */
static int64_t version_of(const xm_world_t *world)
{
    int64_t version = INT64_MAX;

    for (int rank = 0; rank < world->size; ++rank) {
        if (world->members[rank] != NULL && world->members[rank]->version < version) {
            version = world->members[rank]->version;
        }
    }
    return version;
}

static xm_world_t *first_world(const xm_place_t *place)
{
    xm_list_t *at = xm_list_first(&place->worlds);

    return at == NULL ? NULL : xm_list_entry(at, xm_world_t, in_place);
}

static xm_world_t *next_world(const xm_place_t *place, const xm_world_t *world)
{
    xm_list_t *at = xm_list_next(&place->worlds, &world->in_place);

    return at == NULL ? NULL : xm_list_entry(at, xm_world_t, in_place);
}

/* Ends what the world's members are ready for, and tells them how. */
static void settle(xm_world_t *world, xm_status_t status, int targets, const char *sentence)
{
    for (int rank = 0; rank < world->size; ++rank) {
        xm_member_t *member = world->members[rank];

        if (is_ready(member)) {
            member->ready = false;
            xm_note_send(&member->link, &(xm_note_t){.kind = XM_NOTE_SETTLED,
                                                     .number = {member->version, status, targets},
                                                     .bytes = sentence,
                                                     .length = strlen(sentence)});
        }
    }
}

static void settle_error(xm_world_t *world, xm_status_t status)
{
    xm_error_t error;

    xm_error_save(&error, status);
    settle(world, status, 0, error.sentence);
}

/* A world that is complete for the first time: its ranks are told together. A new launch of sources
 * begins with versions of its own. */
void xm_rounds_welcome(xm_place_t *place, xm_world_t *world)
{
    if (!xm_world_is_complete(world)) {
        return;
    }
    for (int rank = 0; rank < world->size; ++rank) {
        xm_member_t *member = world->members[rank];

        if (!member->is_welcome) {
            member->is_welcome = true;
            xm_note_send(&member->link, &(xm_note_t){.kind = XM_NOTE_WELCOME, .number = {rank}});
        }
    }
    world->was_complete = true;
    for (xm_world_t *other = first_world(place); other != NULL && world->role == XM_ROLE_SOURCE;
         other = next_world(place, other)) {
        for (int rank = 0; rank < other->size && other->role == XM_ROLE_TARGET; ++rank) {
            if (other->members[rank] != NULL) {
                other->members[rank]->version = -1;
            }
        }
    }
}

/* Rounds --------------------------------------------------------------------------------------- */

/* The first failure counts, but a rank's own reason more than that another one is gone. */
static void fail(xm_round_t *round, xm_status_t status, const char *sentence)
{
    bool is_first = round->failure.status == XM_OK;
    bool follows = status == XM_ERR_PEER_DIED || status == XM_ERR_CANCELED;

    if (is_first) {
        round->failed_since = xm_clock_ns();
        for (int rank = 0; rank < round->size; ++rank) {
            if (round->members[rank] != NULL && round->members[rank]->is_moving) {
                xm_note_send_status(&round->members[rank]->link, XM_NOTE_BROKEN, status, sentence);
            }
        }
    }
    if (is_first || (!follows && (round->failure.status == XM_ERR_PEER_DIED ||
                                  round->failure.status == XM_ERR_CANCELED))) {
        round->failure.status = status;
        (void)snprintf(round->failure.sentence, sizeof(round->failure.sentence), "%s", sentence);
    }
}

static xm_round_t *make_round(xm_world_t *const *worlds, int count)
{
    xm_round_t *round = calloc(1, sizeof(*round));
    int size = 0;

    for (int i = 0; i < count; ++i) {
        size += worlds[i]->size;
    }
    if (round == NULL) {
        return NULL;
    }
    round->members = calloc((size_t)size, sizeof(xm_member_t *));
    round->given = calloc((size_t)size, sizeof(bool));
    if (round->members == NULL || round->given == NULL) {
        xm_round_free(round);
        return NULL;
    }
    for (int i = 0; i < count; ++i) {
        worlds[i]->round = round;
        for (int rank = 0; rank < worlds[i]->size; ++rank) {
            round->members[round->size++] = worlds[i]->members[rank];
        }
    }
    return round;
}

/* The number of the group whose job serves again: all have that of the same last round, and nobody
 * else is in it. Otherwise a new one. */
static int64_t group_of(xm_place_t *place, const xm_round_t *round)
{
    int64_t group = round->members[0]->group;
    int others = 0;

    for (int slot = 0; slot < XM_PLACE_MEMBERS; ++slot) {
        others += place->members[slot].link.fd >= 0 && place->members[slot].group == group;
    }
    for (int rank = 0; rank < round->size; ++rank) {
        if (group == 0 || round->members[rank]->group != group || others != round->size) {
            return ++place->groups;
        }
    }
    return group;
}

/* Calls a round; the first world has the data. Without memory it is tried again with the next tick.
 */
static void call(xm_place_t *place, xm_world_t *const *worlds, int count, int64_t version)
{
    xm_round_t *round = make_round(worlds, count);

    if (round == NULL) {
        return;
    }
    round->version = version;
    round->senders = worlds[0]->size;
    round->group = group_of(place, round);
    xm_list_append(&place->rounds, &round->in_place);
    for (int rank = 0; rank < round->size; ++rank) {
        xm_member_t *member = round->members[rank];

        member->is_moving = true;
        member->group = round->group;
        xm_note_send(&member->link, &(xm_note_t){.kind = XM_NOTE_ROUND,
                                                 .number = {version, round->group, rank,
                                                            round->size, round->senders}});
    }
}

static int rank_in(const xm_round_t *round, const xm_member_t *member)
{
    int rank = 0;

    while (rank < round->size && round->members[rank] != member) {
        ++rank;
    }
    return rank;
}

/* An allgather for those who make the round's job: keeps the blocks until all are there. */
static void take_block(xm_round_t *round, xm_member_t *member, const xm_note_t *note)
{
    int rank = rank_in(round, member), given = 0;

    if (round->failure.status < 0) {
        xm_note_send_status(&member->link, XM_NOTE_BROKEN, round->failure.status,
                            round->failure.sentence);
        return;
    }
    if (round->blocks == NULL) {
        round->length = note->length;
        round->blocks = calloc((size_t)round->size, note->length);
    }
    if (round->blocks == NULL || note->length != round->length) {
        fail(round, XM_ERR_MISMATCH, "ranks of the meeting gather blocks of different lengths");
        return;
    }
    memcpy(round->blocks + (size_t)rank * round->length, note->bytes, note->length);
    round->given[rank] = true;
    for (int other = 0; other < round->size; ++other) {
        given += round->given[other];
    }
    if (given < round->size) {
        return;
    }
    for (int other = 0; other < round->size; ++other) {
        round->given[other] = false;
        xm_note_send(&round->members[other]->link,
                     &(xm_note_t){.kind = XM_NOTE_BLOCK,
                                  .bytes = round->blocks,
                                  .length = (size_t)round->size * round->length});
    }
    free(round->blocks);
    round->blocks = NULL;
}

/* The round is over for a world. What a round that failed has left at its receivers is no version.
 * All hear of a failure that is not a death, except that receivers whose source has changed its
 * mind wait for the next version. */
static void end_for(xm_round_t *round, xm_world_t *world)
{
    bool receives = world->role == XM_ROLE_TARGET &&
                    (world->members[0] == NULL || world->members[0] != round->members[0]);

    world->round = NULL;
    world->has_moved = true;
    for (int rank = 0; rank < world->size; ++rank) {
        xm_member_t *member = world->members[rank];

        if (member != NULL && rank_in(round, member) < round->size) {
            member->group = round->failure.status == XM_OK ? member->group : 0;
            if (receives) {
                member->version = round->failure.status == XM_OK ? round->version : -1;
            }
        }
    }
    if (round->failure.status < 0) {
        if (!round->lost && !(receives && round->failure.status == XM_ERR_CANCELED)) {
            settle(world, round->failure.status, 0, round->failure.sentence);
        }
    } else if (receives || world->role == XM_ROLE_PEER) {
        settle(world, XM_OK, 1, "");
    }
}

static bool is_over(const xm_round_t *round)
{
    for (int rank = 0; rank < round->size; ++rank) {
        if (round->members[rank] != NULL && round->members[rank]->is_moving) {
            return false;
        }
    }
    return round->lost || round->failure.status != XM_ERR_PEER_DIED ||
           xm_clock_ns() - round->failed_since > LAST_WORD_NS;
}

/* A world of which nobody is there any more: its name is free. */
static void drop_empty(xm_world_t *world)
{
    for (int rank = 0; rank < world->size; ++rank) {
        if (world->members[rank] != NULL) {
            return;
        }
    }
    if (world->round == NULL) {
        xm_list_remove(&world->in_place);
        free(world->members);
        free(world);
    }
}

static void end_rounds(xm_place_t *place)
{
    for (xm_list_t *at = xm_list_first(&place->rounds), *next; at != NULL; at = next) {
        xm_round_t *round = xm_list_entry(at, xm_round_t, in_place);

        next = xm_list_next(&place->rounds, at);
        if (!is_over(round)) {
            continue;
        }
        for (xm_world_t *world = first_world(place), *other; world != NULL; world = other) {
            other = next_world(place, world);
            if (world->round == round) {
                end_for(round, world);
                drop_empty(world);
            }
        }
        xm_list_remove(at);
        xm_round_free(round);
    }
}

/* What members say ------------------------------------------------------------------------------
 */

static void cancel(xm_world_t *world, const xm_member_t *member)
{
    char sentence[XM_PLACE_WORLD_NAME + 64];

    (void)snprintf(sentence, sizeof(sentence), "rank %d of world '%s' has cancelled", member->rank,
                   world->name);
    if (world->round != NULL) {
        fail(world->round, XM_ERR_CANCELED, sentence);
    } else {
        settle(world, XM_ERR_CANCELED, 0, sentence);
    }
}

static void take_report(xm_round_t *round, xm_member_t *member, const xm_note_t *note)
{
    char sentence[XM_BOOTSTRAP_SENTENCE_SIZE];
    xm_status_t status = xm_note_status(note, 0);

    (void)snprintf(sentence, sizeof(sentence), "%.*s", (int)note->length,
                   (const char *)note->bytes);
    member->is_moving = false;
    if (status < 0) {
        fail(round, status, sentence);
    }
}

void xm_rounds_hear(xm_member_t *member, const xm_note_t *note)
{
    xm_world_t *world = member->world;

    switch (note->kind) {
    case XM_NOTE_READY:
        member->ready = true;
        member->ready_since = xm_clock_ns();
        if (world->role == XM_ROLE_SOURCE) {
            member->version = note->number[0];
        }
        break;
    case XM_NOTE_CANCEL:
        cancel(world, member);
        break;
    case XM_NOTE_BLOCK:
        if (world->round != NULL && member->is_moving) {
            take_block(world->round, member, note);
        }
        break;
    case XM_NOTE_DONE:
        if (world->round != NULL && member->is_moving) {
            take_report(world->round, member, note);
        }
        break;
    default:
        break; /* of no meaning from a member */
    }
}

void xm_rounds_lose(xm_place_t *place, xm_member_t *member)
{
    xm_world_t *world = member->world;
    char sentence[XM_PLACE_WORLD_NAME + XM_BOOTSTRAP_HOST_SIZE + 64];

    (void)snprintf(sentence, sizeof(sentence), "rank %d of world '%s' (host %s, pid %d) is gone",
                   member->rank, world->name, member->identity.host, member->identity.pid);
    world->members[member->rank] = NULL;
    for (xm_list_t *at = xm_list_first(&place->rounds); at != NULL;
         at = xm_list_next(&place->rounds, at)) {
        xm_round_t *round = xm_list_entry(at, xm_round_t, in_place);
        int rank = rank_in(round, member);

        if (rank < round->size) {
            round->members[rank] = NULL;
            round->lost = true;
            fail(round, XM_ERR_PEER_DIED, sentence);
        }
    }
    /* Targets wait until their rank is back; for the others there is nothing to wait for. */
    if (world->role != XM_ROLE_TARGET) {
        settle(world, XM_ERR_PEER_DIED, 0, sentence);
    }
    drop_empty(world);
}

/* Decisions ------------------------------------------------------------------------------------ */

/* Who has waited too long: for the rest of its world to come, or to be ready as it is. */
static void check_skew(xm_world_t *world, int64_t now)
{
    char missing[XM_PLACE_WORLD_NAME + 128];
    int64_t since = now;

    if (!world->was_complete && now - world->since > world->timeout) {
        (void)xm_world_name_missing(world, false, missing, sizeof(missing));
        for (int rank = 0; rank < world->size; ++rank) {
            if (world->members[rank] != NULL) {
                (void)xm_error_set(XM_ERR_TIMEOUT, "%s: not at the meeting within %g s", missing,
                                   1e-9 * (double)world->timeout);
                xm_note_send_status(&world->members[rank]->link, XM_NOTE_ENDED, XM_ERR_TIMEOUT,
                                    xm_last_error());
            }
        }
        world->since = now;
    }
    for (int rank = 0; rank < world->size; ++rank) {
        if (is_ready(world->members[rank]) && world->members[rank]->ready_since < since) {
            since = world->members[rank]->ready_since;
        }
    }
    if (now - since > world->skew && world->round == NULL && xm_world_is_complete(world) &&
        !all_are(world, is_ready)) {
        settle_error(
            world, xm_error_set(XM_ERR_TIMEOUT, "%s: start() not called within %g s of the others",
                                xm_world_name_missing(world, true, missing, sizeof(missing)),
                                1e-9 * (double)world->skew));
    }
}

/* What a source has to look at before it can move. */
typedef struct {
    xm_world_t **called; /* the source, and targets that are ready for its version */
    int count, served, waited_for, present;
} scene_t;

static void look_around(const xm_place_t *place, const xm_world_t *source, scene_t *scene)
{
    int64_t version = version_of(source);

    for (xm_world_t *world = first_world(place); world != NULL; world = next_world(place, world)) {
        if (world->role != XM_ROLE_TARGET || !xm_world_is_complete(world)) {
            continue;
        }
        ++scene->present;
        if (version_of(world) >= version) {
            ++scene->served;
        } else if (world->round != NULL || !all_are(world, is_ready)) {
            ++scene->waited_for;
        } else {
            scene->called[scene->count++] = world;
        }
    }
}

static bool offers_one_version(xm_world_t *source)
{
    for (int rank = 1; rank < source->size; ++rank) {
        long long own = source->members[rank]->version, first = source->members[0]->version;

        if (own != first) {
            settle_error(source,
                         XM_MISMATCH("rank %d of world '%s' offers version %lld, rank 0 %lld", rank,
                                     source->name, own, first));
            return false;
        }
    }
    return true;
}

static void decide_source(xm_place_t *place, xm_world_t *source, scene_t *scene, int64_t now)
{
    bool is_late = now - source->members[0]->ready_since > source->timeout;
    bool enough;

    if (!offers_one_version(source)) {
        return;
    }
    scene->called[scene->count++] = source;
    look_around(place, source, scene);
    enough = source->has_moved || scene->present >= source->targets;
    if (scene->count > 1 && enough && (scene->waited_for == 0 || is_late)) {
        call(place, scene->called, scene->count, version_of(source));
    } else if (scene->count == 1 && enough && scene->waited_for == 0) {
        settle(source, XM_OK, scene->served, "");
    } else if (is_late) {
        settle_error(source,
                     xm_error_set(XM_ERR_TIMEOUT,
                                  "world '%s' has waited %g s: %d of %d worlds of targets are "
                                  "complete, and %d of those have not called start()",
                                  source->name, 1e-9 * (double)source->timeout, scene->present,
                                  source->targets, scene->waited_for));
    }
}

/* A target that is behind gets the newest version from another one, where no source is about to
 * offer a newer one. */
static void decide_target(xm_place_t *place, xm_world_t *target)
{
    xm_world_t *best = NULL;

    for (xm_world_t *world = first_world(place); world != NULL; world = next_world(place, world)) {
        if (world->role == XM_ROLE_SOURCE && (world->round != NULL || all_are(world, is_ready))) {
            return;
        }
        if (world->role == XM_ROLE_TARGET && world->round == NULL && all_are(world, passes_on) &&
            version_of(world) > version_of(target) &&
            (best == NULL || version_of(world) > version_of(best))) {
            best = world;
        }
    }
    if (best != NULL) {
        call(place, (xm_world_t *[]){best, target}, 2, version_of(best));
    }
}

void xm_rounds_decide(xm_place_t *place)
{
    int64_t now = xm_clock_ns();
    int count = 0;
    scene_t scene = {0};

    end_rounds(place);
    for (xm_world_t *world = first_world(place); world != NULL; world = next_world(place, world)) {
        check_skew(world, now);
        ++count;
    }
    scene.called = calloc((size_t)count + 1, sizeof(xm_world_t *));
    if (scene.called == NULL) {
        return;
    }
    /* Sources first: what they offer is newer than what targets could give each other. */
    for (int role = XM_ROLE_SOURCE; role <= XM_ROLE_PEER; ++role) {
        for (xm_world_t *world = first_world(place); world != NULL;
             world = next_world(place, world)) {
            if ((int)world->role != role || world->round != NULL || !all_are(world, is_ready)) {
                continue;
            }
            scene = (scene_t){.called = scene.called};
            if (role == XM_ROLE_SOURCE) {
                decide_source(place, world, &scene, now);
            } else if (role == XM_ROLE_TARGET) {
                decide_target(place, world);
            } else {
                call(place, &world, 1, 0);
            }
        }
    }
    free(scene.called);
}
