/* SPDX-License-Identifier: Apache-2.0 */
/* Where members connect: the thread behind an address. It lets in who proves to know the secret,
 * puts members into their worlds, and hands what they say to rounds.c, which decides. The port is
 * open to everybody, so until somebody has proved who it is nothing but a hello is read. */
#include "comm/meeting/place.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <crossmesh/version.h>

/* TICK_MS: how often the place looks at the clock when nobody speaks. */
enum { TICK_MS = 50, EVENTS = 64 };

static xm_door_place_t who_is(void *arg, int slot, int64_t *since)
{
    const xm_member_t *member = &((const xm_place_t *)arg)->members[slot];

    *since = member->since;
    return member->link.fd < 0 ? XM_DOOR_FREE : member->proven ? XM_DOOR_KNOWN : XM_DOOR_STRANGER;
}

/* Whoever goes leaves its rank free. */
static void dismiss(xm_place_t *place, xm_member_t *member)
{
    xm_bootstrap_link_close(&member->link);
    if (member->world != NULL) {
        xm_rounds_lose(place, member);
    }
    *member = (xm_member_t){.link.fd = -1};
}

static void drop(void *arg, int slot)
{
    xm_place_t *place = arg;

    dismiss(place, &place->members[slot]);
}

/* Tells a member why it cannot stay. The connection ends when the other side has read that. */
static void refuse(xm_member_t *member, xm_status_t status)
{
    xm_error_t error;

    xm_error_save(&error, status);
    xm_note_send_status(&member->link, XM_NOTE_ENDED, status, error.sentence);
    (void)shutdown(member->link.fd, SHUT_WR);
}

/* Who has connected and gone again leaves the place free. */
static void challenge(xm_place_t *place, int slot, int fd)
{
    xm_member_t *member = &place->members[slot];

    *member = (xm_member_t){.link.fd = -1, .since = xm_clock_ns()};
    (void)xm_bootstrap_challenge(&member->link, fd, place->epoll, (uint64_t)slot, &place->secret,
                                 member->nonce);
}

/* Answers a hello with a proof of its own, or with a refusal where the other side knows no secret
 * or another one. False: it is to be dismissed. */
static bool greet(xm_place_t *place, xm_member_t *member)
{
    xm_bootstrap_fault_t fault = {.rank = -1, .status = XM_ERR_MISMATCH};
    uint8_t bytes[XM_BOOTSTRAP_WELCOME_SIZE];
    xm_bootstrap_welcome_t welcome = {.identity = {.size = 1, .pid = (int)getpid()}};
    xm_bootstrap_hello_t hello;

    if (xm_bootstrap_hello_decode(member->link.payload, member->link.frame.length, &hello) < 0) {
        return false;
    }
    member->identity = hello.identity;
    if (!xm_bootstrap_is_proven(&place->secret, member->nonce, &hello)) {
        (void)snprintf(fault.sentence, sizeof(fault.sentence),
                       "rank %d (host %s, pid %d) does not know the secret of the meeting at %s",
                       hello.identity.rank, hello.identity.host, hello.identity.pid,
                       place->address);
        xm_bootstrap_send_fault(&member->link, XM_BOOTSTRAP_REFUSAL, &fault);
        return false;
    }
    member->proven = true;
    member->link.expected = 1u << XM_BOOTSTRAP_NOTE | 1u << XM_BOOTSTRAP_GOODBYE;
    xm_bootstrap_own_host(welcome.identity.host, sizeof(welcome.identity.host));
    xm_bootstrap_prove(&place->secret, "root", member->nonce, hello.nonce, &welcome.identity,
                       welcome.proof);
    xm_bootstrap_link_send(&member->link, XM_BOOTSTRAP_WELCOME, 0, bytes,
                           xm_bootstrap_welcome_encode(&welcome, bytes));
    return true;
}

/* The world of that name; a new one when there is none. */
static xm_world_t *find_world(xm_place_t *place, const char *name, xm_role_t role, int size)
{
    xm_world_t *world;

    for (xm_list_t *at = xm_list_first(&place->worlds); at != NULL;
         at = xm_list_next(&place->worlds, at)) {
        world = xm_list_entry(at, xm_world_t, in_place);
        if (strcmp(world->name, name) == 0) {
            return world;
        }
    }
    world = calloc(1, sizeof(*world));
    if (world != NULL) {
        world->members = calloc((size_t)size, sizeof(xm_member_t *));
    }
    if (world == NULL || world->members == NULL) {
        free(world);
        (void)XM_NO_MEMORY("a world of %d ranks", size);
        return NULL;
    }
    (void)snprintf(world->name, sizeof(world->name), "%s", name);
    world->role = role;
    world->size = size;
    world->since = xm_clock_ns();
    xm_list_append(&place->worlds, &world->in_place);
    return world;
}

