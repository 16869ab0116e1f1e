"""Certificates: intervals that contain what the exact GP would predict.

The data flow, module by module:

- ``models``: from a fitted model and its training rows to one problem per member;
- ``problem``: the problem, the effort that may be spent on it, and the bounds that were found;
- ``kernel_matrix``, ``lowrank``, ``krylov``: the exact kernel matrix, the part of it that a pivoted Cholesky factor
  knows, and the iterative methods that multiply with it;
- ``kernel_error``, ``evidence``, ``predictions``: the bounds;
- ``certify_problem``: all bounds for one problem; ``certify_model``: `certify`, for a whole model;
- ``certificate``: `Interval`, `Certificate`, and their text.
"""

from prismgp.certificates.certificate import MEMBER_HEADER, Certificate, Interval, certificate_lines, member_rows
from prismgp.certificates.certify_model import certify
from prismgp.certificates.models import spectral_part
from prismgp.certificates.problem import PARTS

__all__ = [
    "MEMBER_HEADER",
    "PARTS",
    "Certificate",
    "Interval",
    "certificate_lines",
    "certify",
    "member_rows",
    "spectral_part",
]
