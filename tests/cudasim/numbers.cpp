/* Last places that NVIDIA's documents leave open: of the approximations ex2.approx and rcp.approx, and of
 * sums in tensor cores. They are those of the rounded value, so that the simulation and the compiled
 * kernels have the same bits (tests/ptx). With CUDASIM_LAST_PLACES=N, N > 0, they are others, drawn from N
 * and the value, so that a test that relies on them fails here and not on a GPU. */
#include "sim.h"

#include <stdlib.h>

uint64_t cudasim_last_places;

void cudasim::choose_places(uint64_t seed)
{
    const char *text = getenv("CUDASIM_LAST_PLACES");
    cudasim_last_places = seed != 0 || text == NULL ? seed : strtoull(text, NULL, 10);
}

float cudasim_other_places(float value, int most)
{
    uint64_t hash = cudasim_bits<uint32_t>(value) + (cudasim_last_places << 32);
    if (!isnormal(value))
        return value;
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9ull; /* splitmix64 */
    hash = (hash ^ hash >> 27) * 0x94d049bb133111ebull;
    const int places = (int)((hash >> 33) % (unsigned)(2 * most + 1)) - most;
    return cudasim_bits<float>(cudasim_bits<uint32_t>(value) + (unsigned)places);
}

/* As measured on an A100 (Fasi, Higham, Mikaitis, Pranesh: "Numerical behavior of NVIDIA tensor cores",
 * 2021): eight products at a time and the sum so far are shifted to the largest exponent, cut off one bit
 * below a float's last, added, and the sum is cut off to a float. */
float cudasim_tensor_sum(float sum, const double products[16])
{
    for (int first = 0; first < 16; first += 8) {
        int largest = -1000, exponent;
        double total = 0;
        for (int i = -1; i < 8; i++) {
            const double addend = i < 0 ? (double)sum : products[first + i];
            (void)frexp(addend, &exponent);
            if (addend != 0 && exponent > largest)
                largest = exponent;
        }
        for (int i = -1; i < 8; i++)
            total += trunc(ldexp(i < 0 ? (double)sum : products[first + i], 25 - largest));
        total = ldexp(total, largest - 25);
        sum = (float)total;
        if (fabs((double)sum) > fabs(total))
            sum = nextafterf(sum, 0.0f);
    }
    return sum;
}
