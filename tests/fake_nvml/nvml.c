/* A small libnvidia-ml.so.1 for tests: it says what a text file tells it to.
 *
 * The file is named by FAKE_NVML and read again whenever it changes. Its lines, in words:
 *
 *   driver 575.57.08                       the driver's version
 *   gpu UUID BUSID TOTAL USED RESERVED MIG a card; MIG is 0 or 1
 *   mig UUID SLOT TOTAL USED RESERVED      an instance of the card above
 *   proc PID BYTES|na c|g|cg               runs on the card or instance above
 *   fail FUNCTION UUID|* CODE              the function returns that nvmlReturn_t
 *   slow FUNCTION MICROSECONDS             the function takes that long
 *
 * FUNCTION is without its "nvml". Each call on a device is noted, as "FUNCTION UUID", in the file
 * that FAKE_NVML_LOG names.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, TOO_SMALL = 7 };
enum { MAX_DEVICES = 64, MAX_PROCESSES = 32, MAX_RULES = 32, MIG_SLOTS = 7 };

typedef unsigned long long bytes;
typedef struct { unsigned pid; bytes used; unsigned gpu_instance, compute_instance; } process;
typedef struct { process process; int compute, graphics; } running;
typedef struct {
    char uuid[96], bus[32];
    int parent, slot, mig; /* parent is -1 of a card */
    bytes total, used, reserved;
    running processes[MAX_PROCESSES];
    int process_count;
} device;
typedef struct { char function[64], uuid[96]; int code; } failure;
typedef struct { char function[64]; unsigned microseconds; } delay;
typedef struct { bytes total, free, used; } memory;
typedef struct { unsigned version; bytes total, reserved, free, used; } memory_v2;

static device devices[MAX_DEVICES];
static failure failures[MAX_RULES];
static delay delays[MAX_RULES];
static int device_count, failure_count, delay_count, references;
static char driver[80];
static struct timespec seen;
static long long seen_size = -1;

static void read_line(const char *line) {
    device *last = device_count ? &devices[device_count - 1] : NULL;
    device next = {.parent = -1};
    char used[32], kinds[8];
    running one = {0};
    failure *fails = &failures[failure_count];
    delay *slow = &delays[delay_count];
    if (sscanf(line, "gpu %95s %31s %llu %llu %llu %d", next.uuid, next.bus, &next.total, &next.used,
               &next.reserved, &next.mig) == 6) {
        devices[device_count++] = next;
    } else if (last && sscanf(line, "mig %95s %d %llu %llu %llu", next.uuid, &next.slot, &next.total,
                              &next.used, &next.reserved) == 5) {
        next.parent = last->parent < 0 ? device_count - 1 : last->parent;
        devices[device_count++] = next;
    } else if (last && sscanf(line, "proc %u %31s %7s", &one.process.pid, used, kinds) == 3) {
        one.process.used = strcmp(used, "na") ? strtoull(used, NULL, 10) : ~0ULL;
        one.process.gpu_instance = last->parent < 0 ? ~0U : (unsigned)last->slot;
        one.process.compute_instance = last->parent < 0 ? ~0U : 0;
        one.compute = strchr(kinds, 'c') != NULL;
        one.graphics = strchr(kinds, 'g') != NULL;
        last->processes[last->process_count++] = one;
    } else if (sscanf(line, "fail %63s %95s %d", fails->function, fails->uuid, &fails->code) == 3) {
        failure_count++;
    } else if (sscanf(line, "slow %63s %u", slow->function, &slow->microseconds) == 2) {
        delay_count++;
    } else {
        sscanf(line, "driver %79s", driver);
    }
}

static void read_script(void) {
    const char *path = getenv("FAKE_NVML");
    struct stat now;
    char line[256];
    FILE *script;
    if (!path || stat(path, &now)) return;
    if (now.st_size == seen_size && !memcmp(&now.st_mtim, &seen, sizeof seen)) return;
    seen = now.st_mtim;
    seen_size = now.st_size;
    device_count = failure_count = delay_count = 0;
    script = fopen(path, "r");
    while (script && fgets(line, sizeof line, script)) read_line(line);
    if (script) fclose(script);
}

/* What every call begins with; leaves the function unless the script lets it go on. */
static int enter(const char *function, const device *on) {
    const char *log_path = getenv("FAKE_NVML_LOG");
    read_script();
    if (log_path) {
        FILE *log = fopen(log_path, "a");
        fprintf(log, "%s %s\n", function, on ? on->uuid : "-");
        fclose(log);
    }
    for (int i = 0; i < delay_count; i++)
        if (!strcmp(delays[i].function, function)) usleep(delays[i].microseconds);
    for (int i = 0; i < failure_count; i++)
        if (!strcmp(failures[i].function, function) &&
            (!strcmp(failures[i].uuid, "*") || (on && !strcmp(failures[i].uuid, on->uuid))))
            return failures[i].code;
    return SUCCESS;
}

