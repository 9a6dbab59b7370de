"""Where the time of a training goes, by the names of what runs."""

from slipstream.runs.profile import parts_of, summed

PROGRAM = """
  %fusion.1 = f32[8]{0} fusion(%a), kind=kLoop, metadata={op_name="jit(_chunk)/while/body/vmap(physics)/mul" id=1}
  dot.2 = f32[8,4]{1,0} dot(x, w), metadata={op_name="jit(_chunk)/while/body/policy/dot_general"}
  ROOT %while.3 = (f32[8]{0}) while(%t), condition=%c, body=%b, metadata={op_name="jit(_chunk)/while/physics"}
  %dot.4 = f32[8,4]{1,0} dot(x, w), metadata={op_name="jit(_chunk)/while/body/transpose(jvp())/dot_general"}
"""


def test_operations_belong_to_the_scope_they_were_written_in_and_containers_to_none():
    assert parts_of(PROGRAM) == {"fusion.1": "physics", "dot.2": "policy", "dot.4": "learning"}


def test_seconds_are_summed_by_part_and_unknown_events_left_out():
    events = [("fusion.1", 1.0), ("fusion.1", 0.5), ("dot.4", 2.0), ("while.3", 9.0), ("Rendezvous", 9.0)]
    assert summed(parts_of(PROGRAM), events) == {"physics": 1.5, "learning": 2.0}
