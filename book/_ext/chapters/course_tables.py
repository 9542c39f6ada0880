"""The tables of the course sheet, built once all pages have been read."""

from collections.abc import Sequence

from docutils import nodes
from sphinx.application import Sphinx

from book._ext.chapters import course_data
from book._ext.chapters.course_data import Chapter


class course_part(nodes.Element, nodes.General):
    """A placeholder for a table that is built once all pages have been read."""


class progress_cell(nodes.inline):
    """A total; the page's script adds how much of it the reader has done."""


class Builder:
    """Fills the placeholders of one page."""

    def __init__(self, app: Sphinx, docname: str) -> None:
        self.link = lambda name: app.builder.get_relative_uri(docname, name)
        self.labels = app.env.get_domain("std").labels
        self.chapters = course_data.read_once(app)

    def build(self, place: course_part) -> list[nodes.Node]:
        """Build what belongs in a placeholder."""
        if place["what"] == "progress":
            return [self.progress()]
        if place["what"] == "course-sheet":
            return self.sheet(self.chapters[place["chapter"]])
        chapters = self.first(place.get("slots", 0))
        listed = place.get("parts") or ", ".join(course_data.PARTS)
        parts = [part.strip() for part in listed.split(",")]
        if wrong := [part for part in parts if part not in course_data.PARTS]:
            raise ValueError(f"{wrong[0]} is none of {', '.join(course_data.PARTS)}")
        if "sessions" in place:
            return self.sessions(chapters, parts, place["sessions"])
        return self.plan(chapters, parts, place.get("minutes", 0))

    def first(self, slots: int) -> dict[str, Chapter]:
        """Return the chapters of a short course in their order; 0 means all."""
        if not slots:
            return self.chapters
        found = {}
        for slot in range(1, slots + 1):
            names = [name for name, one in self.chapters.items() if one.slot == slot]
            if len(names) != 1:
                who = " and ".join(names) or "no chapter"
                raise ValueError(f"{who}: one chapter should have slot {slot}")
            found[names[0]] = self.chapters[names[0]]
        return found

    def page(self, chapter: Chapter, text: str = "") -> nodes.reference:
        """Return a link to a chapter's page."""
        uri, title = self.link(f"book/{chapter.place.name}"), chapter.place.title
        text = text or f"{chapter.place.number}. {title}"
        return nodes.reference("", text, refuri=uri, internal=True)

    def pages(self, chapter: Chapter) -> list[nodes.reference]:
        """Return links to a chapter's page and to its section pages."""
        found = [self.page(chapter, chapter.place.title)]
        for name, page in zip(chapter.place.pages[1:], chapter.pages[1:], strict=True):
            title, uri = page.next_node(nodes.title).astext(), self.link(f"book/{name}")
            found.append(nodes.reference("", title, refuri=uri, internal=True))
        return found

    def sheet(self, chapter: Chapter) -> list[nodes.Node]:
        """Build a chapter's goals, its questions, and a table of facts."""
        minutes, place = chapter.minutes, chapter.place
        if silent := [name for name, goal in chapter.goals.items() if goal is None]:
            raise ValueError(f'{silent[0]} does not say "After this page"')
        parts = ", ".join(f"{n} for {part}" for part, n in chapter.reading.items())
        before = [self.page(self.chapters[name]) for name in place.builds_on]
        where = "pages" if place.sections else "page"
        kinds = f"{len(chapter.quizzes)} on the {where}, {minutes['quizzes']} min"
        read = f"{minutes['page']} min ({parts})"
        uri = self.link(f"notebooks/{place.name}")
        notebook = nodes.reference("", place.name, refuri=uri, internal=True)
        rows = [
            (
                "Know before",
                commas(before)
                if before
                else [nodes.Text("how to train on one device")],
            ),
            ("Page", [*commas(self.pages(chapter)), nodes.Text(f", {read}")]),
            ("Quizzes", [nodes.Text(kinds)]),
            ("Notebook", [notebook, nodes.Text(f", {minutes['notebook']} min")]),
            ("Exercises", exercise_lines(chapter)),
            ("Scripts", commas([nodes.literal("", name) for name in chapter.scripts])),
        ]
        body = [[[nodes.strong("", head)], cell] for head, cell in rows]
        asked = nodes.bullet_list("", bullet="-")
        for question in chapter.questions:
            asked += nodes.list_item("", nodes.paragraph("", question))
        goals = [plain(goal, self.labels) for goal in chapter.goals.values()]
        return [*goals, asked, table([], body, (18, 82))]

    def plan(self, chapters: dict, parts: list[str], limit: int) -> list[nodes.Node]:
        """Build a row for each chapter, the sum, and how much time is left."""
        heads = ["", *(course_data.PARTS[part] for part in parts), "together"]
        times = [[one.minutes[part] for part in parts] for one in chapters.values()]
        total = sum(map(sum, times))
        if limit and total > limit:
            raise ValueError(
                f"{', '.join(chapters)} need {total} minutes, more than {limit}"
            )
        rows = [
            [[self.page(one)], *cells([*row, sum(row)])]
            for one, row in zip(chapters.values(), times, strict=True)
        ]
        columns = [sum(column) for column in zip(*times, strict=True)]
        if len(rows) > 1:
            rows.append([[nodes.strong("", "All")], *cells([*columns, total])])
        widths = (40, *[60 // (len(heads) - 1)] * (len(heads) - 1))
        built = table([[nodes.Text(head)] for head in heads], rows, widths)
        left = f" of {limit}: {limit - total} are left for questions and breaks"
        hours = f", about {round(total / 60)} hours"
        note = f"Minutes: {total}{left if limit else hours}."
        return [built, nodes.paragraph("", note)]

    def sessions(
        self, chapters: dict, parts: list[str], length: int
    ) -> list[nodes.Node]:
        """Build a numbered row for each session."""
        steps = [step for one in chapters.values() for step in steps_of(one, parts)]
        rows, shared = [], course_data.sessions(steps, length)
        for number, session in enumerate(shared, start=1):
            content, last = [], None
            for chapter, what, minutes in session:
                if chapter is not last:
                    content += [nodes.Text("; " if content else ""), self.page(chapter)]
                    content.append(nodes.Text(": "))
                else:
                    content.append(nodes.Text(", "))
                content.append(nodes.Text(f"{what} ({minutes})"))
                last = chapter
            used = sum(minutes for *_, minutes in session)
            rows.append([[nodes.Text(str(number))], content, [nodes.Text(str(used))]])
        heads = [[nodes.Text(text)] for text in ("", "what", "min")]
        return [table(heads, rows, (8, 80, 12))]

    def progress(self) -> nodes.container:
        """Build each chapter's totals, which the page's script turns into "n of m"."""
        rows = []
        for one in self.chapters.values():
            names = {
                "quiz": [box["quiz"] for box in one.quizzes],
                "exercise": [exercise.name for exercise in one.exercises],
            }
            rows.append([[self.page(one)]])
            for kind, ids in names.items():
                text, what = str(len(ids)), " ".join([kind, *ids])
                rows[-1].append([progress_cell(text, text, what=what)])
        heads = [[nodes.Text(text)] for text in ("chapter", "quizzes", "exercises")]
        built = table(heads, rows, (50, 25, 25))
        return nodes.container("", built, classes=["progress-box"])


def steps_of(chapter: Chapter, parts: list[str]) -> list[tuple]:
    """List (chapter, what to do, minutes) for each part, and for each exercise."""
    steps = []
    for part in parts:
        if part == "exercises":
            steps += [
                (chapter, f"exercise {one.number}", one.minutes)
                for one in chapter.exercises
            ]
        else:
            steps.append((chapter, course_data.PARTS[part], chapter.minutes[part]))
    return steps


def plain(goals: nodes.paragraph, labels: dict) -> nodes.paragraph:
    """Copy a page's sentence, with the title of its target in place of each link."""
    copy = goals.deepcopy()
    for node in [n for n in copy.findall(nodes.Element) if "refdoc" in n]:
        title = labels.get(node["reftarget"], (node.astext(),))[-1]
        node.parent.replace(node, nodes.Text(title))
    return copy


def exercise_lines(chapter: Chapter) -> list[nodes.Node]:
    """List the exercises with their minutes."""
    if not chapter.exercises:
        return [nodes.Text("none yet")]
    texts = [
        f"{one.number} {one.title} ({one.minutes} min{one.level and f', {one.level}'})"
        for one in chapter.exercises
    ]
    return [
        nodes.Text(f"{'; '.join(texts)}. Together {chapter.minutes['exercises']} min")
    ]


def commas(content: list[nodes.Node]) -> list[nodes.Node]:
    """Put commas between nodes."""
    return [part for one in content for part in (nodes.Text(", "), one)][1:]


def cells(numbers: list[int]) -> list[list[nodes.Node]]:
    """Build a cell for each number."""
    return [[nodes.Text(str(number))] for number in numbers]


def table(heads: list, rows: list, widths: Sequence[int]) -> nodes.table:
    """Build a table of cells with inline content."""
    group = nodes.tgroup(cols=len(widths))
    for width in widths:
        group += nodes.colspec(colwidth=width)
    if heads:
        group += nodes.thead("", row(heads))
    group += nodes.tbody("", *map(row, rows))
    return nodes.table("", group, classes=["course-table", "colwidths-given"])


def row(content: list) -> nodes.row:
    """Build a row of a table."""
    entries = [nodes.entry("", nodes.paragraph("", "", *cell)) for cell in content]
    return nodes.row("", *entries)
