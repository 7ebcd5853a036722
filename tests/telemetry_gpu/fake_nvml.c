/*
 * A stand-in for libnvidia-ml.so.1, written from NVML's public ABI, so that tests drive the real pynvml without a GPU.
 *
 * What it says is read from a file of key=value lines, $FAKE_NVML or the path given to fakeNvmlLoad(); the file is read
 * again whenever it changes. A key is "<slot>.<what>", with "*.<what>" as the default of every slot, or
 * "<slot>.mig<j>.<what>" for a MIG instance, which has no defaults. A missing key reads as NOT_SUPPORTED, as the real
 * library does. Slots are boards; "order=0,1,3" says which of them NVML counts and under which index (default
 * 0..count-1), and a handle of a slot outside of it answers GPU_IS_LOST.
 *
 *   count order driver init_err gpm_min_ms xid=<number>:<slot>:<code>
 *   name uuid bus_id virtualization mem_total mem_used mem_reserved no_mem_v2 util_gpu util_mem power_mw power_limit_mw
 *   energy_mj temp clock_sm clock_mem clock_mem_max bus_width fan reasons pcie_gen pcie_gen_max pcie_width
 *   pcie_width_max pcie_tx_kbs pcie_rx_kbs mig mig_max ecc persistence cc arch
 *   procs=10:-,11:5 ("-": memory not available)   err.<function>=code   err.*=code
 *   gpm=0|1  gpm.<id>=value  gpm.<id>.ret=code  field.<id>=value (a dot makes it a double)  field.<id>.type  .ret
 */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum {
  OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10,
  FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, VERSION_MISMATCH = 25
};
enum { SLOTS = 32, INSTANCES = 8, LINES = 4096, LINE = 256, FUNCTIONS = 128 };

typedef struct { int slot, instance; char prefix[24]; } Device;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef union { double d; unsigned u32; unsigned long ul; unsigned long long u64; long long s64; int s32; } Value;
typedef struct { unsigned field, scope; long long at, latency; unsigned type; int ret; Value value; } Field;
typedef struct { unsigned version, supported; } GpmSupport;
typedef struct { unsigned id; int ret; double value; char *short_name, *long_name, *unit; } GpmMetric;
typedef struct Sample { Device *device; unsigned gi; double at_ms; int taken; } Sample;
typedef struct { unsigned version, count; Sample *older, *newer; GpmMetric metrics[]; } GpmMetrics;
typedef struct { unsigned version; int sensor, degrees; } Temperature;
typedef struct { Device *device; unsigned long long type, data; unsigned gi, ci; } Event;

_Static_assert(sizeof(Memory) == 24, "memory");
_Static_assert(sizeof(MemoryV2) == 40, "memory v2");
_Static_assert(sizeof(Process) == 24, "process v3");
_Static_assert(sizeof(Pci) == 68, "pci");
_Static_assert(sizeof(Field) == 40, "field value");
_Static_assert(sizeof(GpmSupport) == 8, "gpm support");
_Static_assert(sizeof(GpmMetric) == 40, "gpm metric");
_Static_assert(sizeof(Temperature) == 12, "temperature");
_Static_assert(sizeof(Event) == 32, "event");

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char path[4096], keys[LINES][LINE], *values[LINES];
static int lines, initialized, live_samples, leaked_samples, live_event_sets;
static struct timespec modified;
static off_t size = -1;
static Device devices[SLOTS], instances[SLOTS][INSTANCES];
static struct { char name[64]; long calls; } functions[FUNCTIONS];
static long slot_calls[SLOTS];
static long last_xid;

static void reload(void) {
  struct stat now;
  const char *from = path[0] ? path : getenv("FAKE_NVML");
  if (!from || stat(from, &now)) return;
  if (size == now.st_size && modified.tv_sec == now.st_mtim.tv_sec && modified.tv_nsec == now.st_mtim.tv_nsec) return;
  FILE *file = fopen(from, "r");
  if (!file) return;
  lines = 0;
  while (lines < LINES && fgets(keys[lines], LINE, file)) {
    char *line = keys[lines], *is = strchr(line, '=');
    line[strcspn(line, "\n")] = 0;
    if (line[0] == '#' || !is) continue;
    *is = 0;
    values[lines++] = is + 1;
  }
  fclose(file);
  size = now.st_size;
  modified = now.st_mtim;
}

static const char *find(const char *key) {
  for (int i = lines - 1; i >= 0; i--)
    if (!strcmp(keys[i], key)) return values[i];
  return NULL;
}

