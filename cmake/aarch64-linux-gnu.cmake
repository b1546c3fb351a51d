# Cross-compiling for 64-bit ARM on Debian, with its cross compiler and the libraries that
# `scripts/install-packages neon` installs beside its own; test programs run under qemu, if it is installed.
#
#     cmake -S . -B build/neon --toolchain cmake/aarch64-linux-gnu.cmake
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
find_program(TSR_QEMU NAMES qemu-aarch64 qemu-aarch64-static)
if(TSR_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${TSR_QEMU})
endif()
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
