/* CUDA's small vectors. */
#ifndef CUDASIM_VECTOR_TYPES_H
#define CUDASIM_VECTOR_TYPES_H

#define CUDASIM_VECTOR(type, name, align2, align4)          \
    typedef struct name##1                                  \
    {                                                       \
        type x;                                             \
    }                                                       \
    name##1;                                                \
    typedef struct __attribute__((aligned(align2))) name##2 \
    {                                                       \
        type x, y;                                          \
    }                                                       \
    name##2;                                                \
    typedef struct name##3                                  \
    {                                                       \
        type x, y, z;                                       \
    }                                                       \
    name##3;                                                \
    typedef struct __attribute__((aligned(align4))) name##4 \
    {                                                       \
        type x, y, z, w;                                    \
    }                                                       \
    name##4;

CUDASIM_VECTOR(signed char, char, 2, 4)
CUDASIM_VECTOR(unsigned char, uchar, 2, 4)
CUDASIM_VECTOR(short, short, 4, 8)
CUDASIM_VECTOR(unsigned short, ushort, 4, 8)
CUDASIM_VECTOR(int, int, 8, 16)
CUDASIM_VECTOR(unsigned int, uint, 8, 16)
CUDASIM_VECTOR(long long, longlong, 16, 16)
CUDASIM_VECTOR(unsigned long long, ulonglong, 16, 16)
CUDASIM_VECTOR(float, float, 8, 16)
CUDASIM_VECTOR(double, double, 16, 16)
#undef CUDASIM_VECTOR

typedef struct dim3 {
    unsigned int x, y, z;
#ifdef __cplusplus
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
#endif
} dim3;

#ifdef __cplusplus
#define CUDASIM_MAKE(type, name)                                         \
    static inline name##2 make_##name##2(type x, type y)                 \
    {                                                                    \
        return {x, y};                                                   \
    }                                                                    \
    static inline name##3 make_##name##3(type x, type y, type z)         \
    {                                                                    \
        return {x, y, z};                                                \
    }                                                                    \
    static inline name##4 make_##name##4(type x, type y, type z, type w) \
    {                                                                    \
        return {x, y, z, w};                                             \
    }
CUDASIM_MAKE(signed char, char)
CUDASIM_MAKE(unsigned char, uchar)
CUDASIM_MAKE(short, short)
CUDASIM_MAKE(unsigned short, ushort)
CUDASIM_MAKE(int, int)
CUDASIM_MAKE(unsigned int, uint)
CUDASIM_MAKE(long long, longlong)
CUDASIM_MAKE(unsigned long long, ulonglong)
CUDASIM_MAKE(float, float)
CUDASIM_MAKE(double, double)
#undef CUDASIM_MAKE
#endif

#endif