static const char *look(const Device *device, const char *what) {
  char key[LINE];
  snprintf(key, sizeof key, "%s%s", device->prefix, what);
  const char *value = find(key);
  if (value || device->instance >= 0) return value;
  snprintf(key, sizeof key, "*.%s", what);
  return find(key);
}

static int visible_slot(int index) {
  const char *order = find("order"), *count = find("count");
  if (!order) return index >= 0 && index < (count ? atoi(count) : 0) ? index : -1;
  for (int i = 0; *order; i++) {
    int slot = (int)strtol(order, (char **)&order, 10);
    if (i == index) return slot;
    if (*order == ',') order++;
  }
  return -1;
}

static int visible_count(void) {
  int n = 0;
  while (visible_slot(n) >= 0) n++;
  return n;
}

static void note_call(const char *function) {
  for (int i = 0; i < FUNCTIONS; i++) {
    if (!functions[i].name[0]) snprintf(functions[i].name, sizeof functions[i].name, "%s", function);
    if (!strcmp(functions[i].name, function)) { functions[i].calls++; return; }
  }
}

/* Locks, reads the file again, and answers what the call must answer before it looks at anything: 0 to go on. */
static int enter(const Device *device, const char *function) {
  pthread_mutex_lock(&mutex);
  reload();
  note_call(function);
  if (!initialized) return UNINITIALIZED;
  const char *one = (const char *)device;
  int board = one >= (const char *)devices && one < (const char *)(devices + SLOTS);
  int instance = one >= (const char *)instances && one < (const char *)(instances + SLOTS);
  if (!board && !instance) return INVALID_ARGUMENT;
  slot_calls[device->slot]++;
  int index = 0;
  while (visible_slot(index) >= 0 && visible_slot(index) != device->slot) index++;
  if (visible_slot(index) < 0) return GPU_IS_LOST;
  char key[LINE];
  snprintf(key, sizeof key, "err.%s", function);
  const char *error = look(device, key);
  if (!error) error = look(device, "err.*");
  return error ? atoi(error) : OK;
}

static int leave(int ret) { pthread_mutex_unlock(&mutex); return ret; }

static int number(const Device *device, const char *what, unsigned *out) {
  const char *value = look(device, what);
  if (!value) return NOT_SUPPORTED;
  *out = (unsigned)strtoul(value, NULL, 0);
  return OK;
}

static int number64(const Device *device, const char *what, unsigned long long *out) {
  const char *value = look(device, what);
  if (!value) return NOT_SUPPORTED;
  *out = strtoull(value, NULL, 0);
  return OK;
}

static int text(const Device *device, const char *what, char *out, unsigned length) {
  const char *value = look(device, what);
  if (!value) return NOT_SUPPORTED;
  snprintf(out, length, "%s", value);
  return OK;
}

#define ENTER(device) int ret = enter(device, __func__); if (ret) return leave(ret)

/* What tests ask of the stand-in itself. */
API void fakeNvmlLoad(const char *from) {
  pthread_mutex_lock(&mutex);
  snprintf(path, sizeof path, "%s", from);
  size = -1;
  reload();
  pthread_mutex_unlock(&mutex);
}
API int fakeNvmlLiveSamples(void) { return live_samples + leaked_samples; }
/* For a shutdown by somebody else, after which nobody can free them. */
API void fakeNvmlForgetLeaks(void) { leaked_samples = 0; }
API int fakeNvmlLiveEventSets(void) { return live_event_sets; }
API int fakeNvmlInitialized(void) { return initialized; }
API long fakeNvmlSlotCalls(int slot) { return slot_calls[slot]; }
API long fakeNvmlCalls(const char *function) {
  for (int i = 0; i < FUNCTIONS; i++)
    if (!strcmp(functions[i].name, function)) return functions[i].calls;
  return 0;
}

API int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&mutex);
  reload();
  note_call("nvmlInitWithFlags");
  const char *error = find("init_err");
  if (error && atoi(error)) return leave(atoi(error));
  for (int slot = 0; slot < SLOTS; slot++) {
    devices[slot].slot = slot;
    devices[slot].instance = -1;
    snprintf(devices[slot].prefix, sizeof devices[slot].prefix, "%d.", slot);
    for (int j = 0; j < INSTANCES; j++) {
      Device *instance = &instances[slot][j];
      instance->slot = slot;
      instance->instance = j;
      snprintf(instance->prefix, sizeof instance->prefix, "%d.mig%d.", slot, j);
    }
  }
  initialized++;
  return leave(OK);
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) {
  pthread_mutex_lock(&mutex);
  if (!initialized) return leave(UNINITIALIZED);
  if (--initialized == 0) {
    leaked_samples += live_samples;
    live_samples = 0;
  }
  return leave(OK);
}
API const char *nvmlErrorString(int code) {
  static char words[64];
  snprintf(words, sizeof words, "stand-in error %d", code);
  return words;
}

