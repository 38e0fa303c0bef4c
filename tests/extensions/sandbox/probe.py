"""Try inside of a sandbox everything that it should prevent, and report what succeeded.

Standard library only. ``found(outside)`` returns the names of the probes that succeeded. `test_bubblewrap` runs it in
each sandbox, as a script or as code of a verifier. Out of a sandbox it refuses, but for probes that are named to it:
root would do harm.
"""
# mypy: ignore-errors

import ctypes
import errno
import json
import os
import socket
import stat
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
ARM = os.uname().machine == "aarch64"
CALLS = {  # numbers on x86-64 and on ARM
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "chroot": (161, 51),
    "fsopen": (430, 430), "init_module": (175, 105), "io_uring_setup": (425, 425), "kexec_load": (246, 104),
    "keyctl": (250, 219), "mount": (165, 40), "msgget": (68, 186), "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241), "reboot": (169, 142), "setdomainname": (171, 162), "sethostname": (170, 161),
    "shmget": (29, 194), "swapon": (167, 224), "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97),
    "userfaultfd": (323, 282),
}  # fmt: skip
NEWNS, NEWUSER, NEWNET = 0x20000, 0x10000000, 0x40000000


def call(name, *arguments):
    """Call the kernel. Raise OSError if it refuses."""
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    answer = libc.syscall(CALLS[name][ARM], *words)
    if answer < 0:
        raise OSError(ctypes.get_errno(), name)
    return answer


def permitted(name, *arguments):
    """Make a call that is permitted only to who may do harm, with arguments that do none."""
    try:
        call(name, *arguments)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            raise


def in_child(*calls):
    """Make calls in a process of their own."""
    child = os.fork()
    if child == 0:
        try:
            for each in calls:
                call(*each)
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise OSError("failed in the child")


def reads(path, flags=os.O_RDONLY):
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    try:
        return os.read(descriptor, 1 << 20)
    finally:
        os.close(descriptor)


def opens(path, flags=os.O_WRONLY):
    os.close(os.open(path, flags | os.O_NONBLOCK))


def rewrites(path):
    """Write a file the value that it has."""
    value = reads(path)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, value)
    finally:
        os.close(descriptor)


def require(truth):
    if not truth:
        raise OSError("not so")


def connects(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as made:
        made.settimeout(5)
        made.connect(address)


def status(name):
    for line in reads("/proc/self/status").decode().splitlines():
        if line.startswith(name + ":"):
            return line.split()[1]
    raise OSError(name)


def files_of_the_kernel():
    """Yield the files below /proc, but for those of processes, and /sys."""
    for top in ("/proc", "/sys"):
        for folder, folders, files in os.walk(top):
            if folder == "/proc":
                folders[:] = [each for each in folders if not each.isdecimal() and each not in ("self", "thread-self")]
            for path in (os.path.join(folder, each) for each in files):
                if not os.path.islink(path):
                    yield path


def opens_any_for_writing(paths):
    opened = []
    for path in paths:
        try:
            opens(path)
        except OSError:
            continue
        opened.append(path)
    require(opened)
    return opened[:5]


def makes_device(folder, kind, number):
    path = os.path.join(folder, "probe-device")
    os.mknod(path, 0o600 | kind, number)
    os.unlink(path)


def makes_cgroup():
    made = []
    for each in ("", "/unified", "/pids"):
        try:
            os.mkdir(f"/sys/fs/cgroup{each}/probe")
            made.append(os.rmdir(f"/sys/fs/cgroup{each}/probe"))
        except OSError:
            continue
    require(made)


def makes_file(path):
    opens(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.unlink(path)


def key_of_outside(description):
    serial = call("keyctl", 10, -3, b"user", description.encode(), 0)  # KEYCTL_SEARCH in the session keyring
    call("keyctl", 11, serial, ctypes.create_string_buffer(64), 64)  # KEYCTL_READ
    return serial


def finds_process(seconds):
    """Find the program ``sleep SECONDS`` that runs outside."""
    for each in os.listdir("/proc"):
        if each.isdecimal():
            try:
                if reads(f"/proc/{each}/cmdline") == b"sleep\0%d\0" % seconds:
                    return
            except OSError:
                continue
    raise OSError("none")


def pushes_into_terminal():
    import fcntl

    for descriptor in (0, 1, 2):
        try:
            fcntl.ioctl(descriptor, 0x5412, b" ")  # TIOCSTI
            return
        except OSError:
            continue
    fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), 0x5412, b" ")


def runs_with_more_rights():
    """Run a copy of a program with a set user id bit; only useful for users other than root."""
    require(status("NoNewPrivs") == "0")


def uring():
    parameters = ctypes.create_string_buffer(120)
    os.close(call("io_uring_setup", 1, parameters))


def perf():
    attributes = ctypes.create_string_buffer(struct.pack("=IIQ", 0, 112, 0).ljust(112, b"\0"))
    attributes.raw = struct.pack("=II", 0, 112).ljust(112, b"\0") + b"\0"
    os.close(call("perf_event_open", attributes, -1, 0, -1, 0))


