"""An explorable: one state, a sum over it, and three ways to show it.

A subclass lives in ``NAME.py`` beside ``NAME.js``. Its traits are the state. Python is
the truth: ``compute`` turns a state into facts or refuses it; the JavaScript does the
same sums, and a test replays ``cases`` against it.
"""

import html
import json
from typing import Any, ClassVar

import anywidget
import traitlets

from allranks.explorables import bundle
from allranks.pictures import Picture
from allranks.report import RanksError


class Explorable(anywidget.AnyWidget):
    """A widget in a live notebook, a figure with its state on a static page.

    A subclass sets ``name``, its traits, ``compute(**state)`` (a dict of plain values
    with a ``summary``; ValueError with one sentence for what cannot be) and
    ``picture(**state)``. With ``measure()``, readers get a button that runs the real
    thing; it returns a dict with a ``summary``.

    Raises:
        traitlets.TraitError: when set to an impossible state; the old one then stays.
    """

    name: ClassVar[str]
    _css = (bundle.FOLDER / "kit.css").read_text("utf8")

    initial = traitlets.Dict().tag(sync=True)  # what Reset goes back to
    live = traitlets.Bool(False).tag(sync=True)  # whether there is a button to run it
    runs = traitlets.Int(0).tag(sync=True)  # how often it was pressed
    measured = traitlets.Dict(default_value=None, allow_none=True).tag(sync=True)

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            cls._esm = bundle.module(cls.name)

    def __init__(self, **state):
        unknown = set(state) - set(self.state_names())
        if unknown:
            known = ", ".join(self.state_names())
            raise TypeError(f"{self.name} has no {min(unknown)}: it has {known}")
        self._register_validator(_possible, tuple(self.state_names()))
        super().__init__(**state)
        self.initial, self.live = self.state, hasattr(self, "measure")
        self.observe(self._run, "runs")

    @classmethod
    def state_names(cls) -> list[str]:
        """The traits that are its state, in the order of their definition."""
        return [
            name
            for base in reversed(cls.__mro__)
            if issubclass(base, Explorable) and base is not Explorable
            for name, trait in base.__dict__.items()
            if isinstance(trait, traitlets.TraitType) and name[0] != "_"
        ]

    @property
    def state(self) -> dict[str, Any]:
        """Every trait of the state, by name."""
        return {name: getattr(self, name) for name in self.state_names()}

    @property
    def facts(self) -> dict[str, Any]:
        """What follows from the state."""
        return self.compute(**self.state)

    @staticmethod
    def compute(**state) -> dict[str, Any]:
        """Turn a state into facts; a subclass says how."""
        raise NotImplementedError

    @staticmethod
    def picture(**state) -> Picture:
        """Draw a state, for pages without JavaScript and for paper."""
        raise NotImplementedError

    def change(self, **state) -> None:
        """Set several parts of the state at once: only the result must be possible."""
        with self.hold_trait_notifications():
            for name, value in state.items():
                if name not in self.state_names():
                    raise TypeError(f"{self.name} has no {name}")
                setattr(self, name, value)

    def _run(self, change) -> None:
        try:
            self.measured = {**self.measure(), "state": self.state}
        except (RanksError, RuntimeError, ValueError) as error:
            self.measured = {"error": str(error), "state": self.state}

    def figure(self) -> str:
        """HTML with the picture in it, which the page's script brings to life."""
        state, esc = json.dumps(self.state, sort_keys=True), html.escape
        alive = f' data-explorable="{self.name}" data-state="{esc(state)}"'
        return (
            f'<figure class="explorable"{alive}>'
            f'<div class="explorable-still">{self.picture(**self.state)._repr_html_()}'
            f"<p>{esc(self.facts['summary'])}</p></div></figure>"
        )

    def __repr__(self) -> str:
        return f"{self.picture(**self.state)!r}\n{self.facts['summary']}"

    def _repr_mimebundle_(self, **kwargs):
        data = super()._repr_mimebundle_(**kwargs)
        data, metadata = data if isinstance(data, tuple) else (data, {})
        data["text/plain"], data["text/html"] = repr(self), self.figure()
        return data, metadata


def _possible(widget: Explorable, proposal):
    """Refuse a value that makes the state impossible: traitlets then restores it."""
    value, name = proposal["value"], proposal["trait"].name
    try:
        widget.compute(**{**widget.state, name: value})
    except (TypeError, ValueError) as error:
        raise traitlets.TraitError(str(error)) from None
    return value
