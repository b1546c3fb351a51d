/* The least that uses tsr::mpi: one process is a job of one. */
#include <stdio.h>

#include <tsr/mpi.h>
#include <tsr/runtime.h>

int main(void)
{
    tsr_transport *mpi = NULL;
    tsr_runtime *rt = NULL;
    tsr_runtime_config config = tsr_runtime_config_default();
    const char *problem = tsr_mpi_transport_create(NULL, &mpi);
    if (problem) {
        fprintf(stderr, "%s\n", problem);
        return 1;
    }
    config.devices = "host:1,threads=1";
    config.transport = mpi;
    if (tsr_runtime_open(&config, &rt) == TSR_OK)
        printf("process %d of %d, %d device\n", mpi->rank, mpi->n_ranks, tsr_runtime_n_devices(rt));
    else
        fprintf(stderr, "%s\n", tsr_last_error());
    const int failed = rt == NULL;
    tsr_runtime_close(rt);
    tsr_mpi_transport_destroy(mpi);
    return failed;
}
