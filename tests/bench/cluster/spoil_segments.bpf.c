/* SPDX-License-Identifier: Apache-2.0 */
/* For tc: changes one byte in one of 300 long TCP segments, as a NIC with bad memory would. Nobody
 * between the two ends of a veth pair looks at checksums, so the receiver's kernel takes it. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

/* Where an IPv4 packet in an Ethernet frame has its protocol, and where in the payload the change
 * is: behind what UCX writes at the head of a message. */
enum { PROTOCOL_AT = 23, TCP = 6, LONG = 1200, FIRST = 266, SPREAD = 511 };
#define SHARE (0xffffffffu / 300)

static __u32 (*draw)(void) = (void *)BPF_FUNC_get_prandom_u32;
static long (*load)(struct __sk_buff *, __u32, void *, __u32) = (void *)BPF_FUNC_skb_load_bytes;
static long (*store)(struct __sk_buff *, __u32, const void *, __u32,
                     __u64) = (void *)BPF_FUNC_skb_store_bytes;

__attribute__((section("spoil"), used)) int change_a_byte(struct __sk_buff *packet)
{
    __u32 at = FIRST + (draw() & SPREAD);
    __u8 byte = 0;

    if (packet->len < LONG || load(packet, PROTOCOL_AT, &byte, 1) < 0 || byte != TCP ||
        draw() > SHARE || load(packet, at, &byte, 1) < 0) {
        return TC_ACT_OK;
    }
    byte ^= 0x10;
    (void)store(packet, at, &byte, 1, 0);
    return TC_ACT_OK;
}

char license_text[] __attribute__((section("license"))) = "GPL";
