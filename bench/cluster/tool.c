/* SPDX-License-Identifier: Apache-2.0 */
/* Runs ip(8) or tc(8) with a batch of orders. The tools need no library, take hundreds of
 * orders in one call, and say in words what went wrong. */
#include "bench/cluster/tool.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOT_FOUND = 127, COMPLAINT = 400 };

/* Orders are collected as text, to be run at once. */
xm_status_t rb_orders_open(rb_orders_t *orders)
{
    *orders = (rb_orders_t){0};
    orders->stream = open_memstream(&orders->text, &orders->length);
    XM_NEED_MEMORY(orders->stream, "a list of orders");
    return XM_OK;
}

/* A file in memory: neither end of it can make the other wait, as with a pipe. */
static int memory_file(const char *text, size_t length)
{
    int fd = memfd_create("emulated-cluster", MFD_CLOEXEC);

    while (fd >= 0 && length > 0) {
        ssize_t written = write(fd, text, length);

        if (written <= 0) {
            (void)close(fd);
            return -1;
        }
        text += written;
        length -= (size_t)written;
    }
    if (fd >= 0) {
        (void)lseek(fd, 0, SEEK_SET);
    }
    return fd;
}

/* The tools are often outside a user's PATH. */
static void become_tool(const char *const *argv, int in, int err)
{
    static const char *const folders[] = {"/usr/sbin/", "/sbin/"};
    char path[64];
    sigset_t none;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (dup2(in, STDIN_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0) {
        (void)execvp(argv[0], (char *const *)argv);
        for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); ++i) {
            (void)snprintf(path, sizeof(path), "%s%s", folders[i], argv[0]);
            (void)execv(path, (char *const *)argv);
        }
    }
    _exit(NOT_FOUND);
}

/* The first line of what the tool wrote becomes the sentence. */
static xm_status_t report(const char *tool, int wait_status, int err)
{
    char complaint[COMPLAINT] = "";
    ssize_t length = pread(err, complaint, sizeof(complaint) - 1, 0);

    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) {
        return XM_OK;
    }
    complaint[length > 0 ? (size_t)length : 0] = '\0';
    complaint[strcspn(complaint, "\n")] = '\0';
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == NOT_FOUND) {
        return XM_NOT_FOUND("cannot run %s; install the package iproute2", tool);
    }
    return xm_error_set(XM_ERR_IO, "%s: %s", tool,
                        complaint[0] != '\0' ? complaint : "failed without a word");
}

/* Takes the orders over and frees them, whatever happens. */
xm_status_t rb_tool_run_orders(const char *const *argv, rb_orders_t *orders)
{
    bool complete = fclose(orders->stream) == 0;
    int in = complete ? memory_file(orders->text, orders->length) : -1;
    int err = memory_file("", 0), wait_status = 0;
    xm_status_t status = XM_OK;
    pid_t pid;

    if (in < 0 || err < 0) {
        status = XM_NO_MEMORY("%zu bytes of orders to %s", orders->length, argv[0]);
        goto close_files;
    }
    pid = fork();
    if (pid == 0) {
        become_tool(argv, in, err);
    }
    if (pid < 0) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "cannot start %s: %s", argv[0], strerror(errno));
        goto close_files;
    }
    while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
    status = report(argv[0], wait_status, err);

close_files:
    if (in >= 0) {
        (void)close(in);
    }
    if (err >= 0) {
        (void)close(err);
    }
    free(orders->text);
    *orders = (rb_orders_t){0};
    return status;
}
