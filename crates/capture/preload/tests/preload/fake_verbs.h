/* What stands in for libibverbs shares with what stands in for NCCL: the beginnings of the
 * structures of infiniband/verbs.h, by their offsets. */
#include <stdint.h>
#include <stddef.h>

struct device { void *functions[2]; int kinds[2]; char name[64]; };
struct pair;
struct queue;
struct request;
struct completion;
struct context {
    struct device *device;
    void *before[11];
    int (*poll_cq)(struct queue *, int, struct completion *);
    void *between[13];
    int (*post_send)(struct pair *, struct request *, struct request **);
    int (*post_recv)(struct pair *, void *, void **);
    void *after[16];
};
struct pair { struct context *context; void *others[5]; uint32_t handle, number; char rest[128]; };
struct pair_init { void *others[4]; uint32_t capacities[5]; int kind, all_signaled; };
struct pair_attributes {
    int state; uint32_t others[6], peer, access, capacities[5];
    uint64_t gid[2]; uint32_t flow; uint8_t indices[4]; uint16_t lid; uint8_t of_path[4], port;
    char rest[128];
};
struct queue { struct context *context; char rest[128]; };
struct part { uint64_t address; uint32_t length, key; };
struct request {
    uint64_t id; struct request *next; struct part *parts; int part_count, code;
    uint32_t flags; char rest[92];
};
struct completion {
    uint64_t id; int status; uint32_t code, vendor, length, immediate, number, others[4];
};

_Static_assert(offsetof(struct context, poll_cq) == 96, "poll_cq");
_Static_assert(offsetof(struct context, post_send) == 208, "post_send");
_Static_assert(offsetof(struct context, post_recv) == 216, "post_recv");
_Static_assert(offsetof(struct pair, number) == 52, "qp_num");
_Static_assert(offsetof(struct pair_init, all_signaled) == 56, "sq_sig_all");
_Static_assert(offsetof(struct pair_attributes, gid) == 56, "dgid");
_Static_assert(offsetof(struct pair_attributes, port) == 86, "port_num");
_Static_assert(sizeof(struct request) == 128, "ibv_send_wr");
_Static_assert(sizeof(struct completion) == 48, "ibv_wc");
