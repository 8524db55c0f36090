"""`python -m examples.shop`: the shop at http://127.0.0.1:8000, with its worker beside."""

import os

import uvicorn

uvicorn.run("examples.shop.app:app", port=int(os.environ.get("SHOP_PORT", "8000")))
