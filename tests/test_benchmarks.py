"""``python -m benchmarks``: it measures what it says, and its page has what a run gave. No test judges a figure."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from websockets.frames import Opcode
from websockets.protocol import Protocol, Side

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks import budgets, page  # noqa: E402
from benchmarks.__main__ import BENCHMARKS, OTHERS, main  # noqa: E402
from benchmarks.effort import SMOKE, Effort  # noqa: E402
from benchmarks.load import (  # noqa: E402
    Round,
    WrongAnswer,
    closing,
    drive,
    frame,
    open_http,
    open_websocket,
    payload_of,
    percentile,
    post,
)
from benchmarks.mcp_calls import CALL, HANDSHAKE, MODERN, fastmcp, opened  # noqa: E402
from benchmarks.pairs import Measured, Pair, take_turns  # noqa: E402
from benchmarks.results import Results  # noqa: E402
from benchmarks.rows import CALLS, CPU, OURS, P50, P99, Row, Spread, compare  # noqa: E402
from benchmarks.serving import SIDES, floor, mcpenv, process_cpu_s, together, tree  # noqa: E402
from benchmarks.steps import ASYNC, FLOOR, KINDS, rows_of  # noqa: E402
from benchmarks.tables import cells, number_of, tables  # noqa: E402

PAGE = ROOT / "docs" / "performance.md"
PUBLISHED = ROOT / "docs" / "performance.json"
"""The run whose figures are on the page."""


# -- turns


def test_a_process_tree_is_read_while_its_threads_come_and_go() -> None:
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            brief = threading.Thread(target=time.time)
            brief.start()
            brief.join()

    busy = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in busy:
        thread.start()
    try:
        assert all(os.getpid() in tree(os.getpid()) for _ in range(300))
    finally:
        over.set()
        for thread in busy:
            thread.join()


def test_both_sides_of_a_pair_come_first_as_often_and_do_the_same_in_a_round() -> None:
    order: list[tuple[str, int]] = []

    def side(name: str, cost: float, number: int) -> Measured:
        order.append((name, number))
        return Measured(cost, cost)

    pair = take_turns((lambda number: side("without", 1.0, number), lambda number: side("with", 2.0, number)), 4)
    assert [name for name, _ in order[2:]] == ["without", "with", "with", "without"] * 2
    assert [number for _, number in order[2:]] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert pair.ratios(lambda measured: measured.wall_s) == [2.0] * 4 and isinstance(pair, Pair)


class Metronome:
    """The side whose calls all take the same time."""

    def __init__(self, name: str, call_s: float, order: list[str]) -> None:
        self.name, self.call_s, self.order = name, call_s, order

    async def play(self, seconds: float) -> Round:
        self.order.append(self.name)
        return Round(10, 10 * self.call_s, 5 * self.call_s, [self.call_s] * 9 + [2 * self.call_s])

    def resident_kib(self) -> int:
        return 2048


def test_sides_of_a_row_take_turns_after_a_round_that_is_thrown_away() -> None:
    order: list[str] = []
    sides = {OURS: Metronome("ours", 0.001, order), "peer": Metronome("peer", 0.004, order)}
    row = asyncio.run(compare("path", "load", sides, replace(SMOKE, rounds=4)))
    assert [order[begin] for begin in (2, 4, 6, 8)] == ["ours", "peer", "peer", "ours"]
    assert row.sides[OURS] == pytest.approx({CALLS: 1000, P50: 1, P99: 2, CPU: 500, "MiB": 2})
    assert row.ratios["peer"][CALLS].middle == pytest.approx(4)
    assert row.ratios["peer"][CPU].middle == pytest.approx(0.25)


def test_each_side_begins_as_often_and_comes_after_each_other() -> None:
    order: list[str] = []
    names = ["a", "b", "c", "d"]
    asyncio.run(
        compare("path", "load", {name: Metronome(name, 0.001, order) for name in names}, replace(SMOKE, rounds=8))
    )
    rounds = [order[begin : begin + 4] for begin in range(4, 36, 4)]
    assert all(sorted(each) == names for each in rounds)
    assert sorted(each[0] for each in rounds) == sorted(names * 2)
    before = {one: {first for first, second in itertools.pairwise(order) if second == one} for one in names}
    assert all(len(others - {one}) >= 2 for one, others in before.items())


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile([3.0], 99)) == (50.0, 99.0, 3.0)


def test_processor_time_of_another_process_counts_its_threads_that_ended() -> None:
    before = process_cpu_s(os.getpid())

    def burn() -> None:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass

    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()
    assert process_cpu_s(os.getpid()) - before >= 0.05


# -- the load generator


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 100_000])
def test_frames_are_what_a_websocket_server_reads(size: int) -> None:
    server = Protocol(Side.SERVER, max_size=None)
    payload = bytes(number % 251 for number in range(size))
    server.receive_data(frame(payload, kind=0x82))
    (received,) = server.events_received()
    assert (received.opcode, received.data) == (Opcode.BINARY, payload)  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 100_000])
def test_frames_of_a_server_are_whole_when_all_of_them_has_come(size: int) -> None:
    client = Protocol(Side.SERVER)
    client.send_text(b"x" * size)
    whole = b"".join(client.data_to_send())
    start, end = payload_of(whole)
    assert whole[start:end] == b"x" * size and end == len(whole)
    assert all(payload_of(whole[:come])[1] > come for come in {0, 1, 2, 3, 4, 9, end - 1} if come < end)


@pytest.mark.slow
def test_every_kind_of_step_is_scored_beside_a_floor_whose_answers_are_as_long() -> None:
    with ExitStack() as stack:
        servers = together(stack, {OURS: mcpenv(SIDES / "mcpenv_tools.py"), FLOOR: floor()})
        rows = drive(rows_of(servers, SMOKE))
        assert [row.path for row in rows] == [f"/ws step, {kind.name}" for kind in KINDS]
        for row in rows:
            assert list(row.sides) == [OURS, FLOOR]
            assert all(figure > 0 for figures in row.sides.values() for figure in figures.values())
            assert row.ratios[FLOOR][CPU].middle > 0

        async def lengths() -> tuple[int, int]:
            ours, echo = await open_websocket(servers[OURS].ws), await open_websocket(f"{servers[FLOOR].ws}?bytes=321")
            async with closing([ours, echo]):
                with pytest.raises(WrongAnswer):
                    await ours.ask(frame(b"{"), ASYNC.mark)
                await ours.ask_often(frame(ASYNC.step), ASYNC.mark, times=7, ahead=3)
                state = await ours.ask(frame(b'{"type":"state"}'))
                assert b'"step_count":7' in state
                return len(await echo.ask(frame(b"{}"))), len(await echo.ask(frame(b"x" * 70_000)))

        assert drive(lengths()) == (321, 321)


@pytest.mark.process
def test_requests_of_both_eras_are_answered_whatever_the_framing() -> None:
    async def call(base: str, era: str, progress: bool) -> list[bytes]:
        url = f"{base}/mcp"
        async with closing([connection := await open_http(url)]):
            request = await opened(connection, url, era, replace(CALL, progress=progress))
            return [await connection.ask(request, CALL.mark) for _ in range(3)]

    ours = mcpenv(SIDES / "mcpenv_mcp.py", "--set", "tools=3", "--set", "sync=false")
    for side in (ours, fastmcp(3, "async", "usual")):
        with side as server:
            for era in (MODERN, HANDSHAKE):
                for progress in (False, True):
                    answers = drive(call(server.base, era, progress))
                    assert all(b'"result":{' in answer for answer in answers)
                    assert [answer.startswith(b"{") for answer in answers] == [era == MODERN] * 3


def test_a_request_says_how_long_it_is() -> None:
    head, _, body = post("http://127.0.0.1:1/a?b=c", b"{}", {"x-one": "1"}).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /a?b=c HTTP/1.1\r\nhost: 127.0.0.1:1\r\n") and b"content-length: 2" in head
    assert b"x-one: 1" in head and body == b"{}"


# -- budgets


def results_of(**rows: list[Row]) -> Results:
    return Results("full", "2026-01-01", "a machine", 0.0, {}, rows)


@pytest.mark.parametrize(("over", "verdict"), [(0.0, "met"), (0.01, "not met")])
def test_a_budget_is_met_up_to_its_limit(over: float, verdict: str) -> None:
    budget = next(budget for budget in budgets.BUDGETS if budget.what == "server CPU, times the floor")
    assert budget.at_most is not None
    times = budget.at_most + over
    row = Row(budget.path, budget.load, {OURS: {CPU: 1.0}}, {FLOOR: {CPU: Spread(0.5, times, 9.0)}})
    assert budget.judged(results_of(steps=[row])) == (times, verdict)


def test_a_budget_that_holds_both_ways_is_left_on_both_sides() -> None:
    budget = next(budget for budget in budgets.BUDGETS if budget.at_least and budget.at_most)
    for growth, verdict in ((0.97, "not met"), (0.99, "met"), (1.03, "not met")):
        row = Row(budget.path, budget.load, {OURS: {"MiB, ratio": growth}})
        assert budget.judged(results_of(sessions=[row]))[1] == verdict


def test_what_was_not_measured_meets_nothing() -> None:
    lines = budgets.cells(results_of())
    assert len(lines) == len(budgets.BUDGETS) + 1 and {line[-1] for line in lines[1:]} == {"not measured"}


# -- tables and the page


def test_rows_with_other_figures_stand_in_another_table() -> None:
    rows = [
        Row("a", "1 client", {OURS: {CALLS: 1234.5}, "peer": {CALLS: 0.1234}}, {"peer": {CALLS: Spread(1, 2, 3)}}),
        Row("b", "2 clients", {OURS: {CALLS: 5}}),
        Row("c", "1", {OURS: {"wall ms": 1}}),
    ]
    assert [len(table) for table in tables(rows)] == [4, 2]
    assert cells(rows[:1]) == [
        ["path", "load", "side", CALLS, "ratio, calls/s"],
        ["a", "1 client", OURS, "1,234", ""],
        ["", "", "peer", "0.123", "2 (1-3)"],
    ]
    assert (number_of(99.94), number_of(100.4), number_of(3.0)) == ("99.9", "100", "3")


def test_the_page_has_a_place_for_every_answer() -> None:
    assert set(page.names_on(PAGE)) == {"run", "speed", "memory", "larger", "waiting", "budgets"}


def test_the_page_has_the_figures_of_the_published_run_and_no_others(tmp_path: Path) -> None:
    written = tmp_path / "page.md"
    shutil.copy(PAGE, written)
    page.write(written, Results.read(PUBLISHED))
    assert written.read_text() == PAGE.read_text()


def test_an_answer_whose_rows_were_not_measured_stays_on_the_page(tmp_path: Path) -> None:
    written = tmp_path / "page.md"
    written.write_text("<!-- figures: speed -->\nold\n<!-- end -->\n")
    page.write(written, results_of(inside=[Row("a", "1", {OURS: {CALLS: 5.0}})]))
    assert written.read_text() == "<!-- figures: speed -->\nold\n<!-- end -->\n"


def test_every_side_of_every_published_row_has_figures() -> None:
    published = Results.read(PUBLISHED)
    assert set(published.rows) == set(BENCHMARKS) and set(published.others) == set(OTHERS)
    for rows in published.rows.values():
        assert len({(row.path, row.load) for row in rows}) == len(rows) > 0
        for row in rows:
            assert OURS in row.sides
            for figures in row.sides.values():
                assert figures and all(math.isfinite(figure) for figure in figures.values())


def test_results_are_the_same_after_they_were_kept(tmp_path: Path) -> None:
    published = Results.read(PUBLISHED)
    published.write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == PUBLISHED.read_text()


def test_rows_that_are_missing_or_new_fail_a_run_that_shall_have_those_of_another() -> None:
    published = Results.read(PUBLISHED)
    assert published.unlike(published) == []
    row = published.rows["inside"][0]
    lacking = replace(published, rows={**published.rows, "inside": published.rows["inside"][1:]})
    assert lacking.unlike(published) == [f"inside has no row {row.path!r} with {', '.join(row.sides)}"]
    assert published.unlike(lacking) == [f"inside has a new row {row.path!r} with {', '.join(row.sides)}"]


def test_a_benchmark_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "there is no benchmark 'nothing'" in capsys.readouterr().err


def test_what_cannot_be_measured_fails_the_run_and_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    row = Row("a", "1", {OURS: {CALLS: 5.0}})

    def broken(effort: Effort) -> list[Row]:
        raise RuntimeError("the peer did not start")

    monkeypatch.setattr("benchmarks.__main__.BENCHMARKS", {"broken": broken, "sound": lambda effort: [row]})
    with pytest.raises(SystemExit) as ended:
        main(["--smoke", "--json", str(tmp_path / "kept.json")])
    assert ended.value.code == 1 and capsys.readouterr().err.endswith("broken could not be measured\n")
    assert Results.read(tmp_path / "kept.json").rows == {"sound": [row]}


@pytest.mark.process
def test_the_command_reads_a_run_and_prints_its_budgets() -> None:
    command = [sys.executable, "-m", "benchmarks", "--read", str(PUBLISHED)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "in-process step, async tool" in ended.stdout and "/ws step, sessions held at once" in ended.stdout
