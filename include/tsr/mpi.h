/** @file
 * A transport (tsr/transport.h) over MPI: one process of a runtime is one process of an MPI job.
 *
 *     mpirun -n 2 ./program                                (or srun)
 *
 *     tsr_transport *mpi;
 *     const char *problem = tsr_mpi_transport_create(NULL, &mpi);
 *     if (problem) ...
 *     config.transport = mpi;
 *     ...
 *     tsr_runtime_close(rt);
 *     tsr_mpi_transport_destroy(mpi);
 *
 * Sums are MPI_Iallreduce of integers, so every MPI library, network and number of processes gives the same
 * bits.
 *
 * These functions are a library of their own, libtsr_mpi (CMake: tsr::mpi, pkg-config: tsr-mpi), so that
 * libtsr needs no MPI. Both are built where MPI is found. */
#ifndef TSR_MPI_H
#define TSR_MPI_H

#include <tsr/transport.h>

TSR_BEGIN_DECLS

/** A transport between the processes of a communicator. `mpi_comm` points to the caller's MPI_Comm, which is
 * duplicated; NULL: MPI_COMM_WORLD. Every process of the communicator makes this call, which blocks until all
 * have made it. If MPI is not initialised, this call initialises it, and tsr_mpi_transport_destroy()
 * finalises it. If the caller has initialised MPI, it must be at MPI_THREAD_MULTIPLE, since every device has
 * a thread that communicates. Returns NULL, or a sentence about the failure, valid until this thread's next
 * call. */
TSR_NODISCARD TSR_API const char *tsr_mpi_transport_create(const void *mpi_comm,
                                                           tsr_transport **transport_out);

/** The same, for processes that go on when one of them ends (tsr_transport.survives): what is sent and
 * received is copied, and an operation that fails is one that does not end, so the runtime notices by its
 * timeout. The launcher must not end the job: `mpirun --enable-recovery` of Open MPI 4, within a machine.
 * After a loss MPI is not finalised, since a process is missing. */
TSR_NODISCARD TSR_API const char *tsr_mpi_transport_create_surviving(const void *mpi_comm,
                                                                     tsr_transport **transport_out);

/** Destroy the transport, in every process, after the runtimes that use it are closed. NULL is fine. */
TSR_API void tsr_mpi_transport_destroy(tsr_transport *transport);

TSR_END_DECLS
#endif
