"""Web frameworks around an endpoint: requests that are done once. Nothing else imports these modules, or what they need."""

from importlib.util import find_spec

from onceonly.model.errors import DriverMissing

if find_spec("starlette") is None:
    raise DriverMissing("starlette is not installed: pip install 'onceonly[starlette]', or 'onceonly[fastapi]' for FastAPI")
