// What -Werror=psabi must refuse: the meaning of this signature depends on -mavx.
typedef float Vector __attribute__((vector_size(32)));

Vector twice(Vector x);
Vector twice(Vector x) { return x + x; }

Vector four_times(Vector x);
Vector four_times(Vector x) { return twice(twice(x)); }
