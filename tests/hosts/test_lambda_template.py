"""The template that deploys the example on AWS."""

import re
import subprocess
from importlib.util import module_from_spec, spec_from_file_location

from examples.hosts.harness import ROOT
from tests.servers.emulators import Emulator, program_of

DEPLOY = ROOT / "examples" / "hosts" / "aws_lambda" / "deploy"
CHECKER = Emulator("cfn-lint (templates of AWS)", "emulators-python/bin/cfn-lint")


def test_the_template_has_the_schema_of_aws() -> None:
    """As cfn-lint knows it, with the resources of SAM."""
    done = subprocess.run([program_of(CHECKER), DEPLOY / "template.yaml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_functions_of_the_template_are_there() -> None:
    """Importing them opens nothing. The queue's mapping takes partial responses."""
    template = (DEPLOY / "template.yaml").read_text()
    spec = spec_from_file_location("app", DEPLOY / "function" / "app.py")
    assert spec is not None
    assert spec.loader is not None
    app = module_from_spec(spec)
    spec.loader.exec_module(app)
    named = re.findall(r"Handler: app\.(\w+)", template)
    assert named == ["orders", "relay"]
    assert all(callable(getattr(app, name)) for name in named)
    assert "- ReportBatchItemFailures" in template
