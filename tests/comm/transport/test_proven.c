/* SPDX-License-Identifier: Apache-2.0 */
/* The proofs as they are on the wire: one end is a prover, the other is played by hand. Whoever has
 * to change what stands here changes what another build understands: XM_WIRE_VERSION rises, and
 * with it the number below. */
#include "comm/transport/proven.h"

#include <endian.h>
#include <xxhash.h>

#include "comm/job.h"
#include "comm/transport/sim.h"
#include "xm_test.h"

_Static_assert(XM_WIRE_VERSION == 4, "proofs are as in version 4");

enum { MESSAGES = 3, LENGTH = 100, TAG = 10, TABLE = 50, ANSWER = 51, WORDS = 8 };

typedef struct {
    xm_sim_fabric_t *fabric;
    xm_transport_t *end[2];
    xm_prover_t prover;
    xm_proven_t proven[MESSAGES];
    xm_op_t whole[MESSAGES], by_hand[MESSAGES + 2];
    uint8_t sent[MESSAGES][LENGTH], got[MESSAGES][LENGTH];
    uint64_t table[1 + WORDS + 1], answer[WORDS + 1];
    int ended;
} lab_t;

static void count(xm_op_t *op, xm_status_t status)
{
    ck_assert_xm_ok(status);
    ++((lab_t *)op->arg)->ended;
}

static void ignore(xm_op_t *op, xm_status_t status)
{
    (void)op;
    ck_assert_xm_ok(status);
}

/* The prover is rank 0's; it sends to rank 1, or receives from it. */
static void make(lab_t *lab, bool sends)
{
    xm_sim_fabric_params_t params = {0};

    *lab = (lab_t){.ended = 0};
    params.ranks = 2;
    ck_assert_xm_ok(xm_sim_fabric_create(&params, &lab->fabric));
    for (int rank = 0; rank < 2; ++rank) {
        ck_assert_xm_ok(xm_transport_sim_create(lab->fabric, rank, &lab->end[rank]));
    }
    for (size_t i = 0; i < sizeof(lab->sent); ++i) {
        lab->sent[i / LENGTH][i % LENGTH] = (uint8_t)(31 * i);
    }
    xm_prover_begin(&lab->prover, lab->end[0], 1, sends, TABLE, ANSWER, NULL);
    for (int i = 0; i < MESSAGES; ++i) {
        lab->whole[i] = (xm_op_t){.done = count, .arg = lab};
        xm_prover_add(&lab->prover, &lab->proven[i], &lab->whole[i]);
    }
}

static void end(lab_t *lab)
{
    ck_assert_int_eq(lab->ended, MESSAGES);
    xm_transport_destroy(lab->end[0]);
    xm_transport_destroy(lab->end[1]);
    xm_sim_fabric_destroy(lab->fabric);
}

static void run(const lab_t *lab)
{
    bool more = true;

    while (more) {
        more = xm_sim_fabric_step(lab->fabric);
        for (int rank = 0; rank < 2; ++rank) {
            more = xm_transport_progress(lab->end[rank]) > 0 || more;
        }
    }
}

static void by_hand(lab_t *lab, int op, bool sends, uint64_t tag, void *bytes, size_t length)
{
    lab->by_hand[op].done = ignore;
    ck_assert_int_ge(
        sends ? xm_transport_send(lab->end[1], 0, tag, bytes, length, NULL, &lab->by_hand[op])
              : xm_transport_receive(lab->end[1], 0, tag, bytes, length, NULL, &lab->by_hand[op]),
        0);
}

/* Number, hashes in the order of the messages, zeros, the hash of all that; little-endian, the seed
 * of a message's hash is its number. */
static void write_table(const lab_t *lab, uint64_t table[1 + WORDS + 1])
{
    memset(table, 0, sizeof(lab->table));
    table[0] = htole64(MESSAGES);
    for (uint64_t i = 0; i < MESSAGES; ++i) {
        table[1 + i] = htole64(XXH3_64bits_withSeed(lab->sent[i], LENGTH, i));
    }
    table[1 + WORDS] = htole64(XXH3_64bits_withSeed(table, (1 + WORDS) * sizeof(*table), 0));
}

START_TEST(a_sender_says_what_it_sends)
{
    uint64_t expected[1 + WORDS + 1];
    lab_t lab;

    make(&lab, true);
    lab.prover.held = 1; /* one table for all of them */
    for (int i = 0; i < MESSAGES; ++i) {
        xm_proven_post(&lab.proven[i], TAG + (uint64_t)i, lab.sent[i], LENGTH, NULL);
        by_hand(&lab, i, false, TAG + (uint64_t)i, lab.got[i], LENGTH);
    }
    lab.prover.held = 0;
    by_hand(&lab, MESSAGES, false, TABLE, lab.table, sizeof(lab.table));
    run(&lab);
    write_table(&lab, expected);
    ck_assert_mem_eq(lab.table, expected, sizeof(expected));
    ck_assert_mem_eq(lab.got, lab.sent, sizeof(lab.sent));
    ck_assert_int_eq(lab.ended, 0);
    memset(lab.answer, 0xff, sizeof(lab.answer)); /* all accepted, and the table */
    by_hand(&lab, MESSAGES + 1, true, ANSWER, lab.answer, sizeof(lab.answer));
    run(&lab);
    end(&lab);
}
END_TEST

START_TEST(a_receiver_accepts_what_it_got)
{
    lab_t lab;

    make(&lab, false);
    for (int i = 0; i < MESSAGES; ++i) {
        xm_proven_post(&lab.proven[i], TAG + (uint64_t)i, lab.got[i], LENGTH, NULL);
        by_hand(&lab, i, true, TAG + (uint64_t)i, lab.sent[i], LENGTH);
    }
    write_table(&lab, lab.table);
    by_hand(&lab, MESSAGES, true, TABLE, lab.table, sizeof(lab.table));
    by_hand(&lab, MESSAGES + 1, false, ANSWER, lab.answer, sizeof(lab.answer));
    run(&lab);
    for (int i = 0; i < WORDS; ++i) { /* "later" of those that are not in the table */
        ck_assert_uint_eq(le64toh(lab.answer[i]), i < MESSAGES ? UINT64_MAX : UINT32_MAX);
    }
    ck_assert_uint_eq(lab.answer[WORDS], UINT64_MAX);
    ck_assert_mem_eq(lab.got, lab.sent, sizeof(lab.sent));
    end(&lab);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("proven");
    TCase *tcase = tcase_create("wire");

    tcase_add_test(tcase, a_sender_says_what_it_sends);
    tcase_add_test(tcase, a_receiver_accepts_what_it_got);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
