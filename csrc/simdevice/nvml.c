/* libnvidia-ml.so.1: how many devices there are, and that they have no links. torch asks for it before it maps memory.
 *
 * The real library has hundreds of functions; a program that asks for another one is told that it is not there, as by
 * an older library. Structures are written as far as their own version field says.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))
#define NOT_SUPPORTED(name) \
    PUBLIC int name(void) { return 3; }

int cuDeviceGetCount(int* count);
int cuDriverGetVersion(int* version);
int cuDeviceGetUuid_v2(void* uuid, int device);

/* A handle is the device's number plus one: never null. */
static int number_of(const void* handle) { return (int)(size_t)handle - 1; }

PUBLIC int nvmlInit_v2(void) { return 0; }
PUBLIC int nvmlInit(void) { return 0; }
PUBLIC int nvmlShutdown(void) { return 0; }
PUBLIC const char* nvmlErrorString(int error) { return error ? "not supported by the simulated device" : "success"; }
PUBLIC int nvmlDeviceGetCount_v2(unsigned* count) { return cuDeviceGetCount((int*)count); }
PUBLIC int nvmlSystemGetCudaDriverVersion_v2(int* version) { return cuDriverGetVersion(version); }
PUBLIC int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
    unsigned count = 0;
    nvmlDeviceGetCount_v2(&count);
    *handle = (void*)(size_t)(index + 1);
    return index < count ? 0 : 2; /* invalid argument */
}
/* "00000000:01:00.0": the bus is the device's number, as in cudaDeviceProp. */
PUBLIC int nvmlDeviceGetHandleByPciBusId_v2(const char* place, void** handle) {
    unsigned bus = 0;
    return sscanf(place, "%*x:%x", &bus) == 1 ? nvmlDeviceGetHandleByIndex_v2(bus, handle) : 2;
}
PUBLIC int nvmlDeviceGetUUID(void* handle, char* text, unsigned length) {
    unsigned char bytes[16];
    if (cuDeviceGetUuid_v2(bytes, number_of(handle)) || length < 41) return 2;
    text += sprintf(text, "GPU-");
    for (int i = 0; i < 16; ++i)
        text += sprintf(text, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", bytes[i]);
    return 0;
}
/* Zeros say that there is no fabric. The version field has the structure's size in its lower 24 bits. */
PUBLIC int nvmlDeviceGetGpuFabricInfoV(void* handle, unsigned* info) {
    (void)handle;
    memset(info + 1, 0, (*info & 0xFFFFFF) - sizeof *info);
    return 0;
}
PUBLIC int nvmlDeviceGetComputeRunningProcesses(void* handle, unsigned* count, void* list) {
    (void)handle, (void)list;
    *count = 0;
    return 0;
}
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