static int system_text(const char *key, const char *otherwise, char *out, unsigned length) {
  pthread_mutex_lock(&mutex);
  reload();
  if (!initialized) return leave(UNINITIALIZED);
  const char *value = find(key);
  snprintf(out, length, "%s", value ? value : otherwise);
  return leave(OK);
}
API int nvmlSystemGetDriverVersion(char *out, unsigned length) { return system_text("driver", "570.00", out, length); }
API int nvmlSystemGetNVMLVersion(char *out, unsigned length) { return system_text("nvml", "12.570.00", out, length); }
API int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return initialized ? OK : UNINITIALIZED; }

API int nvmlDeviceGetCount_v2(unsigned *count) {
  pthread_mutex_lock(&mutex);
  reload();
  note_call("nvmlDeviceGetCount_v2");
  if (!initialized) return leave(UNINITIALIZED);
  *count = (unsigned)visible_count();
  return leave(OK);
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
  pthread_mutex_lock(&mutex);
  reload();
  note_call("nvmlDeviceGetHandleByIndex_v2");
  if (!initialized) return leave(UNINITIALIZED);
  int slot = visible_slot((int)index);
  if (slot < 0 || slot >= SLOTS) return leave(INVALID_ARGUMENT);
  const char *error = look(&devices[slot], "err.nvmlDeviceGetHandleByIndex_v2");
  if (!error) error = look(&devices[slot], "err.*");
  if (error && atoi(error)) return leave(atoi(error));
  *out = &devices[slot];
  return leave(OK);
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, Device **out) {
  pthread_mutex_lock(&mutex);
  reload();
  if (!initialized) return leave(UNINITIALIZED);
  for (int index = 0; visible_slot(index) >= 0; index++) {
    Device *device = &devices[visible_slot(index)];
    const char *own = look(device, "uuid"), *error = look(device, "err.*");
    if (!own || strcmp(own, uuid)) continue;
    if (error && atoi(error)) return leave(atoi(error));
    *out = device;
    return leave(OK);
  }
  return leave(NOT_FOUND);
}
API int nvmlDeviceGetIndex(Device *device, unsigned *out) {
  ENTER(device);
  for (int index = 0; visible_slot(index) >= 0; index++)
    if (visible_slot(index) == device->slot) *out = (unsigned)index;
  return leave(OK);
}
API int nvmlDeviceGetName(Device *d, char *out, unsigned length) { ENTER(d); return leave(text(d, "name", out, length)); }
API int nvmlDeviceGetUUID(Device *d, char *out, unsigned length) { ENTER(d); return leave(text(d, "uuid", out, length)); }
API int nvmlDeviceGetPciInfo_v3(Device *device, Pci *out) {
  ENTER(device);
  memset(out, 0, sizeof *out);
  ret = text(device, "bus_id", out->bus_id, sizeof out->bus_id);
  if (ret) return leave(ret);
  sscanf(out->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
  return leave(OK);
}

#define NUMBER(function, key) \
  API int function(Device *device, unsigned *out) { ENTER(device); return leave(number(device, key, out)); }
NUMBER(nvmlDeviceGetPowerUsage, "power_mw")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
NUMBER(nvmlDeviceGetMemoryBusWidth, "bus_width")
NUMBER(nvmlDeviceGetFanSpeed, "fan")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
NUMBER(nvmlDeviceGetVirtualizationMode, "virtualization")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetArchitecture, "arch")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, "mig_max")
NUMBER(nvmlDeviceGetGpuInstanceId, "gi")
NUMBER(nvmlDeviceGetComputeInstanceId, "ci")

#define NUMBER64(function, key) \
  API int function(Device *device, unsigned long long *out) { ENTER(device); return leave(number64(device, key, out)); }
NUMBER64(nvmlDeviceGetTotalEnergyConsumption, "energy_mj")
NUMBER64(nvmlDeviceGetCurrentClocksEventReasons, "reasons")
NUMBER64(nvmlDeviceGetCurrentClocksThrottleReasons, "reasons")

