/* plugins/backend/mpi/reduce.h -- the arithmetic that MPI does not bring: bf16, averages. */
#pragma once

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

/* The function of an MPI_Op for this dtype and op, NULL where the library's own does it or none can; of u8, for a
 * library that compares it wrongly. Averages are
 * there for two ranks alone: each element is then combined exactly once, so that no second pass is needed. */
MPI_User_function *ddp_mpi_function(uint32_t dtype, uint32_t op, uint32_t world);

/* x[i] /= world, in place; f32, bf16, f64, i64. */
void ddp_mpi_divide(uint32_t dtype, void *x, size_t count, uint32_t world);

/* Averages of u8 and i32 over more than two ranks go by sums in i64, which do not wrap. */
void ddp_mpi_widen(uint32_t dtype, const void *x, int64_t *out, size_t count);
void ddp_mpi_narrow_average(uint32_t dtype, const int64_t *sums, void *out, size_t count, uint32_t world);
