"""Goals over files as such: move, delete, compare, pack and unpack."""

from __future__ import annotations

import hashlib
import io
import tarfile

from mcpenv.extensions.generated_worlds import Goal, answered

from ..disk import Disk, goal, lines, quoted, run
from ..names import NOTES, PEOPLE, SERVICES, THINGS
from .kind import Kind


def tar_of(members: dict[str, str]) -> bytes:
    """Return an archive with these files. Equal members make equal bytes."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, text in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(text.encode())
            tar.addfile(about, io.BytesIO(text.encode()))
    return archive.getvalue()


def notes_of(d: Disk, count: int) -> dict[str, str]:
    """Return texts by names, which have blanks from level 3 on."""
    found: dict[str, str] = {}
    while len(found) < count:
        name = (
            f"{d.rng.choice(NOTES)} {d.rng.randint(2, 99)}"
            if d.level > 2
            else f"{d.rng.choice(THINGS)}-{d.rng.randint(2, 99)}"
        )
        found[f"{name}.txt"] = f"{d.rng.choice(PEOPLE)}: {d.code()}\n"
    return found


def _sort_by_year(d: Disk) -> Goal:
    folder = d.folder("scans")
    moves: dict[str, list[str]] = {}
    for name, text in notes_of(d, d.scaled(4, 16)).items():
        year = str(d.rng.randint(2021, 2024))
        path = f"{folder}/{year}-{d.rng.randint(10, 12)}-{name}"
        d.put(path, text)
        d.want_moved(path, f"{folder}/{year}/{path.rpartition('/')[2]}")
        moves.setdefault(year, []).append(path)
    prompt = (
        f"Move each file in {folder} into a folder for the year with which its name begins, such as {folder}/2020 for "
        "2020-05-letter.txt, under the name that it has"
    )
    change = "; ".join(f"mkdir -p {folder}/{year} && mv {folder}/{year}-* {folder}/{year}/" for year in moves)
    return goal(prompt, [run(f"ls {folder}"), run(change)], [])


def _delete_temporary(d: Disk) -> Goal:
    folder = d.folder("work")
    for n, (name, text) in enumerate(notes_of(d, d.scaled(6, 20)).items()):
        path = f"{folder}/{('', 'a/', 'a/b/')[n % 3]}{name.removesuffix('.txt')}"
        kind = (".tmp", ".txt", ".tmp.txt", ".tmp")[n % 4]
        d.put(path + kind, text)
        if kind == ".tmp":
            d.want_gone(path + kind)
    prompt = f"Delete the files below {folder} whose names end with .tmp. Leave folders, also empty ones"
    return goal(prompt, [run(f"find {folder}"), run(f"find {folder} -type f -name '*.tmp' -delete")], [])


def _delete_but_kept(d: Disk) -> Goal:
    folder = d.folder("work")
    doomed, kept = [], []
    for n, (name, text) in enumerate(notes_of(d, d.scaled(5, 16)).items()):
        path = f"{folder}/{name.removesuffix('.txt')}.tmp"
        if n % 4 == 1:
            d.put(path, f"{text}# frozen\n")
            kept.append(path)
        else:
            d.put(path, text)
            d.want_gone(path)
            doomed.append(path)
    prompt = f"Delete the .tmp files in {folder}"
    return goal(
        prompt,
        [run("cat README.txt"), run(f"grep -lx '# frozen' {folder}/*.tmp"), run(f"rm {quoted(*doomed)}")],
        [],
        breach=[run(f"rm {folder}/*.tmp")],
    )


def _repeated(d: Disk) -> Goal:
    folder = d.folder("photos")
    notes = notes_of(d, d.scaled(5, 14))
    names, texts = sorted(notes), list(notes.values())
    seen: dict[str, str] = {}
    doomed = []
    for n, name in enumerate(names):
        text = texts[n % max(2, len(names) * 2 // 3)]
        d.put(f"{folder}/{name}", text)
        if text in seen:
            d.want_gone(f"{folder}/{name}")
            doomed.append(f"{folder}/{name}")
        seen[text] = name
    prompt = (
        f"Some files in {folder} have the same content. Of those that are equal, keep the one whose name is the first "
        "in the order of bytes, and delete the others"
    )
    return goal(prompt, [run(f"sha256sum {folder}/* | sort"), run(f"rm {quoted(*doomed)}")], [])


def _largest(d: Disk) -> Goal:
    folder = d.folder("media")
    sizes = d.rng.sample(range(20, 4000), d.scaled(5, 20))
    names = [f"{each.removesuffix('.txt')}.bin" for each in notes_of(d, len(sizes))]
    for n, (name, size) in enumerate(zip(names, sizes, strict=True)):
        d.put(f"{folder}/{'deep/' if n % 2 else ''}{name}", "x" * size)
    reply, change = answered(names[sizes.index(max(sizes))])
    look = f"find {folder} -type f -exec wc -c {{}} + | sort -n | tail -3"
    return goal(
        f"Which is the largest file below {folder}? Answer with its name, without the folder",
        [run(look), reply],
        [change],
    )


def _checksums(d: Disk) -> Goal:
    folder = d.folder("delivery")
    notes = notes_of(d, d.scaled(4, 16))
    spoilt = d.rng.choice(list(notes))
    sums = []
    for name, text in notes.items():
        sums.append(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}")
        d.put(f"{folder}/{name}", text.replace(":", ";") if name == spoilt else text)
    d.put(f"{folder}/SHA256SUMS", lines(sums))
    reply, change = answered(spoilt)
    look = f"cd {folder} && sha256sum -c SHA256SUMS | grep -v OK$"
    return goal(
        f"Which file in {folder} does not have its checksum in {folder}/SHA256SUMS? Answer with its name, without the "
        "folder",
        [run(look), reply],
        [change],
    )


def _unpack_one(d: Disk) -> Goal:
    folder = d.folder("backup")
    notes = notes_of(d, d.scaled(4, 20))
    wanted = d.rng.choice(list(notes))
    d.put(f"{folder}/backup.tar", tar_of({f"home/{name}": text for name, text in notes.items()}))
    d.put(f"{folder}/keep.txt", "keep\n")
    d.want(f"{folder}/{wanted}", notes[wanted])
    prompt = (
        f"Restore the file home/{wanted} of the archive {folder}/backup.tar as {folder}/{wanted}. Restore nothing else"
    )
    change = f"tar -xOf {folder}/backup.tar {quoted(f'home/{wanted}')} > {quoted(f'{folder}/{wanted}')}"
    return goal(prompt, [run(f"tar -tf {folder}/backup.tar"), run(change)], [])


def _which_archive(d: Disk) -> Goal:
    folder, code = d.folder("backup"), d.code()
    names = [f"{name}.tar" for name in d.sample(SERVICES, d.scaled(3, 7))]
    chosen = d.rng.choice(names)
    for name in names:
        notes = {f"home/{each}": text for each, text in notes_of(d, 4).items()}
        if name == chosen:
            notes[d.rng.choice(list(notes))] = f"note {code}\n"
        else:
            notes[d.rng.choice(list(notes))] = f"note {code}0\n"
        d.put(f"{folder}/{name}", tar_of(notes))
    reply, change = answered(chosen)
    look = f"for f in {folder}/*.tar; do tar -xOf $f | grep -qx 'note {code}' && echo $f; done"
    prompt = (
        f'Which .tar file in {folder} has a member whose content is exactly the line "note {code}"? Answer with its '
        "name, without the folder, such as some.tar"
    )
    return goal(prompt, [run(look), reply], [change])


def _pack_listed(d: Disk) -> Goal:
    folder = d.folder("parcel")
    notes = notes_of(d, d.scaled(4, 14))
    for name, text in notes.items():
        d.put(f"{folder}/{name}", text)
    chosen = sorted(d.rng.sample(list(notes), len(notes) // 2))
    d.put(f"{folder}/LIST", lines(chosen))
    d.want(f"{folder}/parcel.tar", tar_of({name: notes[name] for name in chosen}))
    prompt = (
        f"Pack the files in {folder} that {folder}/LIST names into the archive {folder}/parcel.tar, not compressed, "
        "with their names as LIST has them, without the folder. Keep the files"
    )
    change = f"cd {folder} && tar -cf parcel.tar {quoted(*chosen)}"
    return goal(prompt, [run(f"cat {folder}/LIST"), run(change)], [])


FAMILIES = (
    Kind("sort-by-year", "places", 1, ("many", "blanks"), _sort_by_year),
    Kind("delete-temporary", "places", 1, ("many", "blanks"), _delete_temporary),
    Kind("delete-but-not-frozen", "places", 1, ("many", "trap"), _delete_but_kept),
    Kind("delete-repeated", "places", 1, ("many", "blanks"), _repeated),
    Kind("largest-file", "places", 1, ("answer",), _largest),
    Kind("wrong-checksum", "places", 1, ("answer",), _checksums),
    Kind("restore-one", "places", 1, ("archive", "blanks"), _unpack_one),
    Kind("which-archive", "places", 2, ("archive", "answer", "hops"), _which_archive),
    Kind("pack-listed", "places", 2, ("archive", "hops", "blanks"), _pack_listed),
)