#define ENTER(function, on)                          \
    do {                                             \
        int code = enter(function, on);              \
        if (code == SUCCESS && references == 0) code = UNINITIALIZED; \
        if (code != SUCCESS) return code;            \
    } while (0)

int fake_nvml_references(void) { return references; }

int nvmlInitWithFlags(unsigned flags) {
    int code = enter("Init", NULL);
    (void)flags;
    if (code == SUCCESS) references++;
    return code;
}
int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    ENTER("Shutdown", NULL);
    references--;
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ENTER("SystemGetDriverVersion", NULL);
    snprintf(version, length, "%s", driver);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER("DeviceGetCount", NULL);
    *count = 0;
    for (int i = 0; i < device_count; i++) *count += devices[i].parent < 0;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **found) {
    ENTER("DeviceGetHandleByIndex", NULL);
    for (int i = 0; i < device_count; i++)
        if (devices[i].parent < 0 && index-- == 0) return *found = &devices[i], SUCCESS;
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device **found) {
    for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].uuid, uuid)) {
            ENTER("DeviceGetHandleByUUID", &devices[i]);
            return *found = &devices[i], SUCCESS;
        }
    ENTER("DeviceGetHandleByUUID", NULL);
    return NOT_FOUND;
}

static int same_bus(const char *one, const char *other) {
    unsigned a[4], b[4];
    return sscanf(one, "%x:%x:%x.%x", a, a + 1, a + 2, a + 3) == 4 &&
           sscanf(other, "%x:%x:%x.%x", b, b + 1, b + 2, b + 3) == 4 && !memcmp(a, b, sizeof a);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device **found) {
    for (int i = 0; i < device_count; i++)
        if (devices[i].parent < 0 && same_bus(devices[i].bus, bus)) {
            ENTER("DeviceGetHandleByPciBusId", &devices[i]);
            return *found = &devices[i], SUCCESS;
        }
    ENTER("DeviceGetHandleByPciBusId", NULL);
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(device *on, char *uuid, unsigned length) {
    ENTER("DeviceGetUUID", on);
    snprintf(uuid, length, "%s", on->uuid);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device *on, unsigned *current, unsigned *pending) {
    ENTER("DeviceGetMigMode", on);
    if (on->parent >= 0) return INVALID_ARGUMENT;
    *current = *pending = (unsigned)on->mig;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(device *on, unsigned *count) {
    ENTER("DeviceGetMaxMigDeviceCount", on);
    *count = MIG_SLOTS;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device *on, unsigned index, device **found) {
    ENTER("DeviceGetMigDeviceHandleByIndex", on);
    for (int i = 0; i < device_count; i++)
        if (devices[i].parent == on - devices && devices[i].slot == (int)index)
            return *found = &devices[i], SUCCESS;
    return NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(device *on, memory *info) {
    ENTER("DeviceGetMemoryInfo", on);
    info->total = on->total;
    info->used = on->used;
    info->free = on->total - on->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(device *on, memory_v2 *info) {
    ENTER("DeviceGetMemoryInfo_v2", on);
    if (info->version != (sizeof *info | 2u << 24)) return INVALID_ARGUMENT;
    info->total = on->total;
    info->used = on->used - on->reserved;
    info->reserved = on->reserved;
    info->free = on->total - on->used;
    return SUCCESS;
}

static int list(const device *on, int graphics, unsigned *count, process *processes) {
    unsigned room = *count;
    *count = 0;
    for (int i = 0; i < on->process_count; i++) {
        const running *one = &on->processes[i];
        if (graphics ? !one->graphics : !one->compute) continue;
        if (processes && *count < room) processes[*count] = one->process;
        ++*count;
    }
    return *count > room ? TOO_SMALL : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device *on, unsigned *count, process *processes) {
    ENTER("DeviceGetComputeRunningProcesses_v3", on);
    return list(on, 0, count, processes);
}
int nvmlDeviceGetComputeRunningProcesses_v2(device *on, unsigned *count, process *processes) {
    ENTER("DeviceGetComputeRunningProcesses_v2", on);
    return list(on, 0, count, processes);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(device *on, unsigned *count, process *processes) {
    ENTER("DeviceGetGraphicsRunningProcesses_v3", on);
    return list(on, 1, count, processes);
}
int nvmlDeviceGetGraphicsRunningProcesses_v2(device *on, unsigned *count, process *processes) {
    ENTER("DeviceGetGraphicsRunningProcesses_v2", on);
    return list(on, 1, count, processes);
}
