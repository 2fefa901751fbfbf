/* Stands in for PyTorch: calls NCCL as a library that is linked with it does. */
#include <stddef.h>

typedef struct { char bytes[128]; } Id;

int ncclCommInitRank(void **, int, Id, int);
int ncclCommInitRankConfig(void **, int, Id, int, void *);
int ncclCommInitRankScalable(void **, int, int, int, Id *, void *);
int ncclCommInitAll(void **, int, const int *);
int ncclCommSplit(void *, int, int, void **, void *);
int ncclCommDestroy(void *);
int ncclCommAbort(void *);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclAllReduce(void *, void *, size_t, int, int, void *, void *);
int ncclAllGather(void *, void *, size_t, int, void *, void *);
int ncclReduceScatter(void *, void *, size_t, int, int, void *, void *);
int ncclBroadcast(void *, void *, size_t, int, int, void *, void *);
int ncclBcast(void *, size_t, int, int, void *, void *);
int ncclReduce(void *, void *, size_t, int, int, int, void *, void *);
int ncclSend(void *, size_t, int, int, void *, void *);
int ncclRecv(void *, size_t, int, int, void *, void *);

static Id id_of(char name) {
    Id id = {{0}};
    id.bytes[0] = name;
    id.bytes[127] = 42;
    return id;
}

int init_rank(void **at, int size, char name, int rank) {
    return ncclCommInitRank(at, size, id_of(name), rank);
}
int init_rank_config(void **at, int size, char name, int rank, void *config) {
    return ncclCommInitRankConfig(at, size, id_of(name), rank, config);
}
int init_rank_scalable(void **at, int size, char name, int rank, void *config) {
    Id ids[2] = {id_of(name), id_of('?')};
    return ncclCommInitRankScalable(at, size, rank, 2, ids, config);
}
int init_all(void **at, int devices, const int *list) {
    return ncclCommInitAll(at, devices, list);
}
int comm_split(void *whole, int colour, int key, void **at, void *config) {
    return ncclCommSplit(whole, colour, key, at, config);
}
int destroy(void *comm) { return ncclCommDestroy(comm); }
int comm_abort(void *comm) { return ncclCommAbort(comm); }
int group_start(void) { return ncclGroupStart(); }
int group_end(void) { return ncclGroupEnd(); }
int all_reduce(void *comm, size_t count) {
    return ncclAllReduce((void *)1, (void *)2, count, 7, 4, comm, (void *)8);
}
int all_gather(void *comm, size_t count) {
    return ncclAllGather((void *)1, (void *)2, count, 7, comm, (void *)8);
}
int reduce_scatter(void *comm, size_t count) {
    return ncclReduceScatter((void *)1, (void *)2, count, 7, 4, comm, (void *)8);
}
int broadcast(void *comm, size_t count) {
    return ncclBroadcast((void *)1, (void *)2, count, 7, 4, comm, (void *)8);
}
int bcast(void *comm, size_t count) {
    return ncclBcast((void *)1, count, 7, 4, comm, (void *)8);
}
int reduce(void *comm, size_t count) {
    return ncclReduce((void *)1, (void *)2, count, 7, 4, 5, comm, (void *)8);
}
int send_to(void *comm, size_t count, int peer) {
    return ncclSend((void *)1, count, 9, peer, comm, (void *)8);
}
int receive_from(void *comm, size_t count, int peer) {
    return ncclRecv((void *)1, count, 9, peer, comm, (void *)8);
}
