"""What the admin's pages show of dead letters and pending records, as HTML. Django escapes all that others wrote."""

import time
from typing import Any

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from onceonly.integrations.django import admin_reading as reading
from onceonly.model.dead_letter import DeadLetter, UnreadableLetter
from onceonly.model.escaping import escape
from onceonly.model.wording import in_words
from onceonly.operations.letters import moment
from onceonly.operations.previews import preview, shown_headers, shown_traceback

SHOWN_NAME, SHOWN_TEXT, SHOWN_REASON = 200, 2000, 120
SHORT_KEY = 12
MOST_EFFECTS = 100
_NOTHING = "-"


@admin.display(description="key")
def short_key(_page: Any, row: Any) -> str:
    return str(row.key)[:SHORT_KEY]


@admin.display(description="key")
def whole_key(_page: Any, row: Any) -> str:
    return str(row.key)


@admin.display(description="type")
def shown_type(_page: Any, row: Any) -> str:
    return _line(row.type, SHOWN_NAME)


@admin.display(description="reason")
def shown_reason(_page: Any, row: Any) -> str:
    return _line(row.first_reason, SHOWN_REASON)


@admin.display(description="stored", ordering="position")
def stored(_page: Any, row: Any) -> str:
    return _moment(row.stored_at)


@admin.display(description="source")
def source(_page: Any, row: Any) -> str:
    message = row.found.message
    return _line(message.source, SHOWN_TEXT) if message else _NOTHING


@admin.display(description="id")
def message_id(_page: Any, row: Any) -> str:
    message = row.found.message
    return _line(message.id, SHOWN_TEXT) if message else "It has no identity, so it cannot be retried."


@admin.display(description="reason")
def reason_text(_page: Any, row: Any) -> SafeString:
    return _block(escape(row.found.reason[:SHOWN_TEXT]))


@admin.display(description="attempts")
def attempts(_page: Any, row: Any) -> str:
    found: DeadLetter = row.found
    done = "; the work of its handler is committed, and a retry sends its messages" if found.finish_only else ""
    return f"{found.attempts}{done}"


@admin.display(description="body")
def body(_page: Any, row: Any) -> SafeString:
    """Show at most 64 kB: JSON with indentation, other text as it is, everything else as hexadecimal digits."""
    found = preview(row.found.body)
    what = "the bytes of a dead letter that this version cannot read" if isinstance(row.found, UnreadableLetter) else found.form
    note = f"{found.total:,} bytes, {what}{'. Only the beginning is shown' if found.cut else ''}."
    return format_html('<div class="onceonly-note">{}</div>{}', note, _block(escape(found.text)) if found.text else "")


@admin.display(description="headers")
def headers(_page: Any, row: Any) -> SafeString | str:
    shown, total = shown_headers(row.found.headers)
    if not shown:
        return _NOTHING
    lines = ((_line(name, SHOWN_NAME), _line(value, SHOWN_TEXT)) for name, value in shown)
    table = format_html_join("", "<tr><th>{}</th><td>{}</td></tr>", lines)
    note = f"The first {len(shown)} of {total}." if total > len(shown) else ""
    return format_html(
        '<div class="onceonly-scroll"><table class="onceonly-pairs"><tbody>{}</tbody></table></div>{}', table, note
    )


@admin.display(description="failures")
def failures(_page: Any, row: Any) -> SafeString | str:
    parts = []
    for each in row.found.history:
        text, _ = shown_traceback(each.traceback)
        when = _moment(each.at) if each.at else ""
        kind = str(getattr(each.kind, "value", each.kind))
        block = _block(escape(text)) if text else ""
        parts.append((kind, when, _line(each.handler, SHOWN_NAME), _line(each.reason, SHOWN_TEXT), block))
    return format_html_join("", "<div><strong>{}</strong> {} {}<br>{}</div>{}", parts) if parts else _NOTHING


@admin.display(description="actions")
def actions_taken(_page: Any, row: Any) -> SafeString | str:
    found = reading.actions_on(row._state.db, row.found)  # noqa: SLF001 - documented
    lines = (
        (
            each.number,
            _moment(each.at),
            _line(each.actor, SHOWN_NAME),
            each.action,
            each.outcome,
            _line(each.detail, SHOWN_NAME),
        )
        for each in found
    )
    return format_html_join("", "<div>Action {}, {}: {}, {}: {} {}</div>", lines) or _NOTHING


@admin.display(description="id")
def record_message(_page: Any, row: Any) -> str:
    return _line(row.message_id, SHOWN_NAME)


@admin.display(description="source")
def record_source(_page: Any, row: Any) -> str:
    return _line(row.source, SHOWN_NAME)


@admin.display(description="stored", ordering="stored_at")
def record_stored(_page: Any, row: Any) -> str:
    return _moment(row.stored_at)


@admin.display(description="age")
def record_age(_page: Any, row: Any) -> str:
    return in_words(max(0, int(time.time()) - row.stored_at // 1000)) if isinstance(row.stored_at, int) else _NOTHING


@admin.display(description="messages")
def effects_to_send(_page: Any, row: Any) -> SafeString | str:
    record = reading.read_record(str(row.source), str(row.message_id), row.effects)
    if record is None:
        return "This version cannot read the record. Its messages wait for a version that can."
    lines = [
        (
            _line(each.message.type, SHOWN_NAME),
            _line(str(each.to), SHOWN_NAME) if each.to else "its subscribers",
            each.message.id,
        )
        for each in record.effects[:MOST_EFFECTS]
    ]
    lines += [
        (f"{call.verb} request", _line(call.url.partition("?")[0], SHOWN_NAME), "") for call in record.requests[:MOST_EFFECTS]
    ]
    text = format_html_join("", "<div>{} to {} <code>{}</code></div>", lines)
    left = len(record.effects) + len(record.requests) - len(lines)
    return format_html("{}<div>{} more</div>", text, left) if left > 0 else text or _NOTHING


def _line(text: Any, most: int) -> str:
    """Return one line of a text, cut, with escapes for what is not printable."""
    whole = escape(str(text)[: most + 1], multiline=False)
    return whole if len(str(text)) <= most else f"{whole[:most]}..."


def _block(text: str) -> SafeString:
    return format_html('<pre class="onceonly-text" tabindex="0">{}</pre>', text)


def _moment(milliseconds: Any) -> str:
    return moment(milliseconds) if isinstance(milliseconds, int) else _NOTHING