def probes(outside):
    mounting = ("mount", b"none", os.getcwd().encode(), b"tmpfs", 0, 0), ("umount2", os.getcwd().encode(), 2)
    folders = [each for each in ("/tmp", "/dev", "/dev/shm", "/var/tmp", os.getcwd()) if os.path.isdir(each)]
    token = outside["token"]
    yield "a file of /proc or /sys opens for writing", lambda: opens_any_for_writing(files_of_the_kernel())
    for name in ("kernel/printk_ratelimit", "kernel/core_pattern", "vm/drop_caches", "net/ipv4/ip_forward"):
        yield f"/proc/sys/{name} is written", lambda name=name: opens(f"/proc/sys/{name}")
    yield "/proc/sys/kernel/printk_ratelimit is rewritten", lambda: rewrites("/proc/sys/kernel/printk_ratelimit")
    yield "/proc/sysrq-trigger", lambda: opens("/proc/sysrq-trigger")
    for name in ("kcore", "kmsg", "keys", "timer_list", "slabinfo", "vmallocinfo", "kpagecount", "pagetypeinfo"):
        yield (
            f"/proc/{name} is read",
            lambda name=name: (
                opens(f"/proc/{name}", os.O_RDONLY) or require(not stat.S_ISCHR(os.stat(f"/proc/{name}").st_mode))
            ),
        )
    yield "/proc/kallsyms has addresses", lambda: require(int(reads("/proc/kallsyms").split()[0], 16))
    yield "/proc/iomem has addresses", lambda: require(int(reads("/proc/iomem").split(b"-")[1].split()[0], 16))
    for path in ("/sys/firmware/efi", "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/devices/virtual/powercap"):
        yield f"{path} is listed", lambda path=path: require(os.listdir(path))
    yield "a cgroup is made", makes_cgroup
    yield "a process joins a cgroup", lambda: opens("/sys/fs/cgroup/cgroup.procs")
    yield "an agent of cgroups is set", lambda: opens("/sys/fs/cgroup/systemd/release_agent")
    yield (
        "a parameter of a module is set",
        lambda: opens_any_for_writing(
            os.path.join(folder, each) for folder, _, files in os.walk("/sys/module") for each in files
        ),
    )
    yield "power is controlled", lambda: opens("/sys/power/state")
    yield "a file is made in /sys", lambda: makes_file("/sys/probe")
    yield "another process is found", lambda: finds_process(outside["seconds"])
    yield "another process is signalled", lambda: [finds_process(outside["seconds"]), os.kill(outside["pid"], 0)]
    yield "the first process is the machine's", lambda: require(os.stat("/proc/1/ns/pid").st_ino == 0xEFFFFFFC)
    yield (
        "the variables of the first process have a token",
        lambda: require(token.encode() in reads("/proc/1/environ")),
    )
    for folder in folders:
        disk, memory = os.makedev(7, 250), os.makedev(1, 1)
        yield f"a block device in {folder}", lambda f=folder, n=disk: makes_device(f, stat.S_IFBLK, n)
        yield f"a character device in {folder}", lambda f=folder, n=memory: makes_device(f, stat.S_IFCHR, n)
    for name in ("mem", "kmsg", "port", "kvm", "fuse", "net/tun", "vsock", "vhost-vsock", "loop-control", "vda", "sda"):
        yield f"/dev/{name} opens", lambda name=name: opens(f"/dev/{name}", os.O_RDONLY)
    for name in ("userfaultfd", "input/event0", "tty1", "ttyS0", "console", "rtc0", "hwrng", "cpu_dma_latency"):
        yield f"/dev/{name} opens", lambda name=name: opens(f"/dev/{name}", os.O_RDONLY | os.O_NOCTTY)
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        yield f"permissions of /dev/{name} change", lambda name=name: os.chmod(f"/dev/{name}", 0o666)
        yield f"times of /dev/{name} change", lambda name=name: os.utime(f"/dev/{name}")
    yield "the terminal opens", lambda: opens("/dev/tty", os.O_RDWR)
    yield "input for the terminal", pushes_into_terminal
    yield "a terminal of others opens", lambda: [opens(f"/dev/pts/{number}", os.O_RDWR) for number in range(1, 4)]
    yield (
        "a capability",
        lambda: require(any(int(status(each), 16) for each in ("CapPrm", "CapEff", "CapAmb"))),
    )
    yield "programs gain rights by their files", runs_with_more_rights
    yield "mount", lambda: in_child(*mounting)
    yield "mount by the newer calls", lambda: in_child(("fsopen", b"tmpfs", 0))
    yield "a mount becomes writable", lambda: in_child(("mount", 0, b"/proc/sys", 0, 4096 | 32, 0))
    yield "unmount", lambda: in_child(("umount2", b"/proc/sys", 2))
    yield "a user namespace", lambda: in_child(("unshare", NEWUSER))
    yield "mount in a user namespace", lambda: in_child(("unshare", NEWUSER | NEWNS), *mounting)
    yield "a network namespace", lambda: in_child(("unshare", NEWNET))
    yield "another root folder", lambda: in_child(("chroot", b"/tmp"))
    yield "the host name", lambda: permitted("sethostname", b"", -1)
    yield "the domain name", lambda: permitted("setdomainname", b"", -1)
    yield "the time", lambda: permitted("adjtimex", ctypes.create_string_buffer(struct.pack("=I", 0x4000), 256))
    yield "a module of the kernel", lambda: permitted("init_module", b"", 0, b"")
    yield "another kernel", lambda: permitted("kexec_load", 0, 0, 0, -1)
    yield "a restart", lambda: permitted("reboot", 0, 0, 0)
    yield "swap", lambda: permitted("swapon", b"/nowhere", 0)
    yield "accounting", lambda: permitted("acct", b"/nowhere")
    yield "a higher priority", lambda: os.nice(-5)
    yield "real-time scheduling", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    yield "the log of the kernel", lambda: require(call("syslog", 3, ctypes.create_string_buffer(1 << 16), 1 << 16))
    yield "a program in the kernel", lambda: call("bpf", 5, ctypes.create_string_buffer(128), 128)
    yield "a ring of calls", uring
    yield "counters of the processor", perf
    yield "page faults of the kernel", lambda: os.close(call("userfaultfd", 0))
    yield "a key of the session outside", lambda: key_of_outside(outside["key"])
    yield "a key is added", lambda: call("add_key", b"user", b"probe", b"x", 1, -3)
    yield "a raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    yield "a packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    yield "a socket to the hypervisor", lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    yield "a socket of the kernel's ciphers", lambda: socket.socket(38, socket.SOCK_SEQPACKET).close()
    yield "the audit log", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9).bind((0, 1))
    yield "an abstract socket outside", lambda: connects(socket.AF_UNIX, "\0" + outside["abstract"])
    yield "a port of the loopback", lambda: connects(socket.AF_INET, ("127.0.0.1", outside["port"]))
    yield "a socket in a temporary folder", lambda: connects(socket.AF_UNIX, outside["socket"])
    for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock", "/run/dbus/system_bus_socket"):
        yield f"{path} answers", lambda path=path: connects(socket.AF_UNIX, path)
    yield "shared memory of System V", lambda: call("shmget", outside["ipc"], 0, 0)
    yield "a queue of System V", lambda: call("msgget", outside["ipc"], 0)
    yield "shared memory of POSIX", lambda: reads("/dev/shm/" + outside["mark"])
    yield "a file in a temporary folder", lambda: reads(outside["file"])
    yield "a socket in another folder", lambda: connects(socket.AF_UNIX, outside["other_socket"])
    yield "a file in the home folder", lambda: reads(outside["home_file"])
    yield "a file in the home folder is written", lambda: opens(outside["home_file"])
    yield "a file that only root reads", lambda: reads("/etc/shadow")
    yield "a file by its handle", lambda: call("open_by_handle_at", 3, struct.pack("=II", 8, 1) + bytes(128), 0)
    yield "the variables have a token", lambda: require(any(token in each for each in os.environ.values()))
    yield "descriptors of the machine's files", lambda: inherited(outside)
    yield "a crash starts a program outside", dumps_core
    yield "a system file is written", lambda: opens("/usr/bin/env")
    yield "a file is made in a system folder", lambda: makes_file("/usr/probe")


