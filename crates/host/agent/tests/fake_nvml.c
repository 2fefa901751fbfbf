// A stand-in for libnvidia-ml.so.1 with two GPUs, of which the second is hot, has lost two of its
// NVLinks and counts errors on the others; with NO_GPM it measures nothing itself. A process
// computes on it only if its number is in FAKE_NVML_PID. With LOST it does not answer for long.
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, TOO_SMALL = 7, GPU_IS_LOST = 15 };
typedef struct { unsigned number, replays; } Device;
static Device devices[2] = {{0, 0}, {1, 40}};
static unsigned samples;

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version, supported; } Support;
typedef struct { unsigned id; int outcome; double value; char *names[3]; } Metric;
typedef struct { unsigned version, count; void *from, *to; Metric metrics[210]; } Metrics;
typedef struct {
    unsigned id, scope;
    long long at, latency;
    unsigned type;
    int outcome;
    union { double real; unsigned number; unsigned long long large; } value;
} Field;
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, part; } Process;

int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    strncpy(text, "570.1", size);
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 2;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    *device = &devices[index & 1];
    return index < 2 ? OK : INVALID;
}
int nvmlDeviceGetPciInfo_v3(Device *device, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    strcpy(pci->bus_id, device->number ? "00000000:A1:00.0" : "00000000:17:00.0");
    return OK;
}
int nvmlDeviceGetUUID(Device *device, char *text, unsigned size) {
    strncpy(text, device->number ? "GPU-b222" : "GPU-a111", size);
    return OK;
}
int nvmlDeviceGetUtilizationRates(Device *device, Utilization *found) {
#ifdef LOST
    static unsigned asked;
    if (device->number && asked++ > 3)
        return GPU_IS_LOST;
#endif
    found->gpu = device->number ? 97 : 50;
    found->memory = 20;
    return OK;
}
int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) {
    *milliwatts = device->number ? 71500 : 152000;
    return OK;
}
int nvmlDeviceGetClockInfo(Device *device, unsigned kind, unsigned *mhz) {
    *mhz = device->number ? 1005 : 1980;
    return kind == 1 ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *reasons) {
    // Hardware slows down, for heat; the other is at its power limit.
    *reasons = device->number ? 0x48 : 0x4;
    return OK;
}
int nvmlDeviceGetNvLinkState(Device *device, unsigned link, unsigned *state) {
#ifdef LINKS_DOWN
    *state = 0;
#else
    *state = !(device->number && link < 2);
#endif
    return link < 6 ? OK : INVALID;
}
int nvmlDeviceGetFieldValues(Device *device, int count, Field *fields) {
    for (int at = 0; at < count; at++) {
        fields[at].type = 3;
        fields[at].outcome = OK;
        if (fields[at].id == 90) {
            fields[at].type = 1;
            fields[at].value.number = 25000;
        } else if (fields[at].id == 52) {
            fields[at].value.large = device->number ? ++device->replays : 0;
        } else {
            fields[at].outcome = NOT_SUPPORTED;
        }
    }
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *found) {
    const char *pid = getenv("FAKE_NVML_PID");
    unsigned room = *count;
    *count = device->number && pid ? 1 : 0;
    if (*count && room < 1)
        return TOO_SMALL;
    if (*count)
        *found = (Process){.pid = atoi(pid)};
    return OK;
}

#ifndef NO_GPM
int nvmlGpmQueryDeviceSupport(Device *device, Support *support) {
    (void)device;
    support->supported = 1;
    return OK;
}
int nvmlGpmSampleAlloc(void **sample) {
    *sample = malloc(sizeof(unsigned));
    return OK;
}
int nvmlGpmSampleFree(void *sample) {
    free(sample);
    return OK;
}
int nvmlGpmSampleGet(Device *device, unsigned *sample) {
    (void)device;
    *sample = ++samples;
    return OK;
}
int nvmlGpmMetricsGet(Metrics *found) {
    if (*(unsigned *)found->from >= *(unsigned *)found->to)
        return INVALID;
    for (unsigned at = 0; at < found->count; at++) {
        Metric *metric = &found->metrics[at];
        metric->outcome = OK;
        switch (metric->id) {
        case 2: metric->value = 62.5; break;      // multiprocessors, percent
        case 10: metric->value = 25.0; break;     // memory, percent
        case 20: metric->value = 1000.0; break;   // PCIe, MiB a second
        case 21: metric->value = 4000.0; break;
        case 60: metric->value = 50000.0; break;  // NVLinks, MiB a second
        case 61: metric->value = 40000.0; break;
        default: metric->outcome = NOT_SUPPORTED;
        }
    }
    return OK;
}
#endif
