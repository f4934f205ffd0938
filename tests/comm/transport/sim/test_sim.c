/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/transport/sim.h"

#include <stdio.h>

#include "xm_test.h"

typedef struct {
    xm_op_t op;
    int ended;
    xm_status_t status;
    char sentence[200]; /* of a failure */
} request_t;

static void on_done(xm_op_t *op, xm_status_t status)
{
    request_t *request = op->arg;

    ++request->ended;
    request->status = status;
    if (status < 0) {
        (void)snprintf(request->sentence, sizeof(request->sentence), "%s", xm_last_error());
    }
}

static request_t fresh(request_t *request)
{
    return (request_t){.op = {.done = on_done, .arg = request}};
}

/* Four ranks, two a host; 1 GB/s NICs with 10 us latency, 10 GB/s inside a host. */
static xm_sim_fabric_t *make(xm_transport_t **transport)
{
    static const int hosts[] = {0, 0, 1, 1};
    xm_sim_fabric_params_t params = {0};
    xm_sim_fabric_t *fabric;

    params.ranks = 4;
    params.host_of_rank = hosts;
    params.nic_latency = 10e-6;
    ck_assert_xm_ok(xm_sim_fabric_create(&params, &fabric));
    for (int r = 0; r < 4; ++r) {
        ck_assert_xm_ok(xm_transport_sim_create(fabric, r, &transport[r]));
        ck_assert_int_eq(transport[r]->failed_peer, -1);
    }
    return fabric;
}

static void end(xm_sim_fabric_t *fabric, xm_transport_t **transport)
{
    for (int r = 0; r < 4; ++r) {
        xm_transport_destroy(transport[r]);
    }
    xm_sim_fabric_destroy(fabric);
}

START_TEST(a_message_waits_for_both_ends_and_takes_its_time)
{
    xm_transport_t *t[4];
    xm_sim_fabric_t *fabric = make(t);
    static char from[1000000], to[1000000];
    request_t send = fresh(&send), receive = fresh(&receive);

    memset(from, 7, sizeof(from));
    ck_assert_int_eq(xm_transport_send(t[0], 2, 5, from, sizeof(from), NULL, &send.op),
                     XM_IN_PROGRESS);
    ck_assert(!xm_sim_fabric_step(fabric)); /* no receive yet: nothing can happen */
    ck_assert_int_eq(xm_transport_receive(t[2], 0, 5, to, sizeof(to), NULL, &receive.op),
                     XM_IN_PROGRESS);
    ck_assert_int_eq(xm_transport_progress(t[2]), 0);
    ck_assert(xm_sim_fabric_step(fabric));
    ck_assert_int_eq(xm_sim_fabric_now(fabric), 1010000);
    ck_assert_int_eq(xm_transport_arm(t[2]), XM_IN_PROGRESS);
    ck_assert_int_eq(xm_transport_progress(t[2]) + xm_transport_progress(t[0]), 2);
    ck_assert(send.ended == 1 && send.status == XM_OK && receive.ended == 1 &&
              receive.status == XM_OK);
    ck_assert_mem_eq(from, to, sizeof(from));
    end(fabric, t);
}
END_TEST

START_TEST(flows_of_a_host_share_its_nic)
{
    xm_transport_t *t[4];
    xm_sim_fabric_t *fabric = make(t);
    static char data[4][1000000];
    request_t r[6];

    for (int i = 0; i < 6; ++i) {
        r[i] = fresh(&r[i]);
    }
    /* Two flows host 0 → 1, one the other way: the NIC is full duplex, each direction is shared. */
    (void)xm_transport_send(t[0], 2, 1, data[0], 1000000, NULL, &r[0].op);
    (void)xm_transport_receive(t[2], 0, 1, data[1], 1000000, NULL, &r[1].op);
    (void)xm_transport_send(t[1], 3, 1, data[0], 1000000, NULL, &r[2].op);
    (void)xm_transport_receive(t[3], 1, 1, data[2], 1000000, NULL, &r[3].op);
    (void)xm_transport_send(t[3], 0, 1, data[0], 1000000, NULL, &r[4].op);
    (void)xm_transport_receive(t[0], 3, 1, data[3], 1000000, NULL, &r[5].op);
    ck_assert(xm_sim_fabric_step(fabric)); /* both directions end at once */
    ck_assert_int_eq(xm_sim_fabric_now(fabric), 1010000);
    ck_assert(xm_sim_fabric_step(fabric));
    ck_assert_int_eq(xm_sim_fabric_now(fabric), 2010000);
    ck_assert(!xm_sim_fabric_step(fabric));
    for (int i = 0; i < 4; ++i) {
        (void)xm_transport_progress(t[i]);
    }
    for (int i = 0; i < 6; ++i) {
        ck_assert_int_eq(r[i].ended, 1);
    }
    end(fabric, t);
}
END_TEST

