"""The reader of pages itself: what it does, and that it notices what is not true."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import anchors, blocks, links
from tests.docs.running import PageError, Reader


def page_of(tmp_path: Path, text: str) -> Path:
    page = tmp_path / "page.md"
    page.write_text(text.replace("'''", "```"), "utf-8")
    return page


def follow(tmp_path: Path, text: str, **options: object) -> Path:
    """Follows ``text`` (with ''' for the fences); where it was followed."""
    where = tmp_path / "where"
    where.mkdir()
    with Reader(where, **options) as reader:  # type: ignore[arg-type]
        reader.read(blocks(page_of(tmp_path, text)))
    return where


def test_blocks_have_their_language_line_and_section(tmp_path: Path) -> None:
    page = page_of(tmp_path, "# A\n\n'''sh\ntrue\n'''\n\n## B\n\n### C\n- x\n  '''python\n  # a.py\n    b = 1\n  '''\n")
    first, second = blocks(page)
    assert (first.language, first.line, first.text, first.file, first.section) == ("sh", 3, "true\n", None, 1)
    assert (second.language, second.file, second.section) == ("python", "a.py", 2)
    assert second.text == "# a.py\n  b = 1\n"


def test_a_block_that_is_not_closed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page\.md:1"):
        blocks(page_of(tmp_path, "'''sh\ntrue\n"))


def test_links_and_anchors(tmp_path: Path) -> None:
    page = page_of(tmp_path, "# One `two`: three, [four](x.md)\n[a](b.md#c) ![p](p.svg)\n'''sh\necho [no](no.md)\n'''\n")
    assert links(page) == ["x.md", "b.md#c", "p.svg"]
    assert anchors(page) == {"one-two-three-four"}


def test_files_are_written_and_commands_see_them(tmp_path: Path) -> None:
    where = follow(tmp_path, "'''python\n# pack/a.py\nprint('hi')\n'''\n'''sh\npython pack/a.py\n'''\n'''text\nhi\n'''\n")
    assert (where / "pack" / "a.py").read_text("utf-8") == "# pack/a.py\nprint('hi')\n"


def test_variables_and_the_directory_last(tmp_path: Path) -> None:
    follow(tmp_path, "'''sh\nmkdir in\ncd in\nexport WORD='two words'\n'''\n'''sh\necho $WORD; basename $PWD\n'''\n"
                     "'''text\ntwo words\nin\n'''\n'''python\nimport os\nprint(os.environ['WORD'])\n'''\n"
                     "'''text\ntwo words\n'''\n")


def test_python_goes_on_where_it_was(tmp_path: Path) -> None:
    follow(tmp_path, "'''python\nx = 20\n'''\n'''python\nprint(x + 1)\n'''\n'''text\n21\n'''\n")


def test_a_shell_prints_something_else(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"page.md:4: this is not what page.md:1 prints"):
        follow(tmp_path, "'''sh\necho a\n'''\n'''text\nb\n'''\n")


def test_white_space_and_dots_are_no_difference(tmp_path: Path) -> None:
    follow(tmp_path, "'''sh\nprintf 'a\\tb   c-123\\n'\n'''\n'''text\na   b c-...\n'''\n")


def test_python_prints_something_else(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="this is not what"):
        follow(tmp_path, "'''python\nprint(1)\n'''\n'''text\n2\n'''\n")


def test_python_that_raises(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"(?s)page.md:1: the block raises.*ZeroDivisionError"):
        follow(tmp_path, "'''python\n1 / 0\n'''\n")


def test_a_command_that_fails(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="exit status 3"):
        follow(tmp_path, "'''sh\nexit 3\n'''\n")


def test_a_command_in_the_middle_that_fails(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="exit status 1"):
        follow(tmp_path, "'''sh\nfalse\ntrue\n'''\n")


def test_tests_on_a_page_are_run(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"(?s)its tests fail.*1 failed"):
        follow(tmp_path, "'''python\ndef test_it():\n    assert 1 == 2\n'''\n")


@pytest.mark.parametrize(("line", "wrong"), [
    ("pip install 'bothends[postgresql,kavka]'", "no extra 'kavka'"),
    ("make dema", "no such task: dema"),
    ("docker run postgres", "only docker compose"),
])
def test_what_is_not_run_is_checked(tmp_path: Path, line: str, wrong: str) -> None:
    with pytest.raises(PageError, match=re.escape(wrong)):
        follow(tmp_path, f"'''sh\n{line}\n'''\n")


def test_what_would_change_the_machine_is_not_run(tmp_path: Path) -> None:
    follow(tmp_path, "'''sh\npip install 'bothends[kafka,all]'\nmake demo\ndocker compose up -d --wait\n'''\n")


def test_urls_are_replaced_and_put_back(tmp_path: Path) -> None:
    follow(
        tmp_path, "'''sh\necho kafka://localhost:9092 to shop.events, not to my.shop.events\n'''\n"
        "'''text\nkafka://localhost:9092 to shop.events, not to my.shop.events\n'''\n",
        replace={"kafka://localhost:9092": "kafka://127.0.0.1:1", "shop.events": "p-shop.events"}, hide=["p-"],
    )


def test_what_does_not_end_needs_a_block_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="give it a block of its own"):
        follow(tmp_path, "'''sh\ntrue\nbothends run\n'''\n")


def test_what_does_not_end_is_stopped_with_its_section(tmp_path: Path) -> None:
    server = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: (open('ended', 'w').close(), sys.exit()))\n"
    follow(tmp_path, f"## A\n'''python\n# gateway.py\n{server}print('listening', flush=True)\nsignal.pause()\n'''\n"
                     "'''sh\npython gateway.py\n'''\n'''sh\ntest ! -e ended\n'''\n## B\n'''sh\ntest -e ended\n'''\n")


def test_what_should_not_end_and_does(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"(?s)was not ready.*no application is named"):
        follow(tmp_path, "'''sh\nbothends run\n'''\n")


def test_an_unknown_language(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="nobody knows how to run 'rust'"):
        follow(tmp_path, "'''rust\nfn\n'''\n")
