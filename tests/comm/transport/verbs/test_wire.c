/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/transport/verbs/wire.h"

#include <stdio.h>

#include "xm_test.h"

static xm_verbs_offer_t make_offer(int ports)
{
    xm_verbs_offer_t offer = {.ports = ports, .slots = 32, .slot_size = 8256, .seed = 0x01020304};

    for (int i = 0; i < ports; ++i) {
        xm_verbs_port_offer_t *port = &offer.port[i];

        (void)snprintf(port->name, sizeof(port->name), "mlx5_%d:1", i);
        port->rate = UINT64_C(400000000000);
        port->mtu = 5;
        port->infiniband = i % 2 == 1;
        port->lid = port->infiniband ? 17 : 0;
        port->gids = port->infiniband ? 0 : 5;
        memset(port->gid[XM_VERBS_GID_IPV4], port->infiniband ? 0 : 1, XM_VERBS_GID_SIZE);
        memset(port->gid[XM_VERBS_GID_LINK_LOCAL], port->infiniband ? 0 : 2, XM_VERBS_GID_SIZE);
    }
    return offer;
}

START_TEST(offers_come_back)
{
    xm_verbs_offer_t offer = make_offer(_i), read;
    uint8_t bytes[XM_VERBS_OFFER_SIZE + 1], again[XM_VERBS_OFFER_SIZE];
    size_t size = xm_verbs_offer_encode(&offer, bytes);

    ck_assert_uint_eq(size, XM_VERBS_OFFER_HEAD_SIZE + (size_t)_i * XM_VERBS_OFFER_PORT_SIZE);
    ck_assert(xm_verbs_offer_decode(bytes, size, &read));
    ck_assert_uint_eq(xm_verbs_offer_encode(&read, again), size);
    ck_assert_mem_eq(bytes, again, size);
    for (size_t cut = 0; cut < size; ++cut) {
        ck_assert(!xm_verbs_offer_decode(bytes, cut, &read));
    }
    ck_assert(!xm_verbs_offer_decode(bytes, size + 1, &read));
}
END_TEST

enum { PORT = XM_VERBS_OFFER_HEAD_SIZE };

static const struct {
    int at;
    uint8_t value;
} offer_damages[] = {
    {0, 0},          /* no offer */
    {4, 1},          /* of another version */
    {6, 0},          /* of no ports */
    {6, 9},          /* of too many */
    {8, 1},          /* of too few slots */
    {12, 1},         /* of no size: 8256 is 0x2040 */
    {PORT, 0},       /* a port without a name */
    {PORT + 63, 1},  /* a name with something after its end */
    {PORT + 71, 1},  /* a rate that overflows what is computed with it */
    {PORT + 74, 2},  /* neither Ethernet nor InfiniBand */
    {PORT + 75, 0},  /* no MTU */
    {PORT + 75, 6},  /* no such MTU */
    {PORT + 76, 8},  /* a kind of address that there is not */
    {PORT + 76, 4},  /* an address that the port says it lacks */
    {PORT + 76, 0},  /* Ethernet without an address */
    {PORT + 100, 1}, /* an address of a kind that the port lacks */
};

START_TEST(damaged_offers_are_refused)
{
    xm_verbs_offer_t offer = make_offer(1), read;
    uint8_t bytes[XM_VERBS_OFFER_SIZE];
    size_t size = xm_verbs_offer_encode(&offer, bytes);

    bytes[13] = offer_damages[_i].at == 12 ? 0 : bytes[13];
    ck_assert_uint_ne(bytes[offer_damages[_i].at], offer_damages[_i].value);
    bytes[offer_damages[_i].at] = offer_damages[_i].value;
    ck_assert(!xm_verbs_offer_decode(bytes, size, &read));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_verbs_wire");
    TCase *tcase = tcase_create("wire");

    tcase_add_loop_test(tcase, offers_come_back, 1, XM_NICS_MAX + 1);
    tcase_add_loop_test(tcase, damaged_offers_are_refused, 0,
                        (int)(sizeof(offer_damages) / sizeof(offer_damages[0])));
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
