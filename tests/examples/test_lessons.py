"""Every trace of the tick shop, line by line."""

import subprocess
import sys
from pathlib import Path

import pytest

from bothends.testing import Scenario
from examples.lessons import lessons
from examples.lessons.calling import CallingShop, MailIsDown
from examples.lessons.events import ORDER_1001, ORDER_1002, OrderCancelled, OrderPaid
from examples.lessons.shop import make_shop

ROOT = Path(__file__).parents[2]


def test_calling_one_after_another_waits_34_ticks() -> None:
    assert CallingShop().checkout(ORDER_1001) == 34


def test_calling_leaves_half_an_order_behind_when_mail_fails() -> None:
    shop = CallingShop(mail_fails=1)
    with pytest.raises(MailIsDown):
        shop.checkout(ORDER_1002)
    assert (shop.charged, shop.reserved, shop.mailed, shop.booked) == (["1002"], ["1002"], [], [])
    assert shop.stock == 9


def test_the_lesson_on_calling_tells_both() -> None:
    assert lessons.calling() == [
        "order 1001 waited 34 ticks",
        "order 1002 was charged and reserved; the customer sees: order 1002: no mail could be sent",
    ]


def test_publishing_waits_2_ticks_and_mail_that_fails_keeps_its_own_head_only() -> None:
    assert lessons.publishing() == [
        "warehouse 1 processed (8 left)",
        "mail 1 parked",
        "ledger 1 processed",
        "warehouse 2 processed (7 left)",
        "mail 1 processed",
        "ledger 2 processed",
        "mail 2 processed",
        "each order waited 2 ticks instead of 34",
    ]


def test_a_naive_warehouse_subtracts_twice() -> None:
    told = lessons.naive_lost_ack()
    warehouse = [line for line in told if line.startswith("warehouse")]
    assert warehouse == ["warehouse 1 processed (8 left)", "warehouse 1 processed (6 left)"]


def test_an_inbox_stays_at_8_and_reports_a_duplicate() -> None:
    assert lessons.lost_ack() == [
        "warehouse 1 processed (8 left)",
        "mail 1 processed",
        "ledger 1 processed",
        "warehouse 1 duplicate (8 left)",
    ]


def test_a_fourth_subscriber_reports_its_duplicate_too() -> None:
    told = lessons.fourth_subscriber()
    assert [line for line in told if "app" in line] == ["app 1 processed", "app 1 duplicate", "the app showed 1 notice"]


def test_a_naive_mailer_sends_twice() -> None:
    assert lessons.naive_mailer() == [
        "warehouse 1 processed (8 left)", "mail 1 processed", "mail 1 processed", "anna got 2 letters",
    ]


def test_a_recorded_letter_is_sent_once() -> None:
    told = lessons.mailer()
    assert [line for line in told if line.startswith("mail")] == ["mail 1 processed", "mail 1 duplicate"]
    assert told[-1] == "anna got 1 letter"


def test_a_set_inside_the_handler_forgets() -> None:
    assert lessons.forgetful_warehouse() == ["warehouse 1 processed (8 left)", "warehouse 1 processed (6 left)"]


def test_three_failures_in_a_row_are_a_dead_letter_and_the_queue_goes_on() -> None:
    told = lessons.dead_list()
    assert [line for line in told if line.startswith("mail")] == [
        "mail 1 parked", "mail 1 parked", "mail 1 dead", "mail 2 processed",
    ]
    assert [line for line in told if line.startswith("ledger")] == ["ledger 1 processed", "ledger 2 processed"]
    assert told[-1].startswith("dead: shop.mail, ")


def test_a_cancellation_returns_what_was_reserved() -> None:
    told = lessons.cancelled()
    assert [line for line in told if line.startswith("warehouse")] == [
        "warehouse 1 processed (8 left)", "warehouse 2 processed (10 left)",
    ]


def test_a_cancellation_that_comes_first_returns_nothing() -> None:
    told = lessons.cancelled_first()
    assert [line for line in told if line.startswith("warehouse")] == [
        "warehouse 1 processed (10 left)", "warehouse 2 processed (10 left)",
    ]


def test_a_cancellation_of_an_order_that_never_was_paid_returns_nothing() -> None:
    scenario = lessons.open_shop(make_shop()).publish(OrderCancelled("1003"))
    assert scenario.run()[0] == "warehouse 1 processed"
    assert lessons.stock(scenario) == 10


def test_a_cancellation_whose_ack_is_lost_returns_stock_once() -> None:
    scenario = lessons.open_shop(make_shop()).publish(ORDER_1001)
    scenario.run()
    scenario.loses_ack("warehouse", times=1).publish(OrderCancelled("1001")).run()
    assert lessons.stock(scenario) == 10


def test_loyalty_gives_one_point_per_ten_euros_once() -> None:
    assert lessons.loyalty() == ["anna has 12 points", "berta has 8 points"]


def test_points_of_two_orders_add_up() -> None:
    shop = make_shop()
    lessons.count_points(shop.service.consumer("loyalty"))
    second = OrderPaid("1003", "anna", units=1, euros=39)
    scenario: Scenario = lessons.open_shop(shop).publish(ORDER_1001, second)
    scenario.run()
    assert scenario.connection.execute("select points from points where customer = 'anna'").fetchone() == (15,)


@pytest.mark.parametrize("name", sorted(lessons.LESSONS))
def test_a_lesson_is_the_same_every_time(name: str) -> None:
    lesson = lessons.LESSONS[name]
    assert lesson() == lesson()
    assert lesson.__doc__


def test_the_lessons_can_be_run() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "examples.lessons", "lost_ack", "calling"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    ).stdout
    assert told.index("lost_ack: ") < told.index("    warehouse 1 duplicate (8 left)\n") < told.index("calling: ")


def test_an_unknown_lesson_is_wrong_use() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "examples.lessons", "dancing"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )
    assert run.returncode == 2
    assert "there are: calling, publishing" in run.stderr
