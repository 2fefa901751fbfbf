/* Stands in for libibverbs and a card: signaled requests complete when they are let. */
#include <errno.h>
#include <stdlib.h>
#include "fake_verbs.h"

static struct device card = {.name = "fake_0"};
static struct completion waiting[4096];
static int first, last, let, numbers = 100;
/* Requests the card still takes, and the status of what completes. */
int fake_takes = 1 << 30, fake_status = 0, fake_closed = 0;

static int poll_cq(struct queue *queue, int most, struct completion *into) {
    int count = 0;
    while (count < most && first < last && let > 0) {
        into[count++] = waiting[first++ % 4096];
        let--;
    }
    return count;
}
static int post_send(struct pair *pair, struct request *request, struct request **refused) {
    for (; request != NULL; request = request->next) {
        if (fake_takes-- <= 0) { *refused = request; return ENOMEM; }
        if (request->flags & 2)
            waiting[last++ % 4096] = (struct completion){
                .id = request->id, .status = fake_status, .code = 1, .number = pair->number};
    }
    return 0;
}
static int post_recv(struct pair *pair, void *request, void **refused) {
    waiting[last++ % 4096] = (struct completion){.code = 128, .number = pair->number};
    return 0;
}
struct device *fake_device(void) { return &card; }
void fake_let(int count) { let += count; }
struct context *ibv_open_device(struct device *device) {
    struct context *context = calloc(1, sizeof *context);
    context->device = device;
    context->poll_cq = poll_cq;
    context->post_send = post_send;
    context->post_recv = post_recv;
    return context;
}
int ibv_close_device(struct context *context) { free(context); fake_closed++; return 0; }
struct pair *ibv_create_qp(void *domain, struct pair_init *init) {
    struct pair *pair = calloc(1, sizeof *pair);
    pair->context = domain;
    pair->number = numbers++;
    return pair;
}
int ibv_destroy_qp(struct pair *pair) { free(pair); return 0; }
int ibv_modify_qp(struct pair *pair, struct pair_attributes *attributes, int mask) { return 0; }
int ibv_fork_init(void) { return 77; }
