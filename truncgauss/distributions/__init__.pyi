from truncgauss.distributions.censored import Censored as Censored
from truncgauss.distributions.multivariate_normal import (
    TruncatedMultivariateNormal as TruncatedMultivariateNormal,
)
from truncgauss.distributions.multivariate_student_t import (
    TruncatedMultivariateStudentT as TruncatedMultivariateStudentT,
)
from truncgauss.distributions.univariate import TruncatedNormal as TruncatedNormal
