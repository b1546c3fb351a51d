/* See segment.h. A file of memfd_create() is no part of /dev/shm, which containers often limit to 64 MiB. */
#include "cuda/comm/between/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/api/check.h"

tsr_status tsr_cuda_segment_create(size_t bytes, tsr_cuda_segment_name *name_out, int *file_out)
{
    struct stat about;
    const int file = memfd_create("tsr inboxes", MFD_CLOEXEC);
    *file_out = file;
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0 || fstat(file, &about) != 0)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "no memory that processes share: %s", strerror(errno));
    *name_out = (tsr_cuda_segment_name){
        .process = getpid(), .file = file, .device = about.st_dev, .inode = about.st_ino};
    return TSR_OK;
}

tsr_status tsr_cuda_segment_open(const tsr_cuda_segment_name *name, size_t bytes, tsr_cuda_segment *segment)
{
    tsr_status status = TSR_OK;
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)name->process, (long long)name->file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 || fstat(file, &about) != 0)
        TSR_TRY(tsr_fail(TSR_ERR_UNSUPPORTED, "memory of another process (%s): %s", path, strerror(errno)));
    if (about.st_dev != name->device || about.st_ino != name->inode || about.st_size != (off_t)bytes)
        TSR_TRY(tsr_fail(TSR_ERR_UNSUPPORTED,
                         "processes of one host name do not see each other's memory: they are in containers "
                         "of their own"));
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (data == MAP_FAILED)
        TSR_TRY(tsr_fail(TSR_ERR_UNSUPPORTED, "memory that processes share: %s", strerror(errno)));
    *segment = (tsr_cuda_segment){.data = data, .bytes = bytes};
out:
    if (file >= 0)
        close(file);
    return status;
}

tsr_status tsr_cuda_segment_register(tsr_cuda_segment *segment, tsr_cuda_device *keeper)
{
    tsr_status status = tsr_cuda_enter(keeper);
    if (status != TSR_OK)
        return status;
    status = TSR_CUDA(
        cudaHostRegister(segment->data, segment->bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
    if (status == TSR_OK)
        segment->keeper = keeper;
    else if (status == TSR_ERR_MEMORY) /* memory that may be locked is short, which other ways do without */
        status = tsr_fail_in(TSR_ERR_DEVICE, "%zu bytes that processes share", segment->bytes);
    tsr_cuda_leave(keeper);
    return status;
}

tsr_status tsr_cuda_segment_address(const tsr_cuda_segment *segment, tsr_cuda_device *cuda,
                                    unsigned char **address_out)
{
    void *address = NULL;
    tsr_status status = tsr_cuda_enter(cuda);
    if (status != TSR_OK)
        return status;
    status = TSR_CUDA(cudaHostGetDevicePointer(&address, segment->data, 0));
    tsr_cuda_leave(cuda);
    *address_out = address;
    return status;
}

/* A GPU that was given up may still use the memory. */
void tsr_cuda_segment_close(tsr_cuda_segment *segment)
{
    if (segment->keeper) {
        if (!tsr_cuda_enter_to_release(segment->keeper))
            return;
        (void)cudaHostUnregister(segment->data);
        (void)cudaGetLastError();
        tsr_cuda_leave(segment->keeper);
    }
    if (segment->data)
        munmap(segment->data, segment->bytes);
    *segment = (tsr_cuda_segment){0};
}