/* Finds the member's rank. Nobody is there any more of a world that begins anew with another size.
 */
static xm_status_t take_rank(xm_world_t *world, xm_member_t *member, const xm_note_t *note)
{
    int size = member->identity.size, rank = (int)note->number[1];
    const xm_member_t *other;

    if (world->size != size || (int64_t)world->role != note->number[0]) {
        return XM_MISMATCH("rank %d (host %s, pid %d) has another role or size (%d) than world "
                           "'%s' (%d ranks): other launches need another name (world=)",
                           rank, member->identity.host, member->identity.pid, size, world->name,
                           world->size);
    }
    for (int last = size - 1; rank < 0 && last >= 0; --last) {
        rank = world->members[last] == NULL ? last : rank;
    }
    if (rank < 0 || rank >= size) {
        return XM_MISMATCH("world '%s' has %d ranks, and all are there", world->name, size);
    }
    other = world->members[rank];
    if (other != NULL) {
        return XM_MISMATCH("rank %d of world '%s' is there already (host %s, pid %d): other "
                           "launches need another name (world=)",
                           rank, world->name, other->identity.host, other->identity.pid);
    }
    member->world = world;
    member->rank = rank;
    world->members[rank] = member;
    return XM_OK;
}

static xm_status_t join(xm_place_t *place, xm_member_t *member, const xm_note_t *note)
{
    const char *version = note->bytes;
    size_t length = strnlen(version, note->length);
    char name[XM_PLACE_WORLD_NAME];
    xm_world_t *world;

    if (length == note->length || note->number[0] < 0 || note->number[0] > XM_ROLE_PEER) {
        return xm_error_set(XM_ERR_CORRUPT, "a member joins without saying what it is");
    }
    if (strcmp(version, XM_VERSION_STRING) != 0) {
        return XM_MISMATCH("rank %d (host %s, pid %d) has crossmesh %s, the meeting at %s has %s",
                           member->identity.rank, member->identity.host, member->identity.pid,
                           version, place->address, XM_VERSION_STRING);
    }
    (void)snprintf(name, sizeof(name), "%.*s", (int)(note->length - length - 1),
                   version + length + 1);
    world = find_world(place, name, (xm_role_t)note->number[0], member->identity.size);
    XM_TRY(world == NULL ? XM_ERR_NO_MEMORY : take_rank(world, member, note));
    member->version = note->number[2];
    member->passes_on = note->number[3] != 0;
    world->targets = (int)note->number[4];
    world->timeout = note->number[5] * 1000000;
    world->skew = note->number[6] * 1000000;
    xm_rounds_welcome(place, world);
    return XM_OK;
}

/* Reads what a member has sent. False: it is to be dismissed. */
static bool serve(xm_place_t *place, xm_member_t *member)
{
    xm_note_t note;
    xm_status_t status;

    xm_bootstrap_link_flush(&member->link);
    while ((status = xm_bootstrap_link_receive(&member->link)) == XM_OK) {
        if (!member->proven) {
            if (!greet(place, member)) {
                return false;
            }
            continue;
        }
        if (member->link.frame.type == XM_BOOTSTRAP_GOODBYE ||
            xm_note_read(&member->link, &note) < 0) {
            return false;
        }
        if (member->world != NULL) {
            xm_rounds_hear(member, &note);
        } else if (note.kind == XM_NOTE_JOIN) {
            status = join(place, member, &note);
            if (status < 0) {
                refuse(member, status);
            }
        }
    }
    return status == XM_IN_PROGRESS;
}

static void accept_members(xm_place_t *place)
{
    for (int i = 0; i < EVENTS; ++i) {
        int fd, slot = xm_door_accept(&place->door, xm_clock_ns(), &fd);

        if (slot < 0) {
            return;
        }
        challenge(place, slot, fd);
    }
}

static void *run(void *arg)
{
    xm_place_t *place = arg;
    struct epoll_event events[EVENTS];

    while (!atomic_load(&place->closing)) {
        int count = epoll_wait(place->epoll, events, EVENTS, TICK_MS);

        for (int i = 0; i < count; ++i) {
            if (events[i].data.u64 == XM_BOOTSTRAP_KEY_LISTENER) {
                accept_members(place);
            } else {
                xm_member_t *member = &place->members[events[i].data.u64];

                if (member->link.fd >= 0 && !serve(place, member)) {
                    dismiss(place, member);
                }
            }
        }
        xm_rounds_decide(place);
    }
    return NULL;
}

