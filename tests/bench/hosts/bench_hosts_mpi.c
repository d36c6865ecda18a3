/* bench_hosts_mpi.c -- MPI_Allreduce of f32, sum, in place: what hierarchy.py starts by mpirun in its namespaces. Rank
 * 0 prints a line a round, the milliseconds of the slowest rank.
 *
 *   bench_hosts_mpi BYTES ROUNDS */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    size_t count = argc > 2 ? strtoul(argv[1], NULL, 10) / sizeof(float) : 0;
    int rounds = argc > 2 ? atoi(argv[2]) : 0, rank;
    float *x = calloc(count + 1, sizeof(*x));

    (void)MPI_Init(&argc, &argv);
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = -1; i < rounds && x != NULL; i++) { /* the first one warms up */
        double began, ms, slowest = 0;

        (void)MPI_Barrier(MPI_COMM_WORLD);
        began = MPI_Wtime();
        (void)MPI_Allreduce(MPI_IN_PLACE, x, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        ms = (MPI_Wtime() - began) * 1e3;
        (void)MPI_Reduce(&ms, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0 && i >= 0) (void)printf("%.3f\n", slowest);
    }
    (void)MPI_Finalize();
    free(x);
    return 0;
}
