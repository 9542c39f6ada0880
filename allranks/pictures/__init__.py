"""The pictures of the pages: drawn when the book is built, from what runs printed.

A module with the name of a page holds its pictures. Each is a function that takes what
``{picture}`` (book/_ext/runs/picture.py) gives it, such as a recorded output, and
returns a Picture. A title states a claim, so a function refuses numbers that contradict
the title: the page then has to say something else.
"""
