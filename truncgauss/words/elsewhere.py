"""Words of other packages, of which only wrong calls have use."""

# What other packages call an argument, a function or a property of a fit, without capitals, and
# what it is called here: the first of these that there is counts.
LOW, HIGH = ("low", "censored_low", "lower"), ("high", "censored_high", "upper")
ELSEWHERE: dict[str, tuple[str, ...]] = {
    word: ours
    for words, ours in {
        "low lower left ll lod lower_limit a": LOW,
        "high upper right ul upper_limit b": HIGH,
        "mean mu": ("loc", "truncated_moments"),
        "cov sigma sd std": ("covariance", "covariance_matrix", "scale"),
        "key seed rng random_state prngkey": ("key",),
        "n size shape sample_shape": ("num_samples",),
        "alpha conf_level confidence_level": ("level",),
        "y formula": ("outcome",),
        "x": ("design", "data"),
        "nu dof": ("df",),
        "n_components k": ("num_components",),
        "groups random": ("cluster",),
        "pmvnorm pmvt mvncdf mvn_cdf cdf logcdf probability mvn": ("log_probability",),
        "qmvnorm qmvt ppf": ("quantile",),
        "rtmvnorm rtmvt rtruncnorm sample samples rvs": ("truncated_samples",),
        "mtmvnorm moments": ("truncated_moments",),
        "dtmvnorm truncated_mvn": ("TruncatedMultivariateNormal",),
        "mvtnorm": ("log_probability",),
        "fit_em em mclust": ("fit_mixture",),
        "means": ("locs",),
        "covs": ("covariances",),
        "truncnorm": ("TruncatedNormal", "truncated_log_density"),
        "truncatedgaussian truncated_gaussian mvtruncnorm truncatedmvn": (
            "TruncatedMultivariateNormal",
        ),
        "multivariate_normal_cdf mvnun mvn_logcdf": ("log_probability",),
        "mills inverse_mills mills_ratio imr": ("hazard",),
        "residuals resid": ("qq", "quantile_residuals"),
        "forest coefplot": ("simultaneous",),
        "tobit censreg truncreg polr probit oprobit ols lm": ("fit_regression",),
        "fit_tobit fit_probit fit_censored linear_regression": ("fit_regression",),
        "sphere hypersphere": ("Ball",),
        "interval rectangle cube hypercube": ("Box",),
        "halfspace polytope": ("Polyhedron",),
        "log_mvn mvn_prob mvnprob log_prob logprob log_cdf": ("log_probability", "log_prob"),
        "heckman heckit selection heckprobit fit_heckman": ("fit_selection",),
        "lmer lmec mixed mixedlm clmm xttobit": ("fit_clusters",),
        "gaussianmixture gmm": ("fit_mixture",),
        "glht dunnett tukey": ("simultaneous",),
        "polychor tetrachoric hetcor": ("polychoric", "polychoric_matrix"),
        "params coef coef_": ("estimates",),
        "conf_int confint": ("wald",),
        "bse se stderr std_errors": ("standard_errors",),
        "vcov cov_params": ("parameter_covariance",),
        "llf loglik loglike": ("log_likelihood",),
        "nobs n_obs": ("num_rows",),
        "fittedvalues fitted": ("predict",),
        "ranef random_effects blup": ("effects",),
        "response": ("mean",),
        "type": ("kind",),
        "both.tails two-sided two_sided twosided two.sided": ("both", "two-sided"),
        "robust hc0 hc1 hc3 cluster clustered": ("sandwich",),
        "oim hessian nonrobust": ("observed",),
        "unstructured": ("full",),
    }.items()
    for word in words.split()
}

