/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses which library of collectives is measured, and finds the module through which MPI is
 * reached. With "auto" the first one counts that works on all ranks; if none does, that is a
 * note in the profile and no failure, since collectives are an addition. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "comm/probe/collective_library.h"
#include "comm/probe/collective_mpi.h"
#include "comm/probe/collective_nccl.h"
#include "comm/base.h"

enum { NONE, AUTO, NCCL, MPI, CHOICES };

static const char *const choices[CHOICES] = {"none", "auto", "nccl", "mpi"};
static const char module_name[] = "libcrossmesh-mpi.so";

typedef xm_status_t open_t(const xm_collective_job_t *job, xm_collective_library_t **library);
typedef xm_status_t open_module_t(const xm_collective_host_t *host, const xm_collective_job_t *job,
                                  xm_collective_library_t **library);

/* Loads the module from beside this program, else from wherever the loader looks. MPI's own
 * plugins want its symbols global. It stays loaded, because MPI cannot be unloaded safely. */
static xm_status_t load_module(open_module_t **open)
{
    void *module = dlopen(module_name, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE), *symbol = NULL;

    /* The address of any object of this library tells the file that it was loaded from. */
    if (module != NULL) {
        symbol = dlsym(module, XM_COLLECTIVE_MPI_SYMBOL);
    }
    if (symbol == NULL) {
        const char *reason = dlerror();

        return XM_UNSUPPORTED("no MPI: %s", reason != NULL ? reason : module_name);
    }
    memcpy(open, &symbol, sizeof(symbol));
    return XM_OK;
}

/* A rank without the module must keep all from MPI, whose first call is collective. */
static xm_status_t open_mpi(const xm_collective_job_t *job, xm_collective_library_t **library)
{
    open_module_t *open = NULL;

    XM_TRY(xm_collective_agree(job, load_module(&open)));
    return open(&xm_collective_host, job, library);
}

static xm_status_t parse(const char *choice, int *value)
{
    return xm_text_choose("library of collectives", choice, choices, CHOICES, value);
}

/* Tells a wrong word before the probe has begun, which takes a minute. */
xm_status_t xm_collective_check_choice(const char *choice)
{
    int value;

    return parse(choice, &value);
}

/* Opens the first library that all ranks can use; the note collects why the others cannot. */
static xm_status_t open_any(const xm_collective_job_t *job, xm_collective_library_t **library,
                            char *note, size_t note_size)
{
    static open_t *const order[] = {xm_collective_nccl_open, open_mpi};
    size_t length = (size_t)snprintf(note, note_size, "collectives were not measured");

    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); ++i) {
        xm_status_t status = order[i](job, library);

        /* Only "unsupported" leads to the next library; another failure is a fault, and going on
         * would hide it. */
        if (status != XM_ERR_UNSUPPORTED) {
            return status;
        }
        length += (size_t)snprintf(note + length, note_size - length, "%s %s", i == 0 ? ":" : ";",
                                   xm_last_error());
        length = length < note_size ? length : note_size - 1;
    }
    return XM_OK;
}

xm_status_t xm_collective_open(const char *choice, const xm_collective_job_t *job,
                               xm_collective_library_t **library, char *note, size_t note_size)
{
    int value;
    xm_status_t status = parse(choice, &value);

    *library = NULL;
    note[0] = '\0';
    XM_TRY(status);
    switch (value) {
    case AUTO:
        return open_any(job, library, note, note_size);
    case NCCL:
        return xm_collective_nccl_open(job, library);
    case MPI:
        return open_mpi(job, library);
    default:
        return XM_OK;
    }
}
