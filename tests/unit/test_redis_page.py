"""The page of what runs on Redis is made from the code."""

from pathlib import Path

from tests import redis_page

ROOT = Path(__file__).parents[2]


def test_the_page_of_what_runs_on_redis_is_made_from_the_code():
    written = (ROOT / "docs" / "reference" / "redis.md").read_text("utf-8")
    assert written == redis_page.text(), "python -m tests.redis_page > docs/reference/redis.md"
