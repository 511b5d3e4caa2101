/* cuBLAS and cuBLASLt: handles, heuristics that always have one answer, and products that are not computed.
 *
 * Their real initialisation needs tables of the driver that nobody documents. Prototypes are not needed: every function
 * here ignores its arguments, or has them written out. The library has no symbol versions, so that it answers for both.
 */
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))
#define ACCEPTED(name) \
    PUBLIC int name(void) { return 0; }
#define REFUSED(name) \
    PUBLIC int name(void) { simdevice_refuse(#name); }
#define HANDLE(name) \
    PUBLIC int name(void** out) { return (*out = calloc(1, 4096)) ? 0 : 3; }

_Noreturn void simdevice_refuse(const char* function);

HANDLE(cublasCreate_v2)
HANDLE(cublasLtCreate)
HANDLE(cublasLtMatmulDescCreate)
HANDLE(cublasLtMatrixLayoutCreate)
HANDLE(cublasLtMatmulPreferenceCreate)

PUBLIC int cublasGetMathMode(void* handle, int* mode) {
    (void)handle;
    *mode = 0;
    return 0;
}
PUBLIC int cublasGetPointerMode_v2(void* handle, int* mode) {
    (void)handle;
    *mode = 0;
    return 0;
}
PUBLIC size_t cublasLtGetVersion(void) { return 130000; }
PUBLIC const char* cublasGetStatusString(int status) { return status ? "CUBLAS_STATUS_?" : "CUBLAS_STATUS_SUCCESS"; }

/* One algorithm without a workspace; a result has 8 words of algorithm, its size, a status, waves and 4 reserved. */
PUBLIC int cublasLtMatmulAlgoGetHeuristic(void* handle, void* operation, void* a, void* b, void* c, void* d,
                                          void* preference, int asked, void* results, int* found) {
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
    if (asked > 0) memset(results, 0, 96);
    *found = asked > 0;
    return 0;
}

ACCEPTED(cublasDestroy_v2)
ACCEPTED(cublasSetMathMode)
ACCEPTED(cublasSetPointerMode_v2)
ACCEPTED(cublasSetSmCountTarget)
ACCEPTED(cublasSetStream_v2)
ACCEPTED(cublasSetWorkspace_v2)
ACCEPTED(cublasLtDestroy)
ACCEPTED(cublasLtMatmulDescDestroy)
ACCEPTED(cublasLtMatmulDescSetAttribute)
ACCEPTED(cublasLtMatrixLayoutDestroy)
ACCEPTED(cublasLtMatrixLayoutSetAttribute)
ACCEPTED(cublasLtMatmulPreferenceDestroy)
ACCEPTED(cublasLtMatmulPreferenceSetAttribute)

ACCEPTED(cublasLtMatmul)
ACCEPTED(cublasDgemm_v2)
ACCEPTED(cublasDgemmStridedBatched)
ACCEPTED(cublasDgemv_v2)
ACCEPTED(cublasDotEx)
ACCEPTED(cublasGemmEx)
ACCEPTED(cublasGemmStridedBatchedEx)
ACCEPTED(cublasSgemm_v2)
ACCEPTED(cublasSgemmEx)
ACCEPTED(cublasSgemmStridedBatched)
ACCEPTED(cublasSgemv_v2)

REFUSED(cublasCgemm_v2)
REFUSED(cublasZgemm_v2)
REFUSED(cublasCgemmStridedBatched)
REFUSED(cublasZgemmStridedBatched)
REFUSED(cublasSgetrfBatched)
REFUSED(cublasDgetrfBatched)
REFUSED(cublasSgetrsBatched)
REFUSED(cublasDgetrsBatched)
REFUSED(cublasSgeqrfBatched)
REFUSED(cublasDgeqrfBatched)
REFUSED(cublasSgelsBatched)
REFUSED(cublasDgelsBatched)
REFUSED(cublasStrsm_v2)
REFUSED(cublasDtrsm_v2)
REFUSED(cublasStrsmBatched)
REFUSED(cublasDtrsmBatched)
