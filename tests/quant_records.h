/* What the Python package gguf decodes random blocks to, written by scripts/make-quant-tables: the type, the
 * last byte of its F16 scale (-1: none), the hash of all values, the bits of the first four. */
/* clang-format off */
    {TSR_TYPE_IQ1_S, 1, 0x7717209da257b1e5, {0xbfa2e800, 0xc1374500, 0xbfa2e800, 0x410e8b00}},
    {TSR_TYPE_IQ1_M, 55, 0xf2c01122bfca2645, {0x3a7ae480, 0x38df0400, 0xba432380, 0xba432380}},
    {TSR_TYPE_IQ2_XXS, 1, 0x895afa3c8722f0ed, {0xbb36b600, 0xbc758490, 0xbb36b600, 0x3c0ebe30}},
    {TSR_TYPE_IQ2_XS, 1, 0x55527adc44a3d23d, {0x3c978060, 0xbc978060, 0xbd024a90, 0xbbc1ec00}},
    {TSR_TYPE_IQ2_S, 1, 0xb9aa069800507e35, {0xbcd2fd60, 0xbb9d0400, 0xbc755640, 0x3c755640}},
    {TSR_TYPE_IQ3_XXS, 1, 0x90395c507c6d058d, {0x3e8d9780, 0x3d628c00, 0xbd628c00, 0x3e8d9780}},
    {TSR_TYPE_IQ3_S, 1, 0x9d9f9e1d9500a495, {0xc2805380, 0x42d5e080, 0xc3a06860, 0x42805380}},
    {TSR_TYPE_TQ1_0, 53, 0x8c6340240387e325, {0x3f266000, 0x80000000, 0xbf266000, 0xbf266000}},
    {TSR_TYPE_TQ2_0, 65, 0x40426255b2588325, {0xbdeee000, 0xbd6ee000, 0xbdeee000, 0x80000000}},
    {TSR_TYPE_NVFP4, -1, 0x306909b4cb1a2325, {0xbd200000, 0xbe700000, 0xbd200000, 0x3d200000}},
    {TSR_TYPE_MXFP4, -1, 0x45f15ed899762325, {0x00000000, 0x37000000, 0x36c00000, 0xb7000000}},
    {TSR_TYPE_IQ4_NL, 1, 0xb98b3cb222188be5, {0x3a5de000, 0xbb92fe00, 0xbc1cb300, 0x3be63200}},
    {TSR_TYPE_IQ4_XS, 1, 0xf6cf6703c70256e9, {0xc3872b80, 0x43092100, 0xc3ae5980, 0xc314e200}},
