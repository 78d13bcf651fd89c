"""Conformance: one suite per port, for the adapters of this package and for anybody's own."""

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{suite}" for suite in ("bench", "brokers", "members", "queues", "stores")))
