/* Error codes of the simulated CUDA runtime and driver, with CUDA's names and numbers (both APIs share the
 * numbers) and our words. X(name, number, text). */
#ifndef CUDASIM_ERRORS_H
#define CUDASIM_ERRORS_H

#define CUDASIM_ERRORS(X)                                                                   \
    X(cudaSuccess, 0, "no error")                                                           \
    X(cudaErrorInvalidValue, 1, "invalid argument")                                         \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                        \
    X(cudaErrorInitializationError, 3, "initialization error")                              \
    X(cudaErrorCudartUnloading, 4, "driver shutting down")                                  \
    X(cudaErrorInvalidConfiguration, 9, "invalid launch configuration")                     \
    X(cudaErrorInvalidPitchValue, 12, "invalid pitch")                                      \
    X(cudaErrorInvalidHostPointer, 16, "invalid host pointer")                              \
    X(cudaErrorInvalidDevicePointer, 17, "invalid device pointer")                          \
    X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction")                        \
    X(cudaErrorInsufficientDriver, 35, "driver is older than the runtime")                  \
    X(cudaErrorDevicesUnavailable, 46, "all devices are busy or unavailable")               \
    X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                        \
    X(cudaErrorNoDevice, 100, "no device is detected")                                      \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                \
    X(cudaErrorDeviceUninitialized, 201, "invalid device context")                          \
    X(cudaErrorMapBufferObjectFailed, 205, "mapping of buffer object failed")               \
    X(cudaErrorNoKernelImageForDevice, 209, "no kernel image for this device")              \
    X(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error")                            \
    X(cudaErrorPeerAccessUnsupported, 217, "peer access is not supported")                  \
    X(cudaErrorNvlinkUncorrectable, 220, "uncorrectable NVLink error")                      \
    X(cudaErrorOperatingSystem, 304, "operating system call failed")                        \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                       \
    X(cudaErrorIllegalState, 401, "illegal state")                                          \
    X(cudaErrorSymbolNotFound, 500, "symbol not found")                                     \
    X(cudaErrorNotReady, 600, "not ready")                                                  \
    X(cudaErrorIllegalAddress, 700, "illegal memory access")                                \
    X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")        \
    X(cudaErrorLaunchTimeout, 702, "launch timed out")                                      \
    X(cudaErrorPeerAccessAlreadyEnabled, 704, "peer access is already enabled")             \
    X(cudaErrorPeerAccessNotEnabled, 705, "peer access is not enabled")                     \
    X(cudaErrorSetOnActiveProcess, 708, "set while a context is active")                    \
    X(cudaErrorContextIsDestroyed, 709, "context is destroyed")                             \
    X(cudaErrorAssert, 710, "device-side assert")                                           \
    X(cudaErrorTooManyPeers, 711, "too many peers")                                         \
    X(cudaErrorHostMemoryAlreadyRegistered, 712, "host memory is already registered")       \
    X(cudaErrorHostMemoryNotRegistered, 713, "host memory is not registered")               \
    X(cudaErrorHardwareStackError, 714, "hardware stack error")                             \
    X(cudaErrorIllegalInstruction, 715, "illegal instruction")                              \
    X(cudaErrorMisalignedAddress, 716, "misaligned address")                                \
    X(cudaErrorInvalidAddressSpace, 717, "invalid address space")                           \
    X(cudaErrorInvalidPc, 718, "invalid program counter")                                   \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                            \
    X(cudaErrorNotPermitted, 800, "not permitted")                                          \
    X(cudaErrorNotSupported, 801, "not supported")                                          \
    X(cudaErrorStreamCaptureUnsupported, 900, "not permitted while a stream is capturing")  \
    X(cudaErrorStreamCaptureInvalidated, 901, "the capture was invalidated")                \
    X(cudaErrorStreamCaptureMerge, 902, "would merge two captures")                         \
    X(cudaErrorStreamCaptureUnmatched, 903, "the capture did not begin in this stream")     \
    X(cudaErrorStreamCaptureUnjoined, 904, "the capture has unjoined streams")              \
    X(cudaErrorStreamCaptureIsolation, 905, "dependency on uncaptured work")                \
    X(cudaErrorStreamCaptureImplicit, 906, "implicit dependency through the legacy stream") \
    X(cudaErrorCapturedEvent, 907, "not permitted on an event last recorded in a capture")  \
    X(cudaErrorStreamCaptureWrongThread, 908, "the capture began in another thread")        \
    X(cudaErrorTimeout, 909, "timed out")                                                   \
    X(cudaErrorGraphExecUpdateFailure, 910, "the graph update was not performed")           \
    X(cudaErrorUnknown, 999, "unknown error")

#endif
