/* SPDX-License-Identifier: Apache-2.0 */
/* A place and members that are threads of one process: who is called to which round, and who is
 * told what. The expected rounds are written down here by hand. */
#include <pthread.h>
#include <stdio.h>

#include <crossmesh/meeting.h>

#include "comm/base.h"
#include "xm_test.h"

static const char secret[] = "a secret for tests only";

enum { LONGEST = 8, WAIT_S = 30 };

/* A world whose ranks join in threads of their own, since joining waits for all of them. */
typedef struct {
    xm_meeting_params_t params;
    xm_meeting_t *meeting;
    xm_status_t status;
    char sentence[1024];
} joining_t;

static void *join_one(void *arg)
{
    joining_t *joining = arg;

    joining->status = xm_meeting_join(&joining->params, &joining->meeting, NULL);
    (void)snprintf(joining->sentence, sizeof(joining->sentence), "%s", xm_last_error());
    return NULL;
}

static xm_place_t *open_place(char address[32])
{
    xm_place_t *place;
    int port;

    ck_assert_xm_ok(xm_place_open("tcp://127.0.0.1:0", secret, &place, &port));
    (void)snprintf(address, 32, "tcp://127.0.0.1:%d", port);
    return place;
}

static xm_meeting_params_t member(const char *address, const char *world, xm_role_t role, int rank,
                                  int size)
{
    xm_meeting_params_t params = XM_MEETING_PARAMS_INIT;

    params.address = address;
    params.world = world;
    params.role = role;
    params.rank = rank;
    params.size = size;
    params.secret = secret;
    params.timeout = WAIT_S;
    params.passes_on = role == XM_ROLE_TARGET;
    return params;
}

static void join_world(const char *address, const char *world, xm_role_t role, int size,
                       xm_meeting_t **meetings)
{
    joining_t joining[LONGEST];
    pthread_t threads[LONGEST];

    for (int rank = 0; rank < size; ++rank) {
        joining[rank] = (joining_t){.params = member(address, world, role, rank, size)};
        ck_assert_int_eq(pthread_create(&threads[rank], NULL, join_one, &joining[rank]), 0);
    }
    for (int rank = 0; rank < size; ++rank) {
        (void)pthread_join(threads[rank], NULL);
        ck_assert_msg(joining[rank].status == XM_OK, "%s", joining[rank].sentence);
        meetings[rank] = joining[rank].meeting;
    }
}

static xm_meeting_event_t next_event(xm_meeting_t *meeting)
{
    xm_meeting_event_t event = XM_MEETING_EVENT_INIT;

    ck_assert_xm_ok(xm_meeting_next(meeting, WAIT_S, &event));
    return event;
}

/* All members are called to one round, in this order, and say that it went well. */
static int64_t hold_round(xm_meeting_t *const *meetings, int count, int senders, int64_t version)
{
    int64_t group = 0;

    for (int rank = 0; rank < count; ++rank) {
        xm_meeting_event_t event = next_event(meetings[rank]);

        ck_assert_int_eq(event.kind, XM_MEETING_ROUND);
        ck_assert_int_eq(event.rank, rank);
        ck_assert_int_eq(event.size, count);
        ck_assert_int_eq(event.senders, senders);
        ck_assert_int_eq(event.version, version);
        group = event.group;
    }
    for (int rank = 0; rank < count; ++rank) {
        ck_assert_xm_ok(xm_meeting_say(meetings[rank], XM_MEETING_DONE, XM_OK, NULL));
    }
    return group;
}

static void say_ready(xm_meeting_t *const *meetings, int count, int64_t version)
{
    for (int rank = 0; rank < count; ++rank) {
        ck_assert_xm_ok(xm_meeting_say(meetings[rank], XM_MEETING_READY, version, NULL));
    }
}

static void expect_settled(xm_meeting_t *const *meetings, int count, int64_t version, int targets)
{
    for (int rank = 0; rank < count; ++rank) {
        xm_meeting_event_t event = next_event(meetings[rank]);

        ck_assert_int_eq(event.kind, XM_MEETING_SETTLED);
        ck_assert_int_eq(event.status, XM_OK);
        ck_assert_int_eq(event.version, version);
        ck_assert(targets < 0 || event.targets == targets);
    }
}

static void leave(xm_meeting_t *const *meetings, int count)
{
    for (int rank = 0; rank < count; ++rank) {
        xm_meeting_leave(meetings[rank]);
    }
}

