"""TLS of connections to MariaDB and MySQL, by the names of the options that their own clients have."""

from collections.abc import Mapping
from ssl import CERT_NONE, SSLContext, SSLError, create_default_context

from onceonly.model.errors import SetupError
from onceonly.sql.options import TLS_OPTIONS, check_files

_, _CA, _CERTIFICATE, _KEY = TLS_OPTIONS["mariadb"]


def tls_context(options: Mapping[str, str]) -> SSLContext | None:
    """Return what `connect` takes as `ssl`, for the options in a URL; None for a connection without TLS.

    Without `ssl-mode`, any other option means VERIFY_IDENTITY. Without `ssl-ca`, certificates are verified with the authorities
    of the system. Raises SetupError for a file that cannot be used.
    """
    mode = options.get("ssl-mode", "VERIFY_IDENTITY" if options else "DISABLED")
    if mode == "DISABLED":
        return None
    check_files(options)
    try:
        context = create_default_context(cafile=options.get(_CA))
        if _CERTIFICATE in options:
            context.load_cert_chain(options[_CERTIFICATE], options[_KEY])
    except SSLError as error:
        files = ", ".join(name for name in (_CA, _CERTIFICATE, _KEY) if name in options)
        raise SetupError(f"the files of {files} cannot be used for TLS ({error.reason or error})") from error
    context.check_hostname = mode == "VERIFY_IDENTITY"
    if mode == "REQUIRED":
        context.verify_mode = CERT_NONE
    return context