START_TEST(wrong_lengths_and_cancels)
{
    xm_transport_t *t[4];
    xm_sim_fabric_t *fabric = make(t);
    char a[8] = {0}, b[4];
    request_t send = fresh(&send), receive = fresh(&receive), lonely = fresh(&lonely);

    (void)xm_transport_send(t[0], 1, 9, a, 8, NULL, &send.op);
    (void)xm_transport_receive(t[1], 0, 9, b, 4, NULL, &receive.op);
    (void)xm_transport_receive(t[1], 0, 10, b, 4, NULL, &lonely.op);
    xm_transport_cancel(t[1], &lonely.op);
    (void)xm_transport_progress(t[0]);
    (void)xm_transport_progress(t[1]);
    ck_assert_int_eq(receive.status, XM_ERR_CORRUPT);
    ck_assert_str_eq(receive.sentence, "rank 1: receive from rank 0 with tag 9 expects 4 bytes, a "
                                       "message of 8 bytes came");
    ck_assert(lonely.ended == 1 && lonely.status == XM_ERR_CANCELED);
    ck_assert_xm_fails(xm_transport_send(t[0], 0, 1, a, 1, NULL, &send.op), XM_ERR_INVALID_ARGUMENT,
                       "between rank 0 and rank 0");
    end(fabric, t);
}
END_TEST

START_TEST(cancelling_what_is_not_in_flight_does_nothing)
{
    xm_transport_t *t[4];
    xm_sim_fabric_t *fabric = make(t);
    char a[8] = {0}, b[8];
    request_t never = fresh(&never), send = fresh(&send), receive = fresh(&receive);

    xm_transport_cancel(t[0], &never.op);
    (void)xm_transport_send(t[0], 1, 9, a, 8, NULL, &send.op);
    (void)xm_transport_receive(t[1], 0, 9, b, 8, NULL, &receive.op);
    ck_assert(xm_sim_fabric_step(fabric));
    (void)xm_transport_progress(t[0]);
    (void)xm_transport_progress(t[1]);
    xm_transport_cancel(t[0], &send.op);
    xm_transport_cancel(t[1], &receive.op);
    ck_assert_int_eq(xm_transport_progress(t[0]) + xm_transport_progress(t[1]), 0);
    ck_assert(send.ended == 1 && receive.ended == 1 && never.ended == 0);
    end(fabric, t);
}
END_TEST

START_TEST(death_ends_what_others_wait_for)
{
    xm_transport_t *t[4];
    xm_sim_fabric_t *fabric = make(t);
    char a[8] = {0}, b[8], c[8];
    request_t wire = fresh(&wire), peer = fresh(&peer), waiting = fresh(&waiting),
              other = fresh(&other);

    (void)xm_transport_send(t[0], 2, 1, a, 8, NULL, &wire.op);
    (void)xm_transport_receive(t[2], 0, 1, b, 8, NULL, &peer.op); /* on the wire */
    (void)xm_transport_receive(t[0], 2, 2, b, 8, NULL, &waiting.op);
    (void)xm_transport_receive(t[0], 1, 2, c, 8, NULL, &other.op);
    xm_sim_fabric_kill(fabric, 2);
    (void)xm_transport_progress(t[0]);
    (void)xm_transport_progress(t[2]);
    ck_assert(wire.status == XM_ERR_PEER_DIED && waiting.status == XM_ERR_PEER_DIED);
    ck_assert_int_eq(peer.ended, 0); /* the dead get no callbacks */
    ck_assert_int_eq(other.ended, 0);
    ck_assert_str_eq(wire.sentence, "rank 2 died");
    ck_assert_int_eq(t[0]->failed_peer, 2);
    ck_assert_int_eq(t[1]->failed_peer, -1);
    ck_assert_xm_fails(xm_transport_send(t[0], 2, 3, a, 8, NULL, &wire.op), XM_ERR_PEER_DIED,
                       "rank 2 died");
    end(fabric, t);
    ck_assert(other.ended == 1 && other.status == XM_ERR_CANCELED); /* ended by destroy */
}
END_TEST

