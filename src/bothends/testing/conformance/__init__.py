"""Conformance: one suite per port, for the adapters of this package and for anybody's own."""

import pytest

pytest.register_assert_rewrite("bothends.testing.conformance.brokers", "bothends.testing.conformance.members")
