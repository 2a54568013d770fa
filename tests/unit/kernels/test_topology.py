"""Machines that are not this one, as trees of files: what is discovered, and where threads are put."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.kernels.placement import Placement, default_threads, fill_order, place, share_out
from headrace.kernels.topology import Cache, Processor, Topology, discover, parse_list, usable


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def server(root: Path, nodes: int = 2, cores: int = 4, threads: int = 2) -> Path:
    """A machine whose kernel counts first threads of all cores first, as most do."""
    total = nodes * cores * threads
    write(root / "cpu/online", f"0-{total - 1}\n")
    members: dict[int, list[str]] = {node: [] for node in range(nodes)}
    for number in range(total):
        core, node = number % (nodes * cores) % cores, number % (nodes * cores) // cores
        members[node].append(str(number))
        write(root / f"cpu/cpu{number}/topology/core_id", f"{core}\n")
        write(root / f"cpu/cpu{number}/topology/physical_package_id", f"{node}\n")
    write(root / "node/online", f"0-{nodes - 1}\n" if nodes > 1 else "0\n")
    for node, processors in members.items():
        write(root / f"node/node{node}/cpulist", ",".join(processors) + "\n")
    for index, (level, kind, size, shared) in enumerate(
        [
            (1, "Data", "48K", "0,8"),
            (1, "Instruction", "32K", "0,8"),
            (2, "Unified", "2048K", "0,8"),
            (3, "Unified", "32M", "0-3"),
        ]
    ):
        folder = root / f"cpu/cpu0/cache/index{index}"
        write(folder / "level", f"{level}\n")
        write(folder / "type", f"{kind}\n")
        write(folder / "size", f"{size}\n")
        write(folder / "shared_cpu_list", f"{shared}\n")
    return root


def test_a_server_with_two_nodes_and_two_threads_a_core(tmp_path: Path) -> None:
    found = discover(server(tmp_path), tmp_path / "none")
    assert (len(found.processors), found.num_cores, found.nodes, found.quota) == (16, 8, (0, 1), None)
    assert found.processors[5] == Processor(5, core=1, package=1, node=1, thread=0)
    assert found.processors[13] == Processor(13, core=1, package=1, node=1, thread=1)
    assert found.caches[-1] == Cache(3, "unified", 32 << 20, 4)
    assert [cache.kind for cache in found.caches] == ["data", "instruction", "unified", "unified"]


def test_a_machine_that_hides_everything_has_one_processor(tmp_path: Path) -> None:
    assert discover(tmp_path, tmp_path).processors == (Processor(0, 0, 0, 0, 0),)


def test_odd_files_are_no_error(tmp_path: Path) -> None:
    root = server(tmp_path / "a", nodes=1, cores=2, threads=1)
    write(root / "cpu/cpu1/topology/core_id", "-1\n")
    write(root / "cpu/cpu1/topology/physical_package_id", "who knows")
    write(root / "node/node0/cpulist", "0-,x,1\n")
    write(root / "cpu/cpu0/cache/index0/size", "lots")
    found = discover(root, tmp_path)
    assert [each.id for each in found.processors] == [0, 1]
    assert [cache.level for cache in found.caches] == [1, 2, 3]


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "100000 0\n"}, None),
    ],
)
def test_a_control_groups_quota_bounds_the_threads(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    for name, text in files.items():
        write(tmp_path / "group" / name, text)
    found = discover(server(tmp_path / "system", nodes=1), tmp_path / "group")
    assert found.quota == quota
    assert default_threads(found) == (8 if quota is None else int(quota))


def test_a_quota_below_one_processor_still_gives_a_thread(tmp_path: Path) -> None:
    write(tmp_path / "cpu.max", "50000 100000")
    assert default_threads(discover(server(tmp_path / "system"), tmp_path)) == 1


@pytest.mark.parametrize(("text", "numbers"), [("0-2,7", [0, 1, 2, 7]), ("", []), ("3\n", [3]), ("a,1-b,-,2", [2])])
def test_lists_of_numbers(text: str, numbers: list[int]) -> None:
    assert parse_list(text) == numbers


def test_cores_come_before_second_threads_and_a_node_before_the_next(tmp_path: Path) -> None:
    found = discover(server(tmp_path), tmp_path)
    assert [each.id for each in fill_order(found)] == [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15]
    assert place(found, 3, "auto") == Placement((0, 1, 2), (0,))
    assert place(found, 6, "auto") == Placement((0, 1, 2, 3, 4, 5), (0, 1))
    assert place(found, 10, "auto").processors == (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)


def test_a_mask_that_leaves_one_node_keeps_to_it(tmp_path: Path) -> None:
    found = discover(server(tmp_path), tmp_path).only([5, 6, 13])
    assert place(found, 2, "cores") == Placement((5, 6), ())
    assert place(found, 3, "cores").processors == (5, 6, 13)


def test_nothing_is_bound_without_need_or_without_room(tmp_path: Path) -> None:
    one = discover(server(tmp_path / "a", nodes=1), tmp_path)
    two = discover(server(tmp_path / "b"), tmp_path)
    assert place(one, 4, "auto") == place(two, 4, "none") == place(two, 17, "cores") == Placement()
    assert place(one, 2, "cores") == Placement((0, 1), ())


def test_ranks_spread_over_nodes_and_share_no_processor(tmp_path: Path) -> None:
    two = discover(server(tmp_path), tmp_path)
    assert share_out(two, [4, 4], "auto") == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert share_out(two, [2, 2, 2], "auto") == [(0, 1), (4, 5), (2, 3)]
    assert share_out(two, [6, 2], "auto") == [(0, 1, 2, 3, 8, 9), (4, 5)]
    assert sorted(sum(share_out(two, [7, 5, 4], "cores"), ())) == list(range(16))


def test_what_a_rank_was_given_is_where_its_threads_go(tmp_path: Path) -> None:
    two = discover(server(tmp_path), tmp_path)
    for part in share_out(two, [6, 6, 4], "cores"):
        assert sorted(place(two.only(part), len(part), "cores").processors) == list(part)


def test_ranks_are_bound_only_where_an_engine_alone_would_be(tmp_path: Path) -> None:
    one = discover(server(tmp_path / "a", nodes=1), tmp_path)
    two = discover(server(tmp_path / "b"), tmp_path)
    assert (
        share_out(one, [2, 2], "auto") == share_out(two, [2, 2], "none") == share_out(two, [9, 9], "cores") == [(), ()]
    )
    assert share_out(one, [2, 2], "cores") == [(0, 1), (2, 3)]


def test_this_machine_can_be_discovered() -> None:
    assert isinstance(usable(), Topology)
    assert usable().processors
