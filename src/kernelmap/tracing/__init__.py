"""Looking at running kernels: shadows beside production, captured calls and their replay, bisection of two locks."""