API int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor) {
  ENTER(device);
  const char *value = look(device, "cc");
  return leave(value && sscanf(value, "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED);
}
API int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *out) {
  (void)sensor;
  ENTER(device);
  return leave(number(device, "temp", out));
}
API int nvmlDeviceGetTemperatureV(Device *device, Temperature *out) {
  ENTER(device);
  if (out->version != 0x0100000C) return leave(VERSION_MISMATCH);
  unsigned degrees = 0;
  ret = number(device, "temp", &degrees);
  out->degrees = (int)degrees;
  return leave(ret);
}
static int clock_mhz(Device *device, int type, const char *suffix, unsigned *out) {
  static const char *names[] = {"gr", "sm", "mem", "video"};
  char key[32];
  if (type < 0 || type > 3) return INVALID_ARGUMENT;
  snprintf(key, sizeof key, "clock_%s%s", names[type], suffix);
  return number(device, key, out);
}
API int nvmlDeviceGetClockInfo(Device *device, int type, unsigned *out) {
  ENTER(device);
  return leave(clock_mhz(device, type, "", out));
}
API int nvmlDeviceGetMaxClockInfo(Device *device, int type, unsigned *out) {
  ENTER(device);
  return leave(clock_mhz(device, type, "_max", out));
}
API int nvmlDeviceGetPcieThroughput(Device *device, int counter, unsigned *out) {
  ENTER(device);
  return leave(number(device, counter ? "pcie_rx_kbs" : "pcie_tx_kbs", out));
}
API int nvmlDeviceGetTotalEccErrors(Device *device, int kind, int counter, unsigned long long *out) {
  (void)kind; (void)counter;
  ENTER(device);
  return leave(number64(device, "ecc", out));
}
API int nvmlDeviceGetUtilizationRates(Device *device, Utilization *out) {
  ENTER(device);
  ret = number(device, "util_gpu", &out->gpu);
  return leave(ret ? ret : number(device, "util_mem", &out->memory));
}

static int memory(Device *device, MemoryV2 *out) {
  int ret = number64(device, "mem_total", &out->total);
  if (ret || (ret = number64(device, "mem_used", &out->used))) return ret;
  out->reserved = 0;
  number64(device, "mem_reserved", &out->reserved);
  out->free = out->total > out->used + out->reserved ? out->total - out->used - out->reserved : 0;
  return OK;
}
API int nvmlDeviceGetMemoryInfo(Device *device, Memory *out) {
  ENTER(device);
  MemoryV2 all;
  ret = memory(device, &all);
  if (ret) return leave(ret);
  out->total = all.total;
  out->free = all.free;
  out->used = all.used + all.reserved;
  return leave(OK);
}
API int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *out) {
  ENTER(device);
  if (look(device, "no_mem_v2")) return leave(FUNCTION_NOT_FOUND);
  return leave(out->version == 0x02000028 ? memory(device, out) : VERSION_MISMATCH);
}

API int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *out) {
  ENTER(device);
  const char *list = look(device, "procs");
  unsigned n = 0, room = out ? *count : 0;
  for (const char *at = list; at && *at; n++) {
    unsigned pid = (unsigned)strtoul(at, (char **)&at, 10);
    unsigned long long used = ~0ULL;
    if (*at == ':' && at[1] != '-') used = strtoull(at + 1, (char **)&at, 10);
    else while (*at && *at != ',') at++;
    if (*at == ',') at++;
    if (n < room) out[n] = (Process){pid, used, ~0U, ~0U};
  }
  *count = n;
  return leave(n > room ? INSUFFICIENT_SIZE : OK);
}

API int nvmlDeviceGetFieldValues(Device *device, int count, Field *fields) {
  ENTER(device);
  for (int i = 0; i < count; i++) {
    char key[48];
    snprintf(key, sizeof key, "field.%u.ret", fields[i].field);
    const char *failing = look(device, key);
    snprintf(key, sizeof key, "field.%u.type", fields[i].field);
    const char *type = look(device, key);
    snprintf(key, sizeof key, "field.%u", fields[i].field);
    const char *value = look(device, key);
    fields[i].ret = failing && atoi(failing) ? atoi(failing) : value ? OK : NOT_SUPPORTED;
    if (fields[i].ret) continue;
    fields[i].type = type ? (unsigned)atoi(type) : strchr(value, '.') ? 0 : 3;
    if (fields[i].type == 0) fields[i].value.d = strtod(value, NULL);
    else fields[i].value.u64 = strtoull(value, NULL, 0);
  }
  return leave(OK);
}

API int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
  ENTER(device);
  ret = number(device, "mig", current);
  *pending = *current;
  return leave(ret);
}
API int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **out) {
  ENTER(device);
  if (index >= INSTANCES || !look(&instances[device->slot][index], "uuid")) return leave(NOT_FOUND);
  *out = &instances[device->slot][index];
  return leave(OK);
}

