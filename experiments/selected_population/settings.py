"""The settings of `selected_population`."""

from typing import Annotated

from pydantic import Field, model_validator

from truncgauss.runs.config import (
    Chains,
    Experiment,
    Gaussian,
    Limits,
    Model,
    Positive,
    Vector,
    problem,
)


class PopulationPrior(Model):
    """The prior of a population's mean, standard deviations and correlation."""

    loc: Vector
    """Its mean is normal about this one,"""
    loc_scale: tuple[Positive, ...]
    """with these standard deviations;"""
    scale: tuple[Positive, ...]
    """its standard deviations are half normal with these;"""
    concentration: Positive
    """its correlation has an LKJ distribution."""


class Population(Model):
    """A Gaussian in the plane, of which every field shows what lies inside its limits."""

    names: tuple[str, ...]
    """Of the two coordinates, with their units."""
    gaussian: Gaussian
    fields: Annotated[tuple[Limits, ...], Field(min_length=1)]
    num_objects: Annotated[int, Field(ge=3)]
    """Seen in each field."""
    prior: PopulationPrior

    @model_validator(mode="after")
    def _is_in_the_plane(self) -> "Population":
        vectors = {("names",): self.names, ("gaussian", "loc"): self.gaussian.loc}
        vectors |= {("fields", i, "low"): box.low for i, box in enumerate(self.fields)}
        for name in ("loc", "loc_scale", "scale"):
            vectors["prior", name] = getattr(self.prior, name)
        for where, vector in vectors.items():
            if len(vector) != 2:
                raise problem("must have two entries, one a coordinate", *where, got=vector)
        return self


class Settings(Experiment):
    """A population behind selected objects: `numpyro.factor` against the truncated distribution."""

    population: Population
    chains: Chains