P_VALUE = (
    "A p-value is tg.likelihood_ratio(smaller, fit).p_value, where smaller is the fit without what "
    "is tested, or Wald's, 2 * scipy.stats.norm.sf(abs(fit.estimates / fit.errors))."
)
# What others call something that a fit with these attributes has otherwise, and the answer.
OF_FITS: list[tuple[str, str, str]] = [
    ("resid residuals", "effects", 'They are effects("residual").'),
    ("resid residuals", "", "They are tg.quantile_residuals(fit, key)."),
    (
        "t_test wald_test f_test z_test pvalue pvalues p_value p_values pval tvalues zvalues "
        "t_values z_values test tests",
        "",
        P_VALUE,
    ),
    ("sample rvs simulate draw draws", "completed", "Draws are sample(key, n)."),
    (
        "sample rvs simulate draw draws",
        "loc covariance_matrix",
        "Draws are tg.truncated_samples(key, fit.loc, fit.covariance_matrix, region, n), or "
        "without a region jax.random.multivariate_normal(key, fit.loc, fit.covariance_matrix, "
        "(n,)).",
    ),
    (
        "sample rvs simulate draw draws",
        "predict scale",
        "Draws of an outcome are fit.predict(table).value plus fit.scale times standard normal "
        "ones.",
    ),
    ("mean_ means_ mu mean means centers cluster_centers_ centroids", "locs", "They are `locs`."),
    ("mean_ means_ mu mean means", "loc", "It is `loc`."),
    ("covariances_ covs sigmas", "covariances", "They are `covariances`."),
    (
        "covariance cov covariance_ covariances_ Sigma",
        "covariance_matrix",
        "It is `covariance_matrix`.",
    ),
    ("weights_ pi probs mixing", "locs weights", "They are `weights`."),
    (
        "labels_ labels predict_proba posterior clusters membership memberships",
        "responsibilities",
        "Probabilities of components are `responsibilities`, of which "
        "responsibilities.argmax(-1) are labels; of other rows predict(observations) has them.",
    ),
    (
        "score score_samples",
        "responsibilities",
        "It is log_likelihood, of the rows of the fit; of others "
        "tg.mixtures.mixture_log_likelihood(observations, fit.weights, fit.locs, "
        "fit.covariances).",
    ),
    ("correlation corr r rho_ correlation_", "rho", "It is `rho`."),
    ("correlation corr", "covariance_matrix", 'They are derived("correlation").'),
    (
        "effects effect marginal_effects get_margeff dydx avg_slopes slopes",
        "margins",
        "Marginal effects are margins().",
    ),
    (
        "to_csv to_excel to_dict to_html to_latex as_latex as_csv",
        "",
        'Tables are those of to_frame(), such as fit.to_frame().to_csv("fit.csv").',
    ),
    ("x", "", "The estimates are `estimates`."),
    ("success", "", "It is `converged`, and `reason` says why."),
    ("rsquared r2 r_squared rsquared_adj R2", "aic", "There is none; compare fits by their aic."),
]

