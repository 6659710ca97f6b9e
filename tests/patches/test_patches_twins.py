"""A hunk whose surroundings occur twice must reach the place it was made for."""

from __future__ import annotations

from patch_fakes import UPSTREAM, Checkout, diff, lines, mail

STEPS = ("check", "prepare", "open", "read", "run", "write", "close", "count", "report")
BODY = "".join(f"    {step}(x);\n" for step in STEPS)
FIRST, SECOND = f"void first(int x) {{\n{BODY}}}\n", f"void second(int x) {{\n{BODY}}}\n"
OLD = lines("head", 10) + FIRST + lines("gap", 10) + SECOND
PATCHED = OLD.replace(SECOND, SECOND.replace("run(x)", "run(2 * x)"))
# Upstream's insertion moves the first function to where the second one was.
NEW = lines("head", 10) + lines("inserted", 21) + FIRST + lines("gap", 10) + SECOND


def test_an_offset_does_not_lead_a_hunk_into_a_twin(empty_checkout: Checkout) -> None:
    checkout = empty_checkout
    checkout.pin_upstream(UPSTREAM | {"src/twin.cpp": OLD.encode()})
    checkout.ok("fetch", "--archive", str(checkout.archive))
    changed = diff("src/twin.cpp", OLD.encode(), PATCHED.encode())
    assert b"second" not in changed  # nothing but its place tells the hunk's function
    checkout.set_series({"second.patch": mail("functions: run twice", changed)})
    checkout.ok("export")
    checkout.fetch(UPSTREAM | {"src/twin.cpp": NEW.encode()})
    outcome = checkout.ok("rebase-onto", "b2")
    assert outcome.data["patches"][0]["outcome"] == "three-way"
    assert checkout.content()["src/twin.cpp"].decode() == NEW.replace(SECOND, SECOND.replace("run(x)", "run(2 * x)"))
