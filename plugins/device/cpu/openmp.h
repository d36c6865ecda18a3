/* plugins/device/cpu/openmp.h -- the calls of libgomp that device cpu makes, and no header of a compiler's: oneDNN's
 * threads are libgomp's, whatever compiler this file is for. With #pragma omp, clang would bring a second OpenMP, whose
 * threads stand beside those and whose omp_set_num_threads() oneDNN does not hear. */
#pragma once

/* What GCC makes of #pragma omp parallel: `region` runs once in each of so many threads, this one among them. */
void GOMP_parallel(void (*region)(void *), void *data, unsigned threads, unsigned flags);

/* The OpenMP API, version 2.5 on. */
int omp_get_thread_num(void);
int omp_get_num_threads(void);
void omp_set_num_threads(int threads); /* for the calling thread */
