/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/transport/verbs/wire.h"

#include <stdio.h>

#include "xm_test.h"

static const xm_verbs_header_t headers[] = {
    {.kind = XM_VERBS_EAGER, .credits = 3, .taken = 7, .tag = (UINT64_C(1) << 48) - 1, .length = 5},
    {.kind = XM_VERBS_REQUEST,
     .credits = 65535,
     .taken = UINT32_MAX,
     .tag = 1,
     .length = UINT64_C(1) << 40,
     .sender = 0x80000001},
    {.kind = XM_VERBS_GRANT, .length = 9, .sender = 2, .receiver = 0xfff00003},
    {.kind = XM_VERBS_DISCARD, .sender = 77},
    {.kind = XM_VERBS_CREDIT, .credits = 16},
    {.kind = XM_VERBS_LOST, .credits = 1, .sender = 7, .receiver = UINT32_MAX},
    {.kind = XM_VERBS_BACK, .taken = 3, .sender = 1, .receiver = 77},
    {.kind = XM_VERBS_HERE, .sender = 7, .receiver = 1u << 23},
};
enum { HEADERS = sizeof(headers) / sizeof(headers[0]) };

static const xm_verbs_grant_t grant = {
    .address = UINT64_C(0x7fff12345678), .rails = 2, .keys = {0xdeadbeef, 1}};

static size_t encode(int index, uint8_t *bytes)
{
    size_t size = xm_verbs_header_encode(&headers[index], &grant, bytes);

    if (headers[index].kind == XM_VERBS_EAGER) {
        memset(bytes + size, 'h', 5);
        size += 5;
    }
    return size;
}

START_TEST(messages_come_back)
{
    const xm_verbs_header_t *sent = &headers[_i];
    uint8_t bytes[128];
    size_t size = encode(_i, bytes);
    xm_verbs_header_t header;
    xm_verbs_grant_t given = {0};

    ck_assert(xm_verbs_header_decode(bytes, size, &header, &given));
    ck_assert_int_eq(header.kind, sent->kind);
    ck_assert_uint_eq(header.credits, sent->credits);
    ck_assert_uint_eq(header.taken, sent->taken);
    ck_assert_uint_eq(header.tag, sent->tag);
    ck_assert_uint_eq(header.length, sent->length);
    ck_assert_uint_eq(header.sender, sent->sender);
    ck_assert_uint_eq(header.receiver, sent->receiver);
    if (sent->kind == XM_VERBS_GRANT) {
        ck_assert_uint_eq(given.address, grant.address);
        ck_assert_int_eq(given.rails, grant.rails);
        ck_assert_mem_eq(given.keys, grant.keys, 2 * sizeof(grant.keys[0]));
    }
}
END_TEST

/* Numbers are little-endian whatever the machine. */
START_TEST(bytes_are_fixed)
{
    static const uint8_t expected[XM_VERBS_HEADER_SIZE] = {
        1, 0, 3, 0, 7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 5};
    uint8_t bytes[128];

    ck_assert_uint_eq(encode(0, bytes), XM_VERBS_HEADER_SIZE + 5);
    ck_assert_mem_eq(bytes, expected, sizeof(expected));
}
END_TEST

START_TEST(cut_and_grown_messages_are_refused)
{
    uint8_t bytes[129] = {0};
    size_t size = encode(_i, bytes);
    xm_verbs_header_t header;
    xm_verbs_grant_t given;

    for (size_t cut = 0; cut < size; ++cut) {
        ck_assert(!xm_verbs_header_decode(bytes, cut, &header, &given));
    }
    ck_assert(!xm_verbs_header_decode(bytes, size + 1, &header, &given));
}
END_TEST

/* One byte of a message that is set to what it must not be. */
static const struct {
    int message, at;
    uint8_t value;
} damages[] = {
    {0, 0, 0},  /* no such kind */
    {0, 0, 6},  /* nor that one */
    {0, 1, 1},  /* rails of a message that grants nothing */
    {0, 14, 1}, /* a tag of 2^48 */
    {0, 16, 6}, /* a length that is not that of the bytes */
    {0, 24, 1}, /* a number of a message that has none */
    {0, 28, 1}, /* likewise */
    {1, 21, 0}, /* a request for nothing: its length was 2^40 */
    {2, 1, 0},  /* a grant without keys */
    {2, 1, 9},  /* with too many */
    {2, 8, 1},  /* a grant with a tag */
    {2, 16, 0}, /* of nothing */
    {3, 16, 1}, /* a length where none belongs */
    {4, 24, 1}, /* a number where none belongs */
};

START_TEST(damaged_messages_are_refused)
{
    uint8_t bytes[128];
    size_t size = encode(damages[_i].message, bytes);
    xm_verbs_header_t header;
    xm_verbs_grant_t given;

    ck_assert_uint_ne(bytes[damages[_i].at], damages[_i].value);
    bytes[damages[_i].at] = damages[_i].value;
    ck_assert(!xm_verbs_header_decode(bytes, size, &header, &given));
}
END_TEST

START_TEST(a_grant_stays_in_the_address_space)
{
    xm_verbs_grant_t high = {.address = UINT64_MAX - 8, .rails = 1, .keys = {1}};
    uint8_t bytes[128];
    size_t size = xm_verbs_header_encode(&headers[2], &high, bytes);
    xm_verbs_header_t header;
    xm_verbs_grant_t given;

    ck_assert(!xm_verbs_header_decode(bytes, size, &header, &given));
    high.address -= 1;
    size = xm_verbs_header_encode(&headers[2], &high, bytes);
    ck_assert(xm_verbs_header_decode(bytes, size, &header, &given));
}
END_TEST

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

    tcase_add_loop_test(tcase, messages_come_back, 0, HEADERS);
    tcase_add_test(tcase, bytes_are_fixed);
    tcase_add_loop_test(tcase, cut_and_grown_messages_are_refused, 0, HEADERS);
    tcase_add_loop_test(tcase, damaged_messages_are_refused, 0,
                        (int)(sizeof(damages) / sizeof(damages[0])));
    tcase_add_test(tcase, a_grant_stays_in_the_address_space);
    tcase_add_loop_test(tcase, offers_come_back, 1, XM_NICS_MAX + 1);
    tcase_add_loop_test(tcase, damaged_offers_are_refused, 0,
                        (int)(sizeof(offer_damages) / sizeof(offer_damages[0])));
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
