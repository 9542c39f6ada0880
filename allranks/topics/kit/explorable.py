"""An explorable: a state, the facts that follow from it, and three ways to show them.

A subclass is in a topic's ``figure.py`` beside ``figure.js``, and its traits are the
state. Python defines the facts: ``compute`` turns a state into facts or refuses it. The
JavaScript computes the same, and a test replays ``cases`` in both languages.
"""

import html
import json
from typing import Any, ClassVar

import anywidget
import traitlets

from allranks.base.picture import Picture
from allranks.topics.kit import bundle


class Explorable(anywidget.AnyWidget):
    """A widget in a live notebook, or a figure with its state on a static page.

    A subclass defines ``name``, its traits, ``picture(**state)`` and
    ``compute(**state)``, which returns a dict of plain values with a ``summary``, and
    raises ValueError with one sentence if the state is impossible. If it also has
    ``measure()``, which returns a dict with a ``summary``, readers get a button that
    runs the real thing.

    Raises:
        traitlets.TraitError: if set to an impossible state; the old state then stays.
    """

    name: ClassVar[str]
    _css = (bundle.KIT / "kit.css").read_text("utf8")

    initial = traitlets.Dict().tag(sync=True)  # the state that Reset restores
    live = traitlets.Bool(False).tag(sync=True)  # whether there is a button to run it
    runs = traitlets.Int(0).tag(sync=True)  # how often that button was pressed
    measured = traitlets.Dict(default_value=None, allow_none=True).tag(sync=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            cls._esm = bundle.module(cls.name)

    def __init__(self, **state: Any) -> None:
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
        """List the traits that form its state, in the order of their definition."""
        return [
            name
            for base in reversed(cls.__mro__)
            if issubclass(base, Explorable) and base is not Explorable
            for name, trait in base.__dict__.items()
            if isinstance(trait, traitlets.TraitType) and name[0] != "_"
        ]

    @property
    def state(self) -> dict[str, Any]:
        """Return the value of each trait of the state, by name."""
        return {name: getattr(self, name) for name in self.state_names()}

    @property
    def facts(self) -> dict[str, Any]:
        """Return what follows from the state."""
        return self.compute(**self.state)

    @staticmethod
    def compute(**state: Any) -> dict[str, Any]:
        """Turn a state into facts; a subclass defines how."""
        raise NotImplementedError

    @staticmethod
    def picture(**state: Any) -> Picture:
        """Draw a state, for pages without JavaScript and for paper."""
        raise NotImplementedError

    def change(self, **state: Any) -> None:
        """Set several parts of the state at once; only the result has to be possible.

        Raises:
            TypeError: if there is no such part.
            traitlets.TraitError: if the new state is impossible.
        """
        with self.hold_trait_notifications():
            for name, value in state.items():
                if name not in self.state_names():
                    raise TypeError(f"{self.name} has no {name}")
                setattr(self, name, value)

    def _run(self, change: object) -> None:
        """Measure when the button is pressed; an error is shown, not raised.

        The view says "asked" until Python says "begun", because a busy kernel is late.
        """
        self.measured = {"running": "begun", "summary": "running …"}
        try:
            self.measured = {**self.measure(), "state": self.state}
        except KeyboardInterrupt:
            self.measured = {"error": "stopped", "state": self.state}
        except Exception as error:
            words = str(error) or type(error).__name__
            self.measured = {"error": words, "state": self.state}

    def figure(self) -> str:
        """Return HTML with the picture, which the page's script brings to life."""
        state, esc = json.dumps(self.state, sort_keys=True), html.escape
        alive = f' data-explorable="{self.name}" data-state="{esc(state)}"'
        return (
            f'<figure class="explorable"{alive}>'
            f'<div class="explorable-still">{self.picture(**self.state)._repr_html_()}'
            f"<p>{esc(self.facts['summary'])}</p></div></figure>"
        )

    def __repr__(self) -> str:
        return f"{self.picture(**self.state)!r}\n{self.facts['summary']}"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict]:
        data = super()._repr_mimebundle_(**kwargs)
        data, metadata = data if isinstance(data, tuple) else (data, {})
        data["text/plain"], data["text/html"] = repr(self), self.figure()
        return data, metadata


def _possible(widget: Explorable, proposal: traitlets.Bunch) -> Any:
    """Refuse a value that makes the state impossible, so that traitlets restores it."""
    value, name = proposal["value"], proposal["trait"].name
    try:
        widget.compute(**{**widget.state, name: value})
    except (TypeError, ValueError) as error:
        raise traitlets.TraitError(str(error)) from None
    return value