API int nvmlGpmQueryDeviceSupport(Device *device, GpmSupport *out) {
  ENTER(device);
  if (out->version != 1) return leave(VERSION_MISMATCH);
  out->supported = 0;
  number(device, "gpm", &out->supported);
  return leave(OK);
}
API int nvmlGpmSampleAlloc(Sample **out) {
  pthread_mutex_lock(&mutex);
  if (!initialized) return leave(UNINITIALIZED);
  *out = calloc(1, sizeof **out);
  live_samples++;
  return leave(OK);
}
API int nvmlGpmSampleFree(Sample *sample) {
  pthread_mutex_lock(&mutex);
  if (!initialized) return leave(UNINITIALIZED);
  if (!sample) return leave(INVALID_ARGUMENT);
  free(sample);
  live_samples--;
  return leave(OK);
}
static int take(Device *device, unsigned gi, Sample *sample) {
  unsigned supported = 0;
  number(device, "gpm", &supported);
  if (!supported) return NOT_SUPPORTED;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *sample = (Sample){device, gi, now.tv_sec * 1e3 + now.tv_nsec / 1e6, 1};
  return OK;
}
API int nvmlGpmSampleGet(Device *device, Sample *sample) { ENTER(device); return leave(take(device, ~0U, sample)); }
API int nvmlGpmMigSampleGet(Device *device, unsigned gi, Sample *sample) {
  ENTER(device);
  return leave(take(device, gi, sample));
}
API int nvmlGpmMetricsGet(GpmMetrics *out) {
  pthread_mutex_lock(&mutex);
  reload();
  note_call("nvmlGpmMetricsGet");
  if (!initialized) return leave(UNINITIALIZED);
  if (out->version != 1) return leave(VERSION_MISMATCH);
  Sample *older = out->older, *newer = out->newer;
  if (!older->taken || !newer->taken || older->device != newer->device || older->gi != newer->gi)
    return leave(INVALID_ARGUMENT);
  const char *apart = find("gpm_min_ms");
  int too_close = newer->at_ms - older->at_ms < (apart ? atof(apart) : 100.0);
  for (unsigned i = 0; i < out->count; i++) {
    GpmMetric *metric = &out->metrics[i];
    char key[48], of_instance[64] = "";
    snprintf(key, sizeof key, "gpm.%u.ret", metric->id);
    const char *failing = look(newer->device, key);
    snprintf(key, sizeof key, "gpm.%u", metric->id);
    if (newer->gi != ~0U) snprintf(of_instance, sizeof of_instance, "gi%u.%s", newer->gi, key);
    const char *value = look(newer->device, of_instance[0] ? of_instance : key);
    metric->ret = failing && atoi(failing) ? atoi(failing) : value ? OK : NOT_SUPPORTED;
    metric->value = metric->ret || too_close ? NAN : strtod(value, NULL);
    metric->short_name = metric->long_name = metric->unit = NULL;
  }
  return leave(OK);
}
API int nvmlGpmQueryIfStreamingEnabled(Device *device, unsigned *out) { ENTER(device); *out = 0; return leave(OK); }

API int nvmlEventSetCreate(void **out) {
  pthread_mutex_lock(&mutex);
  if (!initialized) return leave(UNINITIALIZED);
  *out = calloc(1, 1);
  live_event_sets++;
  return leave(OK);
}
API int nvmlEventSetFree(void *set) {
  pthread_mutex_lock(&mutex);
  free(set);
  live_event_sets--;
  return leave(OK);
}
API int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, void *set) {
  (void)types; (void)set;
  ENTER(device);
  return leave(device->instance < 0 ? OK : NOT_SUPPORTED);
}
API int nvmlEventSetWait_v2(void *set, Event *out, unsigned timeout_ms) {
  (void)set;
  for (unsigned waited = 0;; waited += 5) {
    pthread_mutex_lock(&mutex);
    reload();
    if (!initialized) return leave(UNINITIALIZED);
    const char *value = find("xid");
    long serial;
    int slot, code;
    if (value && sscanf(value, "%ld:%d:%d", &serial, &slot, &code) == 3 && serial != last_xid) {
      last_xid = serial;
      *out = (Event){&devices[slot], 8, (unsigned long long)code, ~0U, ~0U};
      return leave(OK);
    }
    leave(OK);
    if (waited >= timeout_ms) return TIMEOUT;
    usleep(5000);
  }
}
