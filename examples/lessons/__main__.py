"""``python -m examples.lessons [LESSON ...]``: tells the lessons, all of them or those named."""

import sys

from examples.lessons.lessons import LESSONS


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in LESSONS]
    if unknown:
        print(f"no lesson {', '.join(unknown)}; there are: {', '.join(LESSONS)}", file=sys.stderr)
        return 2
    for name in names or LESSONS:
        lesson = LESSONS[name]
        print(f"{name}: {lesson.__doc__}")
        for line in lesson():
            print(f"    {line}")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
