"""Run the conformance suites on generated mutants of one adapter: `python -m tests.mutants sqlite`."""

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.mutants.bindings import BINDINGS
from tests.mutants.generator import mutants_of
from tests.mutants.known import EQUIVALENT, OUTSIDE, reason_for, surviving
from tests.mutants.running import make_requests_small, measured_reach, outcomes

MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own in it


def main() -> int:
    """Generate, run and report. Returns 1 if a mutant survived that is not known to survive."""
    options = _options()
    binding = BINDINGS[options.adapter]
    mutants = [each for module in binding.modules for each in mutants_of(module) if re.search(options.only, each.name)]
    if options.names:
        wanted = set(Path(options.names).read_text(encoding="utf-8").splitlines())
        mutants = [each for each in mutants if each.name in wanted]
    if options.again:
        found = map(json.loads, Path(options.again).read_text(encoding="utf-8").splitlines())
        left = {each["mutant"] for each in found if each["result"] in {"survived", "not reached"}}
        mutants = [each for each in mutants if each.name in left]
    folder = Path(tempfile.mkdtemp(prefix="mutants-", dir=MEMORY if MEMORY.is_dir() else None))
    counts: Counter[str] = Counter()
    _say(f"mutated: {', '.join(binding.modules)}")
    for module, reason in binding.left_out.items():
        _say(f"left out: {module}: {reason}")
    for result, listed in (("equivalent", EQUIVALENT), ("outside", OUTSIDE)):
        left = [each for each in mutants if not reason_for(binding.name, each.name, listed)]
        counts[result] = len(mutants) - len(left)
        mutants = left
    if options.sample:
        mutants = random.Random(options.seed).sample(mutants, min(options.sample, len(mutants)))  # noqa: S311 - no secret
    known, new = surviving(), 0
    make_requests_small()
    begun = time.monotonic()
    try:
        with binding.prepared(folder, options.processes) as place:
            rules = binding.rules()
            reach = measured_reach(binding.modules, rules, place)
            _say(f"{len(mutants)} mutants, {len(rules)} rules, {sum(reach.seconds.values()):.0f} s for all rules")
            for each in outcomes(mutants, reach, place, slots=options.processes, at_once=binding.at_once):
                counts[each.result] += 1
                new += each.result == "survived" and each.mutant not in known
                if options.out:
                    with Path(options.out).open("a", encoding="utf-8") as out:
                        out.write(json.dumps(each._asdict()) + "\n")
                if each.result in {"survived", "hang"} or options.verbose:
                    _say(f"{each.result}: {each.mutant} [{each.rules} rules, {each.seconds} s] {each.rule} {each.error}")
            measured_reach(binding.modules, rules, place)  # a server that failed meanwhile would have caught every mutant
    finally:
        shutil.rmtree(folder)
    caught = counts["caught"] + counts["hang"]
    counted = caught + counts["survived"] + counts["not reached"]
    reached = caught + counts["survived"]
    _say(f"{dict(counts)}; {time.monotonic() - begun:.0f} s")
    _say(f"caught {caught} of {counted}: {caught / max(counted, 1):.1%}; of {reached} reached: {caught / max(reached, 1):.1%}")
    return int(new > 0)


def _say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("adapter", choices=sorted(BINDINGS), help="Adapter to mutate.")
    parser.add_argument("--only", default="", help="Regular expression that names must match [default: all].")
    parser.add_argument("--names", default="", help="File with the names of mutants to run, one on each line.")
    parser.add_argument("--sample", type=int, default=0, help="Number of mutants to draw [default: all].")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the sample [default: 1].")
    parser.add_argument("--processes", type=int, default=2, help="Processes at a time [default: 2].")
    parser.add_argument("--again", default="", help="File of an earlier `--out`: run what it did not catch.")
    parser.add_argument("--out", default="", help="File to append results to, as JSON lines.")
    parser.add_argument("--verbose", action="store_true", help="Print each mutant.")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
