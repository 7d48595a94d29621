"""One example of every record; no field of an example has its default value."""

from conformance.records import cell, measurements, observation, own_model, plan, probes, tasks, verdicts

CELL = cell.Cell("merge@64", "compiled", "bf16", "cuda")
SIZED = cell.SizedModel("merge", 64, "width")

REASON = measurements.Reason("no graph", "it breaks at a print")
RATIO = measurements.Ratio(1.2345, 1.2, 1.3, pairs=20, clean=0.875, processes=3)
CELL_TIMING = measurements.CellTiming(1.25e-3, 6, {"other": RATIO}, REASON)
TIMING = measurements.Timing(
    figure="gradient",
    cells={CELL.id: CELL_TIMING},
    controls={"slower": RATIO},
    seconds={"warm": 1.5},
    samples={CELL.id: ((1, 2, 3), (4, 5, 6))},
)
PER_PASS = measurements.PerPass(4, 12)
FOOTPRINT = measurements.Footprint(
    saved=1,
    held=2,
    peak=4,
    flops=PER_PASS,
    least_bytes=measurements.PerPass(5),
    why={"least_bytes.both": REASON},
)
COMPILE_RUN = measurements.CompileRun(1.5, 2.5, "miss", REASON)
COMPILE_COST = measurements.CompileCost(COMPILE_RUN, (measurements.CompileRun(0.5),))
CEILINGS = measurements.Ceilings({"fp32": 1e9}, ((64.0, 1e10), (128.0, 2e10)))

MEASURE = observation.Measure("norm", 0.1234, 2.5, "at (0, 1)")
DISCREPANCY = observation.Discrepancy(
    case="typical",
    tensor="gradient of x",
    kind="rounded",
    dtype="bfloat16",
    dtype_asked="float32",
    measures=(MEASURE,),
    accepted=("a zero",),
    weak=("a sign",),
    left_to="fp32",
    rejected=5,
    closer=False,
)
REST = observation.Rest(3, {"norm": 0.25}, {"typical": {"float32": ("buffer a", "buffer b")}}, weak=2, left=1)
OBSERVATION = observation.Observation(
    ending="raised",
    phase="call",
    error="ValueError",
    message="a line",
    discrepancies=(DISCREPANCY,),
    facts={"graphs": 2, "cache": "hit", "list": [1, None, True], "inner": {"a": 0.5}},
    seconds={"call": 0.25},
    cases=("typical",),
    rest=REST,
    said=("a last line",),
)
VERDICT = verdicts.Verdict(
    cell=CELL.id,
    status="FAIL",
    text="a text with ünïcode\nand a line break",
    margin=1.234,
    short="1.2",
    reason="it is known",
    link="https://issue",
    notes=("a note", "another"),
    seconds=12.5,
    observation=OBSERVATION,
)

EXPECTATION = plan.Expectation(
    *("fails", "a reason", "a link", "x", "bfloat16", "ValueError", "a match", "norm", "case", "a probe", "a symptom")
)
PLANNED = plan.PlannedCell(CELL, "no device", (EXPECTATION,), ("empty",))
OWN = own_model.OwnModel(
    name="net",
    thing="Net",
    saved="/a/net.pt",
    library="timm:test_vit",
    inputs=("2,3",),
    call="/a/call.pt",
    definitions="/a/definitions.py",
    training="eval",
    without=("scripted",),
    dtype="float16",
    differentiable=False,
    constants=("target",),
    mutates=("x",),
    changes_state=("random generator",),
)
LOCATION = plan.SpecLocation("a.module", "/a/file.py", OWN)
ENVIRONMENT = plan.Environment("2.9", "3.12", "Linux", "a processor", "AVX2", 8, 1, ("a GPU",), "12.8", "python")
PLACE = plan.Place("/a/file.py", 7)
JUDGE = plan.Judge("2026-11-28", "a2f07bf", "00ff")
SHARD = plan.Shard(1, (("merge@64",),))
PLAN = plan.Plan(
    seed=3,
    deadline=7.5,
    environment=ENVIRONMENT,
    modes={"planted": LOCATION},
    models={"merge@64": LOCATION},
    figures={"merge@64": ("forward", "gradient")},
    cells=(PLANNED,),
    sizes={"merge@64": SIZED},
    compiling_modes=("compiled",),
    candidates={"merge@64": ("fused",)},
    measure="bench",
    timed={"merge@64": ("fp32",)},
    every_tensor=True,
    digests={"/a/file.py": "00ff"},
    written={"merge@64": PLACE},
    wrong_on_purpose=("merge@64",),
    shard=SHARD,
    working={"cpu": {"merge@64": SIZED}},
    assumed={"merge@64": ("a contract",)},
    judge=JUDGE,
)

DECLARED = plan.Declared(
    *("merge", "dtype", "a reason", "a link", ("eager",), ("fp32",), ("cpu",), ">=2.6", "output", "float32"),
    *("ValueError", "a match", "norm", "typical", "a probe"),
)
REQUEST = tasks.PlanRequest(
    *(("merge",), ("eager",), ("fp32",), ("cpu",)),
    seed=1,
    deadline=2.5,
    all_sizes=True,
    first_case=True,
    given=OWN,
    own=LOCATION,
    declared=(DECLARED,),
    registered=LOCATION,
)
CELL_TASK = tasks.CellTask(
    *(CELL, LOCATION, (LOCATION,), 3, "/reference", (EXPECTATION,), "/cache", "00ff", 64, ("empty",))
)
LISTED = tasks.ListedModel("merge", "a summary", ("typical",))
SEEN = probes.SeenOn(">=2.4", ("2.4.1",))
PROBE = probes.ProbeInfo("p", "s", "an issue", "a source", "a symptom", ("cpu",), {"cpu": SEEN}, True, None, "do this")
FINDING = probes.ProbeFinding("p", "FAIL", "a wrong number", "an issue", "a summary", "do this")

EXAMPLES = (
    *(CELL, SIZED, DECLARED),
    *(REASON, RATIO, CELL_TIMING, TIMING, PER_PASS, FOOTPRINT, COMPILE_RUN, COMPILE_COST, CEILINGS),
    *(MEASURE, DISCREPANCY, REST, OBSERVATION, VERDICT),
    *(EXPECTATION, PLANNED, OWN, LOCATION, PLACE, ENVIRONMENT, SHARD, JUDGE, PLAN),
    *(REQUEST, CELL_TASK, LISTED),
    tasks.Nothing(),
    tasks.Listing((LISTED,)),
    tasks.ReferenceTask("merge", LOCATION, 3, ("fp32", "bf16"), "/path", for_timing=True),
    tasks.ReferenceResult("invalid", "a message", {"/a/file.py": "00ff"}, {"WIDTH": "00ff"}, "00ff"),
    tasks.MadeReference(
        *(1.5, observation.Observation("invalid", message="a message")),
        *({"/a/file.py": "00ff"}, {"WIDTH": "00ff"}, "00ff"),
        kept=True,
    ),
    tasks.CompileTask(CELL_TASK, "/cache"),
    tasks.TimingTask((CELL_TASK,), "forward", 2, 1.5, keep_samples=True),
    tasks.CeilingsTask("cpu", ("fp32",)),
    *(SEEN, PROBE),
    probes.ProbesRequest("zoo.probes", "cpu"),
    probes.ProbeList((PROBE,), ENVIRONMENT),
    FINDING,
    probes.ProbeRun(ENVIRONMENT, "cpu", (FINDING,)),
    probes.ProbeTask("zoo.probes.p", "cpu", "/cache"),
    probes.ProbeSighting("saw", "a symptom"),
)
