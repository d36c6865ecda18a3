/* plugins/backend/mpi/settings.c -- see settings.h. Of Open MPI: vader, orte and oob are names of version 4, sm, smsc
 * and prte of 5 and later. */
#include "settings.h"
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

const char *ddp_mpi_variable(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

/* The first of them that is set, NULL-terminated; else `standard`. */
static const char *first_of(const char *const *names, const char *standard)
{
    for (; *names != NULL; names++)
        if (ddp_mpi_variable(*names) != NULL) return ddp_mpi_variable(*names);
    return standard;
}

int ddp_mpi_by_launcher(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_FD", NULL};

    return first_of(names, NULL) != NULL;
}

/* ---- what MPI_Init is to find ------------------------------------------------------------------------------------ */
/* Open MPI reads a value of one process by the copy that containers with a seccomp filter refuse, and says so for each
 * message; it takes shared memory instead when it is told before. */
static int can_copy_from_processes(void)
{
    char from = 1, to = 0;
    struct iovec source = {.iov_base = &from, .iov_len = 1}, target = {.iov_base = &to, .iov_len = 1};

    return process_vm_readv(getpid(), &target, 1, &source, 1, 0) == 1;
}

/* UCX takes one list for all that it may use: with an interface of TCP in it, it would leave out faster adapters. */
static int has_rdma(void) { return access("/sys/class/infiniband", F_OK) == 0; }

static void prefer(const char *name, const char *value) { (void)setenv(name, value, 0); }

void ddp_mpi_choose_settings(const ddp_comm_params *p)
{
    /* a waiting rank gives its processor to a thread that can compute; about a microsecond of latency pays for it */
    prefer("OMPI_MCA_mpi_yield_when_idle", "1");
    prefer("OMPI_MCA_opal_signal", ""); /* signals are the program's */
    if (!can_copy_from_processes()) {
        prefer("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
        prefer("OMPI_MCA_smsc", "^cma");
    }
    if (!ddp_mpi_by_launcher()) { /* world 1: no daemon beside it, and no segment, which version 5 would leave */
        prefer("OMPI_MCA_ess_singleton_isolated", "1");
        prefer("OMPI_MCA_btl", "self");
    }
    if (p->interface != NULL && p->interface[0] != '\0') {
        prefer("OMPI_MCA_btl_tcp_if_include", p->interface);
        prefer("OMPI_MCA_oob_tcp_if_include", p->interface);
        prefer("FI_TCP_IFACE", p->interface); /* MPICH's, by the library that it was built with */
        if (!has_rdma()) prefer("UCX_NET_DEVICES", p->interface);
    }
}

/* mpiexec of MPICH 4.1 and later writes the host's topology into a file, for MPI_Init of its ranks to read, and leaves
 * it behind where it is killed: it goes at once. */
void ddp_mpi_forget_settings(void)
{
    static const char start[] = "/tmp/hydra_hwloc_xmlfile_";
    const char *path = ddp_mpi_variable("HWLOC_XMLFILE");

    if (path == NULL || strncmp(path, start, sizeof(start) - 1) != 0 || strchr(path + sizeof(start) - 1, '/') != NULL)
        return;
    (void)unlink(path);
    (void)unsetenv("HWLOC_XMLFILE");
}

/* ---- Open MPI's files -------------------------------------------------------------------------------------------- */
const char *ddp_mpi_temporary_folder(void)
{
    static const char *const names[] = {
        "OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base", "TMPDIR", "TEMP", "TMP", NULL};

    return first_of(names, "/tmp");
}

const char *ddp_mpi_segment_folder(void)
{
    static const char *const names[] = {"OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory",
                                        NULL};

    return first_of(names, "/dev/shm");
}

/* btl_sm_segment_size, and what Open MPI keeps beside it. */
double ddp_mpi_segment_mib(void)
{
#if defined(OMPI_MAJOR_VERSION)
    static const char *const names[] = {"OMPI_MCA_btl_sm_segment_size", "OMPI_MCA_btl_vader_segment_size", NULL};
    const char *given = first_of(names, NULL);
    double mib = OMPI_MAJOR_VERSION < 5 ? 4 : 16;

    if (given != NULL && strtod(given, NULL) > 0) mib = strtod(given, NULL) / (1 << 20);
    return mib + 1.0 / 16;
#else
    return 0;
#endif
}
