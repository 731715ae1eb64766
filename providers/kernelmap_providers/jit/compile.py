from numba import njit
def jit(f):
    return njit(nogil=True)(f)