# What others call an argument that a function with these arguments has not, and what to write.
INSTEAD: list[tuple[str, set[str], str]] = [
    (
        "tol",
        {"method", "region"},
        "Accuracy is for the method: method=tg.Automatic(rtol=1e-5).",
    ),
    (
        "rtol releps abseps maxpts num_points",
        {"method"},
        "Accuracy is for the method: method=tg.Automatic(rtol=1e-5).",
    ),
    (
        "num_samples n_samples nsim n_draws",
        {"method", "region"},
        "Draws are for the method: method=tg.SoftMonteCarlo(num_samples), or "
        "tg.Separation(num_points).",
    ),
    (
        "seed rng random_state prngkey rng_key",
        {"key"},
        "It is key=, a random key such as jax.random.key(0).",
    ),
    (
        "weights noise",
        {"observations"},
        "They belong to the observations: tg.Observations.exact(rows, {word}=...), or "
        "tg.Observations.from_table.",
    ),
    ("kind sides tail", {"contrasts", "alternative"}, "It is alternative=."),
    (
        "nu dof df",
        {"covariance_matrix", "scale_tril"},
        "Degrees of freedom come first: tg.TruncatedMultivariateStudentT(df, loc, ...).",
    ),
    ("probability prob p", {"level", "least"}, "The least probability is least=."),
    ("algorithm", {"method", "key"}, "It is method=, such as tg.Automatic() or tg.Exact()."),
    (
        "x value values q",
        {"loc", "covariance", "region"},
        "The density at {word} is tg.TruncatedMultivariateNormal(loc, covariance, "
        "region=region).log_prob({word}).",
    ),
    ("p prob q", {"probability", "tail"}, "It is probability=."),
    (
        "threshold thresh u",
        {"level", "least"},
        "It is level=, which may be a number or one a place.",
    ),
    (
        "alpha conf_level",
        {"level", "least"},
        "The set of a probability of error alpha is that of the result, .inside(alpha).",
    ),
    ("bounds limits", {"low", "high"}, "Bounds are low and high, for each column one of each."),
    ("hi hig up", {"low", "high"}, "It is high=."),
    ("lo", {"low", "high"}, "It is low=."),
    (
        "a b",
        {"low", "high", "scale"},
        "SciPy's a and b are in units of scale: low=loc + a * scale, high=loc + b * scale.",
    ),
    ("region", {"low", "high", "scale"}, "The interval is low=..., high=..."),
    ("A b", {"matrix", "low", "high"}, "The constraints are low <= matrix @ x <= high."),
    ("loc mean mu centre", {"center"}, "It is center=."),
    ("r", {"radius"}, "It is radius=."),
    ("cov* scale sigma", {"shape_matrix"}, "It is shape_matrix=."),
    ("length_scale lengthscale ell", {"scale", "smoothness"}, "It is scale=."),
    ("nu", {"smoothness"}, "It is smoothness=."),
    ("rho phi", {"transition"}, "It is transition=, one for each step."),
    ("sigma", {"transition"}, "It is noise_scale=, and initial_scale= at the start."),
    ("rho", {"time"}, "The correlation is estimated."),
    (
        "steepness width",
        {"edge"},
        "It belongs to the edge: edge=tg.Tanh({word}) or another of them.",
    ),
    ("num_samples n n_samples", {"num_points"}, "It is num_points=."),
    ("num_samples n n_samples num_points", {"num_particles"}, "It is num_particles=."),
    (
        "probs means covs pi",
        {"weights", "locs"},
        "Its parameters are weights, locs and covariances.",
    ),
    (
        "n cov data",
        {"num_rows", "scatter"},
        "Its arguments are num_rows, the mean and scatter=num_rows * numpy.cov(rows.T, ddof=0); of "
        "rows it is tg.Statistics.from_rows(rows).",
    ),
    (
        "dydx",
        {"variables"},
        "Effects are on all covariates, as of dydx(*); of some write variables=[...].",
    ),
    ("interval", {"kind", "level"}, "Intervals are in the result, as low and high, at level=."),
    (
        "control ref reference",
        {"contrasts"},
        "The control is the first group: put it first in names=[...].",
    ),
    (
        "censored_* truncated_*",
        {"observations"},
        "Bounds are those of the observations: tg.Observations.from_table(table, columns, "
        "{word}=...), or tg.Observations(low, high).",
    ),
    (
        "low high lower upper",
        {"observations"},
        "Bounds are those of the observations: tg.Observations.from_table(table, columns, "
        "censored_low=...), also censored_high, truncated_low and truncated_high, or "
        "tg.Observations(low, high).",
    ),
    (
        "region",
        {"observations"},
        "A region is that of the observations: tg.Observations.exact(rows, region=region).",
    ),
    (
        "low high lower upper",
        {"nan_is_missing"},
        "Where nothing beyond a bound was observed, it is region=tg.Box(low, high); what is known "
        "to an interval alone is tg.Observations(lower, upper).",
    ),
    ("index", {"left_censored"}, "Labels are those of the table: table.set_index({word})."),
    (
        "censored",
        {"left_censored"},
        "A column that marks censored values is left_censored=(column, mark).",
    ),
    (
        "cens censored event status delta",
        {"censored_low", "outcome"},
        "Of rows that are censored give the bound: censored_high=numpy.where(is_censored, outcome, "
        "numpy.inf), or censored_low likewise with -numpy.inf.",
    ),
    (
        "robust",
        {"information"},
        'Robust standard errors are information="sandwich", with cluster= if rows depend.',
    ),
    (
        "family link",
        {"outcome"},
        "The model is Gaussian; a probit is that of outcome=tg.Ordinal(values).",
    ),
    ("endog", {"outcome"}, "It is outcome=, and exog is design=."),
    ("exog", {"design"}, "It is design=."),
    (
        "random",
        {"cluster", "terms"},
        'Random effects are terms=(tg.RandomEffects("1 + x"), tg.Residual()).',
    ),
    ("id subject subject_id patient", {"cluster", "terms"}, "It is cluster=."),
    ("max_iter maxiter n_iter", {"num_steps"}, "It is num_steps=."),
    (
        "epochs num_epochs n_epochs iterations num_iterations max_steps",
        {"optimizer"},
        "It is num_steps=, one step for each value of the objective.",
    ),
    (
        "lr learning_rate",
        {"optimizer"},
        "It belongs to the optimiser: optimizer=optax.adam({word}).",
    ),
    ("selection", {"selected"}, "It is selected=, 0 and 1 of each row or a formula, s ~ x + z."),
    ("verbose disp", {"progress"}, "Without a bar it is progress=False."),
    (
        "bounds",
        {"constraints"},
        "Bounds are constraints={{name: tg.fitting.Positive()}}, or others of tg.fitting.",
    ),
    (
        "args data",
        {"objective", "start"},
        "The objective is a function of the parameters alone: lambda params: "
        "objective(params, data).",
    ),
    (
        "callback",
        {"objective", "start"},
        "There is none: losses are in the result's loss_trace, and a loop of your own over "
        "tg.progress(range(n)) with optax can do anything between steps.",
    ),
    ("bounds", {"objective", "start"}, "Bounds are constraints={{name: tg.fitting.Positive()}}."),
    (
        "cov_type vcov se_type",
        {"information"},
        'Robust standard errors are information="sandwich", with cluster= if rows depend.',
    ),
    (
        "method",
        {"selected", "outcome"},
        "The fit is by maximum likelihood; Heckman's two steps are fit.two_step.",
    ),
    (
        "method",
        {"x", "correction"},
        "The fit is by maximum likelihood; with thresholds of the margins it is fit.two_step.",
    ),
    (
        "reml REML",
        {"cluster", "terms"},
        "The fit is by maximum likelihood; there is no restricted one (REML).",
    ),
    (
        "prior",
        {"outcome"},
        "There is none; tg.log_likelihood of the observations is a function for "
        "numpyro.factor, beside any prior.",
    ),
    ("alpha conf_level", {"level"}, "It is level=, 0.95 for alpha=0.05."),
    ("method solver", {"optimizer"}, "It is optimizer=, one of optax, such as optax.adam(1e-2)."),
]
