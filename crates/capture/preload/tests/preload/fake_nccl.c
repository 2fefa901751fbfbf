/* Stands in for NCCL: keeps what it was called with and answers what it was told to. */
#include <stddef.h>
#include <string.h>

typedef struct { char bytes[128]; } Id;
typedef struct { int rank, size; } Comm;

struct { const char *function; unsigned long arguments[8]; int calls; } fake_last;
int fake_answer = 0;
int fake_number = NUMBER;
static Comm comms[128];
static int made;

#define KEEP(...) do { \
    unsigned long given[] = {__VA_ARGS__, 0}; \
    memset(fake_last.arguments, 0, sizeof fake_last.arguments); \
    memcpy(fake_last.arguments, given, sizeof given - sizeof *given); \
    fake_last.function = __func__; \
    fake_last.calls++; \
} while (0)
#define L(value) (unsigned long)(value)

static int make(Comm **at, int rank, int size) {
    if (fake_answer != 0 && fake_answer != 7) return fake_answer;
    *at = &comms[made++ % 128];
    (*at)->rank = rank;
    (*at)->size = size;
    return fake_answer;
}

int ncclCommInitRank(Comm **at, int size, Id id, int rank) {
    KEEP(L(at), L(size), L(id.bytes[0]), L(id.bytes[127]), L(rank));
    return make(at, rank, size);
}
int ncclCommInitRankConfig(Comm **at, int size, Id id, int rank, void *config) {
    KEEP(L(at), L(size), L(id.bytes[0]), L(id.bytes[127]), L(rank), L(config));
    return make(at, rank, size);
}
int ncclCommInitRankScalable(Comm **at, int size, int rank, int ids, Id *id, void *config) {
    KEEP(L(at), L(size), L(rank), L(ids), L(id), L(config));
    return make(at, rank, size);
}
int ncclCommInitAll(Comm **at, int devices, const int *list) {
    KEEP(L(at), L(devices), L(list));
    for (int rank = 0; rank < devices; rank++) make(at + rank, rank, devices);
    return fake_answer;
}
int ncclCommSplit(Comm *whole, int colour, int key, Comm **at, void *config) {
    KEEP(L(whole), L(colour), L(key), L(at), L(config));
    if (colour < 0) { *at = NULL; return fake_answer; }
    return make(at, key, whole->size / 2);
}
int ncclCommUserRank(Comm *comm, int *rank) { *rank = comm->rank; return 0; }
int ncclCommCount(Comm *comm, int *count) { *count = comm->size; return 0; }
int ncclCommDestroy(Comm *comm) { KEEP(L(comm)); made--; return fake_answer; }
int ncclCommAbort(Comm *comm) { KEEP(L(comm)); return fake_answer; }
int ncclGroupStart(void) { KEEP(0); return fake_answer; }
int ncclGroupEnd(void) { KEEP(0); return fake_answer; }
int ncclAllReduce(void *a, void *b, size_t c, int d, int e, void *f, void *g) {
    KEEP(L(a), L(b), c, L(d), L(e), L(f), L(g)); return fake_answer;
}
int ncclAllGather(void *a, void *b, size_t c, int d, void *e, void *f) {
    KEEP(L(a), L(b), c, L(d), L(e), L(f)); return fake_answer;
}
int ncclReduceScatter(void *a, void *b, size_t c, int d, int e, void *f, void *g) {
    KEEP(L(a), L(b), c, L(d), L(e), L(f), L(g)); return fake_answer;
}
int ncclBroadcast(void *a, void *b, size_t c, int d, int e, void *f, void *g) {
    KEEP(L(a), L(b), c, L(d), L(e), L(f), L(g)); return fake_answer;
}
int ncclBcast(void *a, size_t b, int c, int d, void *e, void *f) {
    KEEP(L(a), b, L(c), L(d), L(e), L(f)); return fake_answer;
}
int ncclReduce(void *a, void *b, size_t c, int d, int e, int f, void *g, void *h) {
    KEEP(L(a), L(b), c, L(d), L(e), L(f), L(g), L(h)); return fake_answer;
}
int ncclSend(void *a, size_t b, int c, int d, void *e, void *f) {
    KEEP(L(a), b, L(c), L(d), L(e), L(f)); return fake_answer;
}
int ncclRecv(void *a, size_t b, int c, int d, void *e, void *f) {
    KEEP(L(a), b, L(c), L(d), L(e), L(f)); return fake_answer;
}