def inherited(outside):
    names = []
    for each in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{each}"))
        except OSError:
            continue
    found = [each for each in names if each.startswith("/") and not each.startswith(("/dev/", "/proc/"))]
    require(any(outside["mark"] in each for each in found))


def dumps_core():
    """Tell if a crash starts the machine's handler of core dumps, which a limit of 1 prevents."""
    import resource

    require(reads("/proc/sys/kernel/core_pattern")[:1] in b"|@")
    require(resource.getrlimit(resource.RLIMIT_CORE)[1] != 1)


def is_inside(namespaces):
    """Return True if this process has not all of the machine's namespaces of processes and users."""
    return [os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "user")] != namespaces


def found(outside):
    """Return the probes that succeeded, and the number of those that failed."""
    only, done, failed = outside.get("only"), [], 0
    if only is None and not is_inside(outside["namespaces"]):
        raise SystemExit("not in a sandbox")
    for name, attempt in probes(outside):
        if only is not None and name not in only:
            continue
        try:
            attempt()
        except BaseException:  # noqa: BLE001 - a sandbox may lack what a probe needs
            failed += 1
        else:
            done.append(name)
    return {"done": done, "failed": failed}


def verify(task, before, after, changes):
    """Run the probes as code of a verifier, whose task has what is outside in its metadata."""
    return found(task)


if __name__ == "__main__":
    print(json.dumps(found(json.loads(sys.argv[1]))))
