"""Our two themes, beside Textual's own."""

from textual.theme import Theme

DARK = Theme(
    name="localmoe-dark",
    primary="#7aa2c8",
    secondary="#8f9bb3",
    accent="#e0a458",
    warning="#e0a458",
    error="#e06c75",
    success="#8fbf7f",
    foreground="#d5d9e0",
    background="#0e1116",
    surface="#151a21",
    panel="#1c222b",
    boost="#20262f",
    dark=True,
    variables={"input-selection-background": "#7aa2c8 35%"},
)

LIGHT = Theme(
    name="localmoe-light",
    primary="#2f6690",
    secondary="#5c6b80",
    accent="#a8651a",
    warning="#a8651a",
    error="#b3363f",
    success="#3f7d3a",
    foreground="#22272e",
    background="#fbfaf7",
    surface="#f3f1ec",
    panel="#e9e6df",
    boost="#e3dfd6",
    dark=False,
    variables={"input-selection-background": "#2f6690 25%"},
)

THEMES = (DARK, LIGHT)
