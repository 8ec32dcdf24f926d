"""A Django site for the tests: its settings, made once for the process, and middleware that tests fill in."""

# mypy: disable-error-code="import-untyped, misc"

from contextlib import contextmanager
from types import ModuleType
from typing import Any

import django
from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.test import override_settings
from django.utils.decorators import sync_and_async_middleware

from tests.doors.wsgi_kit import World, bearer

# Another test of the same process may have been first; what these tests rely on, they override.
if not settings.configured:
    settings.configure()
django.setup()

# These read the settings when they are imported, and so come after them.
from rest_framework import exceptions, renderers, routers, viewsets  # noqa: E402
from rest_framework.authentication import TokenAuthentication  # noqa: E402
from rest_framework.permissions import BasePermission, IsAuthenticated  # noqa: E402
from rest_framework.response import Response as ApiResponse  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

__all__ = [
    "APIView",
    "ApiResponse",
    "BasePermission",
    "IsAuthenticated",
    "TokenAuthentication",
    "exceptions",
    "renderers",
    "routers",
    "viewsets",
]

NEEDED = {
    "ALLOWED_HOSTS": ["shop.test"],
    "DEBUG": False,
    "MIDDLEWARE": [],
    "REST_FRAMEWORK": {"UNAUTHENTICATED_USER": None},
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {
                "loaders": [
                    ("django.template.loaders.locmem.Loader", {"bill.txt": "{{ times }}: {{ body }}"})
                ]
            },
        }
    ],
}


@contextmanager
def site():
    """Settings that are these tests' own."""
    with override_settings(**NEEDED):
        yield settings


def serve(urlpatterns: list[Any], *middleware: str, world: World | None = None, asgi: bool = False) -> Any:
    """The application of a site with these routes, behind these of the middlewares below."""
    urls = ModuleType("urls")
    urls.urlpatterns = urlpatterns  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = urls
    settings.MIDDLEWARE = [f"{__name__}.{name}" if "." not in name else name for name in middleware]
    STATE["world"] = world
    return ASGIHandler() if asgi else WSGIHandler()


STATE: dict[str, Any] = {}


@sync_and_async_middleware
def guard(get_response):
    """Lets in whom the world allows."""

    def admitted(request):
        request.who = bearer(request.headers.get("Authorization"))
        return (request.who or "") in STATE["world"].allowed

    if iscoroutinefunction(get_response):

        async def aguarded(request):
            return await get_response(request) if admitted(request) else HttpResponse("no", status=403)

        return aguarded

    def guarded(request):
        return get_response(request) if admitted(request) else HttpResponse("no", status=403)

    return guarded


@sync_and_async_middleware
def idempotency(get_response):
    """The middleware under test."""
    return STATE["middleware"](get_response)


def cookies(get_response):
    """Gives every response a cookie of its own."""

    def baked(request):
        response = get_response(request)
        STATE["baked"] = STATE.get("baked", 0) + 1
        response.set_cookie("seen", str(STATE["baked"]))
        return response

    return baked
