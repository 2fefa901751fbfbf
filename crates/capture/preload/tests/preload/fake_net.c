/* Stands in for NCCL's network: takes the functions of libibverbs as NCCL does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include "fake_verbs.h"

#ifndef VERBS
#define VERBS "libibverbs.so.1"
#endif

static void *library;
static struct context *context;
static struct pair *pairs[1100];
static struct queue queue;

#define TAKE(result, name) ((result (*)())dlvsym(library, name, "IBVERBS_1.1"))

int net_open(void) {
    library = dlopen(VERBS, RTLD_NOW);
    if (library == NULL) return 1;
    struct device *device = ((struct device *(*)(void))dlsym(library, "fake_device"))();
    context = TAKE(struct context *, "ibv_open_device")(device);
    queue.context = context;
    return context == NULL;
}
/* A queue pair, connected to that of the next number on ::1. */
int net_connect(int at, int all_signaled) {
    struct pair_init init = {.all_signaled = all_signaled};
    struct pair_attributes attributes = {.state = 2, .port = 1};
    pairs[at] = TAKE(struct pair *, "ibv_create_qp")(context, &init);
    attributes.peer = pairs[at]->number + 1;
    ((char *)attributes.gid)[15] = 1;
    TAKE(int, "ibv_modify_qp")(pairs[at], &attributes, 1 | 1 << 7 | 1 << 20);
    return pairs[at]->number;
}
/* So many requests of two parts each in one list, of which the last is signaled. */
int net_send(int at, int count, int bytes) {
    struct part parts[2] = {{.length = bytes / 2}, {.length = bytes - bytes / 2}};
    struct request requests[64], *refused = NULL;
    memset(requests, 0, sizeof requests);
    for (int number = 0; number < count; number++) {
        requests[number].id = number;
        requests[number].parts = parts;
        requests[number].part_count = 2;
        requests[number].next = number + 1 < count ? &requests[number + 1] : NULL;
        requests[number].flags = number + 1 < count ? 0 : 2;
    }
    return context->post_send(pairs[at], requests, &refused);
}
int net_receive(int at) { void *refused; return context->post_recv(pairs[at], NULL, &refused); }
/* Lets so many requests complete and polls them; how many there were. */
int net_poll(int let) {
    struct completion completions[4];
    int all = 0, count;
    ((void (*)(int))dlsym(library, "fake_let"))(let);
    while ((count = context->poll_cq(&queue, 4, completions)) > 0) all += count;
    return count < 0 ? count : all;
}
/* So many requests, each posted and polled. */
int net_rounds(int at, int rounds) {
    struct part part = {.length = 1 << 19};
    struct request request = {.parts = &part, .part_count = 1, .flags = 2}, *refused;
    struct completion completion;
    int all = 0;
    while (rounds-- > 0) {
        context->post_send(pairs[at], &request, &refused);
        all += context->poll_cq(&queue, 1, &completion);
    }
    return all;
}
int net_destroy(int at) { return TAKE(int, "ibv_destroy_qp")(pairs[at]); }
int net_close(void) { return TAKE(int, "ibv_close_device")(context); }
int net_fork_init(void) { return TAKE(int, "ibv_fork_init")(); }
void net_set(const char *name, int value) { *(int *)dlsym(library, name) = value; }
int net_get(const char *name) { return *(int *)dlsym(library, name); }
/* Whether a function is the library's own; 2 if there is none. */
int net_is_own(const char *name, const char *version) {
    void *found = dlvsym(library, name, version);
    Dl_info info;
    if (found == NULL) return 2;
    dladdr(found, &info);
    return strstr(info.dli_fname, "libibverbs") != NULL;
}
/* What is next to here and what is global, by name and version. */
int net_next_is_libc(void) {
    Dl_info info;
    void *found = dlvsym(RTLD_NEXT, "malloc", "GLIBC_2.2.5");
    if (found == NULL || dlvsym(RTLD_NEXT, "net_open", "NONE") != NULL) return 0;
    dladdr(found, &info);
    return strstr(info.dli_fname, "libc") != NULL
        && dlvsym(RTLD_DEFAULT, "malloc", "GLIBC_2.2.5") == found
        && dlvsym(RTLD_DEFAULT, "malloc", "GLIBC_9") == NULL;
}
