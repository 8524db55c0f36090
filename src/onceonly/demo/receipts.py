"""Receipts of flights: blobs, for runs that have a place for them."""

from onceonly import Context
from onceonly.demo.flights import FlightDeparted


async def receipt_of(flight: FlightDeparted, context: Context) -> str:
    """Have a flight's receipt made, if one is wanted; gives the name to announce, or nothing."""
    if not flight.receipt:
        return ""
    text = f"{flight.carrier} {flight.leg} {flight.miles} miles\n"
    return await context.blobs.create(f"{flight.leg}.txt", text.encode(), content_type="text/plain")