START_TEST(versions_go_to_all_targets_and_late_ones_get_them_from_those)
{
    char address[32];
    xm_place_t *place = open_place(address);
    xm_meeting_t *all[LONGEST]; /* two sources, a target of one rank, one of two */
    int64_t group;

    join_world(address, "trainer", XM_ROLE_SOURCE, 2, all);
    join_world(address, "first", XM_ROLE_TARGET, 1, all + 2);
    say_ready(all, 2, 5);
    say_ready(all + 2, 1, 0);
    group = hold_round(all, 3, 2, 5);
    expect_settled(all + 2, 1, 5, -1);
    expect_settled(all, 2, 5, 1);
    /* The same members again: the same group. */
    say_ready(all, 3, 6);
    ck_assert_int_eq(hold_round(all, 3, 2, 6), group);
    expect_settled(all, 2, 6, 1);
    expect_settled(all + 2, 1, 6, -1);
    /* A late one, while the source has nothing to offer: from its peer. */
    join_world(address, "second", XM_ROLE_TARGET, 2, all + 3);
    say_ready(all + 3, 2, 0);
    ck_assert_int_ne(hold_round(all + 2, 3, 1, 6), group);
    expect_settled(all + 3, 2, 6, -1);
    /* The next one goes to both. */
    say_ready(all, 5, 7);
    (void)hold_round(all, 5, 2, 7);
    expect_settled(all, 2, 7, 2);
    leave(all, 5);
    xm_place_close(place);
}
END_TEST

START_TEST(nobody_waits_for_the_dead)
{
    char address[32];
    xm_place_t *place = open_place(address);
    xm_meeting_t *all[LONGEST];

    join_world(address, "trainer", XM_ROLE_SOURCE, 1, all);
    join_world(address, "a", XM_ROLE_TARGET, 2, all + 1);
    join_world(address, "b", XM_ROLE_TARGET, 1, all + 3);
    say_ready(all, 4, 1);
    for (int rank = 0; rank < 4; ++rank) {
        ck_assert_int_eq(next_event(all[rank]).size, 4);
    }
    /* One dies in the round; the others' run fails. It is called anew without its world. */
    xm_meeting_leave(all[2]);
    for (int rank = 0; rank < 4; rank += rank == 1 ? 2 : 1) {
        ck_assert_xm_ok(
            xm_meeting_say(all[rank], XM_MEETING_DONE, XM_ERR_PEER_DIED, "rank 2 died"));
    }
    all[2] = all[1];
    all[1] = all[3];
    (void)hold_round(all, 2, 1, 1);
    expect_settled(all, 1, 1, 1);
    expect_settled(all + 1, 1, 1, -1);
    leave(all, 3);
    xm_place_close(place);
}
END_TEST

START_TEST(refusals_are_sentences)
{
    char address[32];
    xm_place_t *place = open_place(address);
    xm_meeting_params_t other = member(address, "trainer", XM_ROLE_SOURCE, 0, 1);
    xm_meeting_t *meeting, *again;
    xm_meeting_event_t event = XM_MEETING_EVENT_INIT;
    int port;

    ck_assert_xm_fails(xm_place_open("somewhere", secret, &place, &port), XM_ERR_PARSE,
                       "'somewhere' is no address of a meeting");
    ck_assert_xm_fails(xm_place_open("tcp://127.0.0.1:0", "short", &place, &port),
                       XM_ERR_INVALID_ARGUMENT, "secret has 5 characters");
    ck_assert_xm_ok(xm_meeting_join(&other, &meeting, NULL));
    ck_assert_xm_fails(xm_meeting_join(&other, &again, NULL), XM_ERR_MISMATCH,
                       "rank 0 of world 'trainer' is there already");
    other.size = 2;
    other.rank = 1;
    ck_assert_xm_fails(xm_meeting_join(&other, &again, NULL), XM_ERR_MISMATCH, "role or size");
    other.secret = "another one, as long as it has to be";
    ck_assert_xm_fails(xm_meeting_join(&other, &again, NULL), XM_ERR_MISMATCH,
                       "does not know the secret of the meeting");
    other = member(address, "half", XM_ROLE_TARGET, 1, 3);
    other.timeout = 0.2;
    ck_assert_xm_fails(xm_meeting_join(&other, &again, NULL), XM_ERR_TIMEOUT,
                       "ranks 0, 2 of world 'half' (3 ranks): not at the meeting within 0.2 s");
    ck_assert_int_eq(xm_meeting_next(meeting, 0.0, &event), XM_IN_PROGRESS);
    xm_place_close(place);
    ck_assert_xm_fails(xm_meeting_next(meeting, WAIT_S, &event), XM_ERR_CANCELED,
                       "the meeting has ended");
    xm_meeting_leave(meeting);
    xm_meeting_leave(NULL);
    xm_place_close(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("meeting");
    TCase *tcase = tcase_create("meeting");

    tcase_set_timeout(tcase, 4 * WAIT_S);
    tcase_add_test(tcase, versions_go_to_all_targets_and_late_ones_get_them_from_those);
    tcase_add_test(tcase, nobody_waits_for_the_dead);
    tcase_add_test(tcase, refusals_are_sentences);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
