"""The paper's experiments, comparisons with other libraries, and benchmarks; not installed with the library.

    python -m experiments --help

``plan`` says what a study consists of, ``jobs`` carries it out, ``results`` stores it, ``page`` shows it. The studies
themselves are ``paper`` (the paper's experiments), ``comparison`` (other libraries), ``benchmarks`` and ``demo``.
"""
