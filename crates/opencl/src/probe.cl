// What every kernel relies on, one operation at a time. The host computes the same.
#pragma OPENCL FP_CONTRACT OFF
#ifdef WITH_F64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#define OPERANDS(T) global const T *a, global const T *b, global const T *c, global T *out
#define ITEM const size_t i = get_global_id(0)

kernel void fused(OPERANDS(float)) { ITEM; out[i] = fma(a[i], b[i], c[i]); }

// In one expression and over two statements: a compiler may join only the former.
kernel void expression(OPERANDS(float)) { ITEM; out[i] = a[i] * b[i] + c[i]; }
kernel void statements(OPERANDS(float)) { ITEM; const float product = a[i] * b[i]; out[i] = product + c[i]; }

kernel void divided(OPERANDS(float)) { ITEM; out[i] = a[i] / b[i]; }
kernel void root(OPERANDS(float)) { ITEM; out[i] = sqrt(a[i]); }

// Whole numbers to floats, which rounds, and back, which does not.
kernel void rounded(OPERANDS(float)) { ITEM; out[i] = (float)as_int(a[i]); }
kernel void truncated(OPERANDS(float)) { ITEM; out[i] = as_float((int)((float)(as_int(a[i]) >> 8) * 0.125f)); }

#ifdef WITH_F64
kernel void fused_double(OPERANDS(double)) { ITEM; out[i] = fma(a[i], b[i], c[i]); }
kernel void expression_double(OPERANDS(double)) { ITEM; out[i] = a[i] * b[i] + c[i]; }
#endif
