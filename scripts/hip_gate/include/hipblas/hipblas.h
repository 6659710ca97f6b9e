// The part of hipBLAS that ggml calls: declared, never linked.
#pragma once

#include <hip/hip_runtime.h>

typedef void * hipblasHandle_t;

enum hipblasStatus_t {
    HIPBLAS_STATUS_SUCCESS,
    HIPBLAS_STATUS_NOT_INITIALIZED,
    HIPBLAS_STATUS_ALLOC_FAILED,
    HIPBLAS_STATUS_INVALID_VALUE,
    HIPBLAS_STATUS_MAPPING_ERROR,
    HIPBLAS_STATUS_EXECUTION_FAILED,
    HIPBLAS_STATUS_INTERNAL_ERROR,
    HIPBLAS_STATUS_NOT_SUPPORTED,
    HIPBLAS_STATUS_ARCH_MISMATCH,
};
enum hipblasOperation_t { HIPBLAS_OP_N = 111, HIPBLAS_OP_T, HIPBLAS_OP_C };
enum hipblasFillMode_t { HIPBLAS_FILL_MODE_UPPER = 121, HIPBLAS_FILL_MODE_LOWER };
enum hipblasDiagType_t { HIPBLAS_DIAG_NON_UNIT = 131, HIPBLAS_DIAG_UNIT };
enum hipblasSideMode_t { HIPBLAS_SIDE_LEFT = 141, HIPBLAS_SIDE_RIGHT };
enum hipblasDatatype_t { HIPBLAS_R_16F = 150, HIPBLAS_R_32F, HIPBLAS_R_64F, HIPBLAS_R_16B = 168 };
enum hipblasGemmAlgo_t { HIPBLAS_GEMM_DEFAULT = 160 };

extern "C" {

hipblasStatus_t hipblasCreate(hipblasHandle_t * handle);
hipblasStatus_t hipblasDestroy(hipblasHandle_t handle);
hipblasStatus_t hipblasSetStream(hipblasHandle_t handle, hipStream_t stream);

hipblasStatus_t hipblasSgemm(
    hipblasHandle_t handle, hipblasOperation_t op_a, hipblasOperation_t op_b, int m, int n, int k,
    const float * alpha, const float * a, int lda, const float * b, int ldb, const float * beta, float * c, int ldc);

hipblasStatus_t hipblasSgemmBatched(
    hipblasHandle_t handle, hipblasOperation_t op_a, hipblasOperation_t op_b, int m, int n, int k,
    const float * alpha, const float * const a[], int lda, const float * const b[], int ldb,
    const float * beta, float * const c[], int ldc, int n_batch);

hipblasStatus_t hipblasSgemmStridedBatched(
    hipblasHandle_t handle, hipblasOperation_t op_a, hipblasOperation_t op_b, int m, int n, int k,
    const float * alpha, const float * a, int lda, long long stride_a, const float * b, int ldb, long long stride_b,
    const float * beta, float * c, int ldc, long long stride_c, int n_batch);

hipblasStatus_t hipblasGemmEx(
    hipblasHandle_t handle, hipblasOperation_t op_a, hipblasOperation_t op_b, int m, int n, int k,
    const void * alpha, const void * a, hipblasDatatype_t type_a, int lda, const void * b, hipblasDatatype_t type_b, int ldb,
    const void * beta, void * c, hipblasDatatype_t type_c, int ldc, hipblasDatatype_t type_compute, hipblasGemmAlgo_t algo);

hipblasStatus_t hipblasGemmBatchedEx(
    hipblasHandle_t handle, hipblasOperation_t op_a, hipblasOperation_t op_b, int m, int n, int k,
    const void * alpha, const void * a[], hipblasDatatype_t type_a, int lda,
    const void * b[], hipblasDatatype_t type_b, int ldb, const void * beta,
    void * c[], hipblasDatatype_t type_c, int ldc, int n_batch, hipblasDatatype_t type_compute, hipblasGemmAlgo_t algo);

hipblasStatus_t hipblasGemmStridedBatchedEx(
    hipblasHandle_t handle, hipblasOperation_t op_a, hipblasOperation_t op_b, int m, int n, int k,
    const void * alpha, const void * a, hipblasDatatype_t type_a, int lda, long long stride_a,
    const void * b, hipblasDatatype_t type_b, int ldb, long long stride_b, const void * beta,
    void * c, hipblasDatatype_t type_c, int ldc, long long stride_c, int n_batch,
    hipblasDatatype_t type_compute, hipblasGemmAlgo_t algo);

hipblasStatus_t hipblasStrsmBatched(
    hipblasHandle_t handle, hipblasSideMode_t side, hipblasFillMode_t fill, hipblasOperation_t op, hipblasDiagType_t diag,
    int m, int n, const float * alpha, const float * const a[], int lda, float * const b[], int ldb, int n_batch);

} // extern "C"
