"""The lessons. Each plays a scenario and returns what happened, line by line; the tests hold every line to it."""

from collections.abc import Callable

from bothends.testing import Scenario
from examples.lessons.calling import COSTS, CallingShop, MailIsDown
from examples.lessons.events import ORDER_1001, ORDER_1002, OrderCancelled
from examples.lessons.naive_shop import make_forgetful_shop, make_naive_shop
from examples.lessons.shop import TABLES, Shop, count_points, make_shop, push_notices

__all__ = ["LESSONS", "open_shop", "play", "stock"]


def open_shop(shop: Shop) -> Scenario:
    """A scenario whose database has the shop's tables, with 10 units in stock."""
    scenario = Scenario(shop.service, costs=COSTS)
    scenario.connection.executescript(TABLES)
    return scenario


def stock(scenario: Scenario) -> int:
    """The units on the shelf now."""
    (units,) = scenario.connection.execute("select units from stock").fetchone()
    return int(units)


def play(scenario: Scenario) -> list[str]:
    """Runs round after round, and says after each line of the warehouse what it has left."""
    told = []
    while lines := scenario.round():
        told += [f"{line} ({stock(scenario)} left)" if line.startswith("warehouse") else line for line in lines]
    return told


def calling() -> list[str]:
    """The checkout calls everybody: the customer waits for all, and one who is down breaks what the others did."""
    shop = CallingShop()
    told = [f"order 1001 waited {shop.checkout(ORDER_1001)} ticks"]
    shop.mail_fails = 1
    try:
        shop.checkout(ORDER_1002)
    except MailIsDown as error:
        done = [
            name for name, orders in (("charged", shop.charged), ("reserved", shop.reserved), ("booked", shop.booked))
            if "1002" in orders
        ]
        told.append(f"order 1002 was {' and '.join(done)}; the customer sees: {error}")
    return told


def publishing() -> list[str]:
    """The checkout charges and publishes: both orders wait for the card only, and mail that fails costs nobody else."""
    scenario = open_shop(make_shop()).fails("mail", times=1).publish(ORDER_1001, ORDER_1002)
    told = play(scenario)
    return [*told, f"each order waited {scenario.ticks_async} ticks instead of {scenario.ticks_sync}"]


def naive_lost_ack() -> list[str]:
    """The broker never hears that the warehouse is done, so it delivers again, as it must."""
    return play(open_shop(make_naive_shop()).loses_ack("warehouse", times=1).publish(ORDER_1001))


def lost_ack() -> list[str]:
    """The same with an inbox: the second copy is recognised in the transaction that would have done it again."""
    return play(open_shop(make_shop()).loses_ack("warehouse", times=1).publish(ORDER_1001))


def fourth_subscriber() -> list[str]:
    """The app is told of every order, once, and the code that takes the money has not changed."""
    shop = make_shop()
    push_notices(shop.service.consumer("app", owner="app"))
    scenario = open_shop(shop).loses_ack("app", times=1).publish(ORDER_1001)
    told = play(scenario)
    notices = scenario.connection.execute("select order_no from notices").fetchall()
    return [*told, f"the app showed {len(notices)} notice"]


def naive_mailer() -> list[str]:
    """What has left the house cannot be rolled back: without a record, a lost ack is a second letter."""
    shop = make_naive_shop()
    told = play(open_shop(shop).loses_ack("mail", times=1).publish(ORDER_1001))
    return [*told, f"anna got {len(shop.letters)} letters"]


def mailer() -> list[str]:
    """``once`` recorded the letter before the acknowledgement could be lost."""
    shop = make_shop()
    told = play(open_shop(shop).loses_ack("mail", times=1).publish(ORDER_1001))
    return [*told, f"anna got {len(shop.letters)} letter"]


def forgetful_warehouse() -> list[str]:
    """A ``seen`` set inside the handler remembers nothing."""
    return play(open_shop(make_forgetful_shop()).loses_ack("warehouse", times=1).publish(ORDER_1001))


def dead_list() -> list[str]:
    """Three failures in a row: the letter moves to the dead list, with its reason, and the queue goes on."""
    scenario = open_shop(make_shop()).fails("mail", times=3).publish(ORDER_1001, ORDER_1002)
    told = play(scenario)
    return [*told, *(f"dead: {dead.consumer}, {dead.reason}" for dead in scenario.dead)]


def cancelled() -> list[str]:
    """The order was paid, then cancelled: what was reserved goes back."""
    return play(open_shop(make_shop()).publish(ORDER_1001, OrderCancelled("1001")))


def cancelled_first() -> list[str]:
    """The cancellation overtakes its order: nothing was reserved, nothing goes back, and nothing will be reserved."""
    return play(open_shop(make_shop()).publish(OrderCancelled("1001"), ORDER_1001))


def loyalty() -> list[str]:
    """1 point per 10 EUR, whatever is delivered twice."""
    shop = make_shop()
    count_points(shop.service.consumer("loyalty", owner="front-desk"))
    scenario = open_shop(shop).loses_ack("loyalty", times=2).publish(ORDER_1001, ORDER_1002)
    play(scenario)
    points = scenario.connection.execute("select customer, points from points order by customer").fetchall()
    return [f"{customer} has {count} points" for customer, count in points]


LESSONS: dict[str, Callable[[], list[str]]] = {
    lesson.__name__: lesson
    for lesson in (
        calling, publishing, naive_lost_ack, lost_ack, fourth_subscriber, naive_mailer, mailer, forgetful_warehouse,
        dead_list, cancelled, cancelled_first, loyalty,
    )
}