/* Messages over a link that is down stand still, others do not; when it is up, they start anew. */
START_TEST(a_cut_link_stands_still)
{
    xm_transport_t *t[4];
    xm_sim_fabric_t *fabric = make(t);
    static char from[1000000], to[1000000];
    request_t send = fresh(&send), receive = fresh(&receive);
    request_t near_send = fresh(&near_send), near_receive = fresh(&near_receive);
    char a = 5, b = 0;
    uint64_t moved;

    memset(from, 9, sizeof(from));
    (void)xm_transport_send(t[0], 2, 1, from, sizeof(from), NULL, &send.op);
    (void)xm_transport_receive(t[2], 0, 1, to, sizeof(to), NULL, &receive.op);
    ck_assert_xm_ok(xm_sim_fabric_cut(fabric, 0, 1, true));
    ck_assert(!xm_sim_fabric_step(fabric));
    ck_assert(xm_transport_waits(t[0], 2, &moved) && !xm_transport_waits(t[0], 1, &moved));
    (void)xm_transport_send(t[0], 1, 1, &a, 1, NULL, &near_send.op);
    (void)xm_transport_receive(t[1], 0, 1, &b, 1, NULL, &near_receive.op);
    ck_assert(xm_sim_fabric_step(fabric));
    ck_assert(xm_transport_progress(t[1]) == 1 && b == 5);
    ck_assert_xm_ok(xm_sim_fabric_cut(fabric, 1, 0, false));
    ck_assert(xm_sim_fabric_step(fabric));
    (void)xm_transport_progress(t[0]);
    (void)xm_transport_progress(t[2]);
    ck_assert(send.ended == 1 && receive.ended == 1 && receive.status == XM_OK);
    ck_assert_mem_eq(from, to, sizeof(from));
    ck_assert(!xm_transport_waits(t[0], 2, &moved));
    ck_assert_uint_eq(moved, 2);
    /* Who dies behind a cut link takes his messages along. */
    ck_assert_xm_ok(xm_sim_fabric_cut(fabric, 0, 1, true));
    send = fresh(&send);
    receive = fresh(&receive);
    (void)xm_transport_send(t[0], 2, 1, from, sizeof(from), NULL, &send.op);
    (void)xm_transport_receive(t[2], 0, 1, to, sizeof(to), NULL, &receive.op);
    xm_sim_fabric_kill(fabric, 0);
    ck_assert_int_eq(xm_transport_progress(t[2]), 1);
    ck_assert_int_eq(receive.status, XM_ERR_PEER_DIED);
    ck_assert_xm_fails(xm_sim_fabric_cut(fabric, 0, 2, true), XM_ERR_INVALID_ARGUMENT,
                       "between host 0 and host 2 of 2");
    end(fabric, t);
}
END_TEST

/* After a fence nothing lands, and what others have left of the old times never meets the new. */
START_TEST(a_fence_ends_everything_and_lets_nothing_in)
{
    xm_transport_t *t[4];
    xm_sim_fabric_t *fabric = make(t);
    static char old[1000000], fresh_bytes[1000000], to[1000000];
    request_t send = fresh(&send), receive = fresh(&receive), lonely = fresh(&lonely);
    request_t again = fresh(&again), late = fresh(&late);

    memset(old, 1, sizeof(old));
    memset(fresh_bytes, 2, sizeof(fresh_bytes));
    (void)xm_transport_send(t[0], 2, 1, old, sizeof(old), NULL, &send.op);
    (void)xm_transport_receive(t[2], 0, 1, to, sizeof(to), NULL, &receive.op);
    (void)xm_transport_receive(t[2], 3, 1, to, sizeof(to), NULL, &lonely.op);
    xm_transport_fence(t[2]);
    ck_assert(receive.ended == 1 && receive.status == XM_ERR_CANCELED);
    ck_assert(lonely.ended == 1 && lonely.status == XM_ERR_CANCELED);
    ck_assert_int_eq(send.ended, 0); /* rank 0 has not heard of it */
    ck_assert(!xm_sim_fabric_step(fabric));
    ck_assert_int_eq(to[0], 0);
    ck_assert_xm_fails(xm_transport_receive(t[2], 0, 2, to, 1, NULL, &late.op), XM_ERR_CANCELED,
                       "closed");
    /* The new transport of rank 2 does not get what rank 0's old one still sends. */
    xm_transport_destroy(t[2]);
    ck_assert_xm_ok(xm_transport_sim_create(fabric, 2, &t[2]));
    receive = fresh(&receive);
    (void)xm_transport_receive(t[2], 0, 1, to, sizeof(to), NULL, &receive.op);
    ck_assert(!xm_sim_fabric_step(fabric));
    xm_transport_fence(t[0]);
    ck_assert(send.ended == 1 && send.status == XM_ERR_CANCELED);
    xm_transport_destroy(t[0]);
    ck_assert_xm_ok(xm_transport_sim_create(fabric, 0, &t[0]));
    (void)xm_transport_send(t[0], 2, 1, fresh_bytes, sizeof(fresh_bytes), NULL, &again.op);
    ck_assert(xm_sim_fabric_step(fabric));
    (void)xm_transport_progress(t[2]);
    (void)xm_transport_progress(t[0]);
    ck_assert(receive.ended == 1 && receive.status == XM_OK && again.ended == 1);
    ck_assert_mem_eq(to, fresh_bytes, sizeof(to));
    end(fabric, t);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_sim");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, a_message_waits_for_both_ends_and_takes_its_time);
    tcase_add_test(tcase, flows_of_a_host_share_its_nic);
    tcase_add_test(tcase, wrong_lengths_and_cancels);
    tcase_add_test(tcase, cancelling_what_is_not_in_flight_does_nothing);
    tcase_add_test(tcase, death_ends_what_others_wait_for);
    tcase_add_test(tcase, a_cut_link_stands_still);
    tcase_add_test(tcase, a_fence_ends_everything_and_lets_nothing_in);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
