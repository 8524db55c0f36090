"""Which settings of streams and consumers keep every message until it is acknowledged.

Each setting that is known has a rule. One that is not known belongs to a newer server: it is a warning, unless it is off.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from onceonly.formats.undecodable import shown

Config: TypeAlias = Mapping[str, Any]


class SettingRule(NamedTuple):
    """Whether a setting is allowed, and what to set it to. `default` is its value where the server does not name it."""

    allows: Callable[[Any, Config], bool]
    wanted: str
    default: Any = None


def _anything(_value: object, _config: Config) -> bool:
    return True


def _is_off(value: object, _config: Config) -> bool:
    return not value


def _has_no_limit(value: object) -> bool:
    return isinstance(value, int) and value <= 0


def _keeps_new(value: object, config: Config) -> bool:
    return value == "new" or (value == "old" and all(_has_no_limit(config.get(each, -1)) for each in ("max_msgs", "max_bytes")))


def _keeps_each(value: object, config: Config) -> bool:
    return _has_no_limit(value) or (config.get("discard") == "new" and config.get("discard_new_per_subject") is True)


_ANY = SettingRule(_anything, "")
_OFF = SettingRule(_is_off, "false")
_STREAM = {
    "retention": SettingRule(lambda value, _: value == "limits", "limits", "limits"),
    "discard": SettingRule(_keeps_new, "new, or max_msgs and max_bytes to -1", "old"),
    "max_age": SettingRule(lambda value, _: value == 0, "0", 0),
    "max_msgs_per_subject": SettingRule(_keeps_each, "-1", -1),
    "no_ack": _OFF,
    "sealed": _OFF,
    "deny_delete": _OFF,
    "deny_purge": _OFF,
    "allow_rollup_hdrs": _OFF,
    "allow_msg_counter": _OFF,
    "mirror": SettingRule(_is_off, "nothing"),
    "subject_transform": SettingRule(_is_off, "nothing"),
    "subject_delete_marker_ttl": SettingRule(_is_off, "0"),
    "persist_mode": SettingRule(lambda value, _: value in ("", "default"), "default", "default"),
    **dict.fromkeys(
        (
            *("name", "description", "subjects", "storage", "num_replicas", "placement", "metadata", "compression"),
            *("max_msgs", "max_bytes", "max_msg_size", "max_consumers", "consumer_limits", "discard_new_per_subject"),
            *("duplicate_window", "allow_direct", "mirror_direct", "sources", "republish", "template_owner"),
            *("first_seq", "allow_msg_ttl", "allow_atomic", "allow_batched"),
        ),
        _ANY,
    ),
}
_CONSUMER = {
    "ack_policy": SettingRule(lambda value, _: value == "explicit", "explicit", "none"),
    "deliver_policy": SettingRule(lambda value, _: value == "all", "all", "all"),
    "max_deliver": SettingRule(
        lambda value, _: _has_no_limit(value), "-1 (a message is given up after it, without a dead letter)", -1
    ),
    "headers_only": _OFF,
    "deliver_subject": SettingRule(_is_off, "nothing: it must be a pull consumer"),
    "backoff": SettingRule(_is_off, "nothing: it replaces ack_wait"),
    **dict.fromkeys(
        (
            *("durable_name", "name", "description", "metadata", "num_replicas", "mem_storage", "replay_policy", "sample_freq"),
            *("max_ack_pending", "max_waiting", "max_batch", "max_expires", "max_bytes", "rate_limit_bps"),
            *(
                "inactive_threshold",
                "pause_until",
                "deliver_group",
                "flow_control",
                "idle_heartbeat",
                "direct",
                "opt_start_seq",
                "opt_start_time",
            ),
        ),
        _ANY,
    ),
}


def queue_rules(subject: str) -> dict[str, SettingRule]:
    """Return the rules of the stream of a queue with this subject."""
    retention = SettingRule(lambda value, _: value == "workqueue", "workqueue", "limits")
    return stream_rules(subject) | {"retention": retention, "deny_delete": _ANY, "deny_purge": _ANY}


def stream_rules(subject: str) -> dict[str, SettingRule]:
    """Return the rules of a stream with this subject whose messages all endpoints share."""
    return _STREAM | {"subjects": SettingRule(lambda value, _: isinstance(value, list) and subject in value, f"[{subject!r}]")}


def subscription_rules(subject: str) -> dict[str, SettingRule]:
    """Return the rules of the stream of subscriptions: one message of each subject is enough."""
    return stream_rules(subject) | {"max_msgs_per_subject": _ANY}


def consumer_rules(subject: str, lease_nanoseconds: int) -> dict[str, SettingRule]:
    return _CONSUMER | {
        "ack_wait": SettingRule(
            lambda value, _: isinstance(value, int) and value >= lease_nanoseconds, f"{lease_nanoseconds}", 0
        ),
        "filter_subject": SettingRule(lambda value, _: value in ("", None, subject), "nothing"),
        "filter_subjects": SettingRule(lambda value, _: value in (None, [], [subject]), "nothing"),
    }


def problems(config: Config, rules: Mapping[str, SettingRule]) -> Iterator[str]:
    """List the settings that are not allowed, with their values and what to set them to."""
    for name, rule in rules.items():
        value = config.get(name, rule.default)
        if not rule.allows(value, config):
            yield f"{name} is {shown(str(value))}. Set it to {rule.wanted}"


def unknown(config: Config, rules: Mapping[str, SettingRule]) -> Iterator[str]:
    """List the settings without a rule that are not off."""
    for name, value in config.items():
        if name not in rules and value:
            yield f"{shown(name)} is {shown(str(value))}"
