"""Ask before a result is shown: ``**Predict**`` in a notebook's text.

``forms`` finds the questions of a notebook, and in JupyterLab puts ``lab.js`` into the
output of the cells that answer them. On the book's pages, book/_ext/chapters/predict.py
asks. Both say the same of a guess, by ``verdict.js``.
"""
