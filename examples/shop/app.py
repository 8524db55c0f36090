"""The shop's web application: place an order once, however often the request comes, and look at the latest."""

import os
from pathlib import Path
from typing import Literal

from fastapi import APIRouter, FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select

from examples.shop.orders import PACE, Order, OrderPlaced, sessions, shop
from onceonly.integrations.fastapi import IdempotentRoute, Tx, lifespan

PAGE = Path(__file__).parent / "page"
WORKER = os.environ.get("SHOP_WORKER", "beside")  # "apart": handlers run elsewhere, by `onceonly run examples.shop.orders:shop`

app = FastAPI(title="Shop", lifespan=lifespan(shop, worker=WORKER == "beside"))
orders = APIRouter(prefix="/orders", route_class=IdempotentRoute.of(shop))


class NewOrder(BaseModel):
    """What a customer asks for."""

    item: Literal["tea", "coffee", "cocoa"]
    quantity: int = Field(ge=1, le=99)


class PlacedOrder(NewOrder):
    """What a customer is told."""

    model_config = ConfigDict(from_attributes=True)
    id: int
    state: str


@orders.post("", status_code=201)
async def place(new: NewOrder, tx: Tx) -> PlacedOrder:
    """Keep the order and announce it; both are committed with this answer before it is sent."""
    order = Order(item=new.item, quantity=new.quantity)
    tx.sql.add(order)
    await tx.sql.flush()
    tx.publish(OrderPlaced(order.id), delay=PACE)
    return PlacedOrder.model_validate(order)


@orders.get("")
async def latest() -> list[PlacedOrder]:
    """Show the latest orders, newest first."""
    async with sessions() as session:
        found = await session.scalars(select(Order).order_by(Order.id.desc()).limit(20))
        return [PlacedOrder.model_validate(order) for order in found]


@app.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """Return the page."""
    return FileResponse(PAGE / "index.html")


app.include_router(orders)
app.mount("/page", StaticFiles(directory=PAGE), name="page")