/* Listens, and learns the port where the caller has named none. */
static xm_status_t listen_at(xm_place_t *place, xm_job_env_t *env)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = XM_BOOTSTRAP_KEY_LISTENER};
    double deadline = xm_clock_seconds() + xm_config_seconds(XM_CONFIG_TIMEOUT);
    xm_address_t bound = {.length = sizeof(bound.socket)};
    xm_status_t status = xm_bootstrap_listen_master(env, deadline, &place->listener);

    if (status < 0) {
        place->listener = -1;
        return xm_error_prefix(status, "the place for the meeting");
    }
    place->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (place->epoll < 0 || fcntl(place->listener, F_SETFL, O_NONBLOCK) != 0 ||
        epoll_ctl(place->epoll, EPOLL_CTL_ADD, place->listener, &event) != 0 ||
        getsockname(place->listener, (struct sockaddr *)&bound.socket, &bound.length) != 0) {
        return xm_error_set(XM_ERR_IO, "cannot listen for a meeting at %s", env->master_addr);
    }
    env->master_port = xm_address_port(&bound);
    (void)snprintf(place->address, sizeof(place->address), "%s:%d", env->master_addr,
                   env->master_port);
    return XM_OK;
}

void xm_round_free(xm_round_t *round)
{
    free(round->members);
    free(round->given);
    free(round->blocks);
    free(round);
}

static void free_place(xm_place_t *place)
{
    xm_list_t *at;

    for (int slot = 0; place->members != NULL && slot < XM_PLACE_MEMBERS; ++slot) {
        xm_bootstrap_link_close(&place->members[slot].link);
    }
    while ((at = xm_list_first(&place->rounds)) != NULL) {
        xm_list_remove(at);
        xm_round_free(xm_list_entry(at, xm_round_t, in_place));
    }
    while ((at = xm_list_first(&place->worlds)) != NULL) {
        xm_world_t *world = xm_list_entry(at, xm_world_t, in_place);

        xm_list_remove(at);
        free(world->members);
        free(world);
    }
    if (place->epoll >= 0) {
        (void)close(place->epoll);
    }
    if (place->listener >= 0) {
        (void)close(place->listener);
    }
    free(place->members);
    explicit_bzero(&place->secret, sizeof(place->secret));
    free(place);
}

xm_status_t xm_place_open(const char *address, const char *secret, xm_place_t **place, int *port)
{
    xm_place_t *self;
    xm_job_env_t env;
    xm_status_t status;

    XM_NEED_ARGUMENTS(address, place);
    XM_TRY(xm_note_address(address, &env));
    self = calloc(1, sizeof(*self));
    XM_NEED_MEMORY(self, "a meeting's place");
    self->epoll = self->listener = -1;
    xm_list_init(&self->worlds);
    xm_list_init(&self->rounds);
    self->members = calloc(XM_PLACE_MEMBERS, sizeof(*self->members));
    for (int slot = 0; self->members != NULL && slot < XM_PLACE_MEMBERS; ++slot) {
        self->members[slot].link.fd = -1;
    }
    status = self->members != NULL ? xm_note_secret(secret, &self->secret)
                                   : XM_NO_MEMORY("a meeting's members");
    XM_THEN(status, listen_at(self, &env));
    if (status < 0) {
        goto release;
    }
    if (self->secret.length == 0) {
        xm_log_warn("the meeting at %s is open: it has no secret, so whoever reaches it can join "
                    "it; give all members one",
                    self->address);
    }
    self->door = (xm_door_t){.fd = self->listener,
                             .places = XM_PLACE_MEMBERS,
                             .strangers = xm_door_strangers(XM_DOOR_STRANGERS),
                             .who = who_is,
                             .drop = drop,
                             .arg = self};
    if (pthread_create(&self->thread, NULL, run, self) != 0) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "cannot start a thread for a meeting's place");
        goto release;
    }
    *place = self;
    if (port != NULL) {
        *port = env.master_port;
    }
    return XM_OK;

release:
    free_place(self);
    return status;
}

void xm_place_close(xm_place_t *place)
{
    if (place == NULL) {
        return;
    }
    atomic_store(&place->closing, true);
    (void)pthread_join(place->thread, NULL);
    for (int slot = 0; slot < XM_PLACE_MEMBERS; ++slot) {
        if (place->members[slot].world != NULL) {
            xm_note_send_status(&place->members[slot].link, XM_NOTE_ENDED, XM_ERR_CANCELED,
                                "the meeting has ended: its place was closed");
        }
    }
    free_place(place);
}
