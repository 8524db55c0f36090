"""The shop's own tests, as a project of Django has them."""

from django.contrib.auth.models import User
from django.test import TestCase, override_settings

from examples.hosts.django_shop.exactly_once import OrderPlaced, shop
from examples.hosts.django_shop.models import Order
from onceonly.integrations.django import captured


@override_settings(ALLOWED_HOSTS=["testserver"])
class Placing(TestCase):
    """Orders."""

    def test_a_repeated_request_places_one_order(self) -> None:
        """By either view."""
        for path in ("/orders", "/api/orders"):
            with self.subTest(path), captured(shop) as published:
                answers = [self.place(path) for _ in range(2)]
                self.assertEqual([answer.status_code for answer in answers], [201, 201])
                order = Order.objects.get(order_id=path)
                self.assertEqual(published.bodies, [OrderPlaced(path, order.pk)])

    def test_the_admin_site_shows_orders(self) -> None:
        """Only after a login."""
        self.place("/orders")
        self.assertEqual(self.client.get("/admin/shop/order/").status_code, 302)
        self.client.force_login(User.objects.create_superuser("operator"))
        self.assertContains(self.client.get("/admin/shop/order/"), "/orders")

    def place(self, path: str):  # noqa: ANN201 - a response of Django's client
        """Post an order that is named as its path."""
        body = {"order_id": path}
        return self.client.post(path, body, content_type="application/json", headers={"Idempotency-Key": f'"{path}"'})
