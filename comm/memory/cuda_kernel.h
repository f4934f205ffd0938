/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/memory/cuda_kernel.h
 * What the copy kernels compute, for the kernels themselves (cuda_kernel.cu) and for C that
 * prepares their arguments or runs them elsewhere. Plain C that is also CUDA. Not installed.
 *
 * A kernel moves units of 1, 2, 4, 8 or 16 bytes. Unit u of the box has the coordinates that u
 * divided by the extents leaves as remainders; divisions are multiplications with prepared numbers
 * (Granlund and Montgomery, PLDI'94): u / d = (hi32(u * magic) + u) >> shift, for u < 2^31.
 */
#pragma once

/*
 * The language of kernels. Clang compiles them to PTX, without anything of CUDA's toolkit. The
 * stand-in for CUDA's driver in the tests compiles the same text as C: it then gives
 * XM_KERNEL_ENTRY, the number of the thread that runs and of all threads, and how memory is
 * accessed.
 */
#ifdef __CUDA__
#define XM_KERNEL_INLINE                                                                           \
    static __attribute__((device)) inline __attribute__((always_inline, unused))
/* Tiles and pack buffers, also pinned ones of the host, are all in the global address space. */
#define GLOBAL(type, address)                 (*(__attribute__((address_space(1))) type *)(address))
#define XM_KERNEL_LOAD(type, address)         GLOBAL(const type, address)
#define XM_KERNEL_STORE(type, address, value) (GLOBAL(type, address) = (type)(value))
/* The larger of two numbers, whoever else raises this one. */
#define XM_KERNEL_RAISE(address, value)                                                            \
    ((void)__nvvm_atom_max_gen_ui((unsigned *)(address), (value)))
#define XM_KERNEL_ENTRY(name, type, body)                                                          \
    extern "C" __attribute__((global)) __attribute__((launch_bounds(XM_KERNEL_THREADS))) void      \
    name(const type given)                                                                         \
    {                                                                                              \
        const type *args = &given;                                                                 \
                                                                                                   \
        body;                                                                                      \
    }

XM_KERNEL_INLINE unsigned xm_kernel_thread()
{
    return (unsigned)__nvvm_read_ptx_sreg_ctaid_x() * (unsigned)__nvvm_read_ptx_sreg_ntid_x() +
           (unsigned)__nvvm_read_ptx_sreg_tid_x();
}

XM_KERNEL_INLINE unsigned xm_kernel_threads()
{
    return (unsigned)__nvvm_read_ptx_sreg_nctaid_x() * (unsigned)__nvvm_read_ptx_sreg_ntid_x();
}
#else
#define XM_KERNEL_INLINE static inline
#endif

enum {
    XM_KERNEL_DIMS = 12,
    XM_KERNEL_THREADS = 256, /* of a block */
    XM_KERNEL_UNROLL = 4,    /* units that a thread has in flight */
    XM_KERNEL_UNITS = 5,     /* kernels by unit: 1, 2, 4, 8, 16 bytes */
    XM_KERNEL_SHAPES = 3     /* and by dimensions: 2, 3, any */
};

/* No box of one launch has more units. */
#define XM_KERNEL_MAX_UNITS 0x7fffffffu

/* The kernels' names begin so: "xm_copy_u16_d2", "…_d3", "…_dn". */
#define XM_KERNEL_PREFIX "xm_copy_u"

typedef struct xm_kernel_args {
    unsigned long long from, to; /* of unit 0 */
    unsigned first, count;       /* units; first + count is at most XM_KERNEL_MAX_UNITS */
    int dims;
    unsigned extent[XM_KERNEL_DIMS]; /* units in the last dimension */
    unsigned magic[XM_KERNEL_DIMS], shift[XM_KERNEL_DIMS];
    long long from_stride[XM_KERNEL_DIMS], to_stride[XM_KERNEL_DIMS]; /* bytes */
} xm_kernel_args_t;

XM_KERNEL_INLINE unsigned xm_kernel_divide(unsigned value, unsigned magic, unsigned shift)
{
#ifdef __CUDA__
    unsigned high = __nvvm_mulhi_ui(value, magic);
#else
    unsigned high = (unsigned)((unsigned long long)value * magic >> 32);
#endif

    return (high + value) >> shift;
}

/* Adds to the addresses of unit 0 what leads to another unit. `dims` is a constant in most kernels.
 */
XM_KERNEL_INLINE void xm_kernel_locate(const xm_kernel_args_t *args, int dims, unsigned unit,
                                       unsigned long long *from, unsigned long long *to)
{
    long long from_offset = 0, to_offset = 0;

#ifdef __CUDA__
#pragma unroll
#endif
    for (int d = dims - 1; d > 0; --d) {
        unsigned above = xm_kernel_divide(unit, args->magic[d], args->shift[d]);
        long long index = (long long)(unit - above * args->extent[d]);

        from_offset += index * args->from_stride[d];
        to_offset += index * args->to_stride[d];
        unit = above;
    }
    from_offset += (long long)unit * args->from_stride[0];
    to_offset += (long long)unit * args->to_stride[0];
    *from += (unsigned long long)from_offset;
    *to += (unsigned long long)to_offset;
}
