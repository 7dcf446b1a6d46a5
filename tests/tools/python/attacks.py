"""Attacks on the sandbox, for `test_escapes.py`: snippets that show ESCAPED where they get what they want."""

import platform

# Lines that many attacks begin with. `syscall(name, ...)` gives -1 where the kernel refuses.
PRELUDE = """
import ctypes, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
"""

# name -> (snippet, pattern that the whole observation must contain). $NAMES stand for things of the host.
ATTACKS = {
    # --- network
    "connect_to_the_internet": ("socket.create_connection(('1.1.1.1', 53), 1); print('ESCAPED')", "unreachable"),
    "connect_to_a_local_service": (
        "print('ESCAPED', socket.create_connection(('127.0.0.1', $PORT), 1))",
        "unreachable",
    ),
    "look_up_a_name": ("print('ESCAPED', socket.gethostbyname('example.com'))", "gaierror"),
    "send_a_datagram": (
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53)); print('ESCAPED')",
        "unreachable",
    ),
    "connect_to_an_abstract_socket": (
        "s = socket.socket(socket.AF_UNIX); s.connect('\\x00$ABSTRACT'); print('ESCAPED')",
        "ConnectionRefusedError",
    ),
    "connect_to_a_socket_file": (
        "s = socket.socket(socket.AF_UNIX); s.connect('$FOLDER/socket'); print('ESCAPED')",
        "FileNotFoundError",
    ),
    "talk_to_the_hypervisor": ("socket.socket(40, socket.SOCK_STREAM); print('ESCAPED')", "Address family"),
    "open_a_raw_socket": (
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print('ESCAPED')",
        "PermissionError",
    ),
    "configure_the_network": ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW); print('ESCAPED')", "Address family"),
    # --- reading
    "read_a_file_of_the_home_folder": ("print('ESCAPED', open('$HOME').read())", "FileNotFoundError"),
    "list_places_of_secrets": (
        "for path in ('/root/.ssh', '/home', '/etc/shadow', '/etc/passwd', '/run', '/var', '/sys', '/root/.cache',\n"
        "             '$REPOSITORY/README.md', '$FOLDER', '/etc/ssl', '/etc/hosts', '/etc/environment'):\n"
        "    print(path, 'ESCAPED' if os.path.lexists(path) else 'hidden')",
        "(.*hidden\n?){13}",
    ),
    "read_the_own_environment": (
        "environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, 'environ')\n"
        "pairs = []\n"
        "while environ[len(pairs)]: pairs.append(environ[len(pairs)].decode())\n"
        "print('ESCAPED' if any('$SECRET' in pair for pair in pairs) else sorted(p.split('=')[0] for p in pairs))",
        r"\['MKL_NUM_THREADS', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS'\]",
    ),
    "read_the_environment_of_processes": (
        "import glob\n"
        "files = glob.glob('/proc/*/environ')\n"
        "for file in files:\n"
        "    try:\n"
        "        if '$SECRET' in open(file, errors='replace').read(): print('ESCAPED')\n"
        "    except OSError: pass\n"
        "print(len(files), 'files')",
        "0 files",
    ),
    "walk_out_through_proc": (
        "for path in ('/proc/1/root', '/proc/self/root/root', '/proc/1/cwd', '/proc/self/mem', '/proc/1/mem',\n"
        "             '/proc/self/exe', '/proc/sys/kernel', '/proc/sysrq-trigger', '/proc/self/mountinfo'):\n"
        "    print('ESCAPED' if os.path.lexists(path) else 'hidden')",
        "(hidden\n?){9}",
    ),
    "walk_up_from_the_working_directory": (
        "os.chdir('../' * 40); print(open('$HOME'[1:]).read(), 'ESCAPED')",
        "FileNotFoundError",
    ),
    "become_a_shell": (
        "print(flush=True); os.execv('/bin/sh', ['sh', '-c', 'cat $HOME && echo ESCAPED; ls / | grep -x -c home'])",
        "No such file",
    ),
    # --- writing
    "write_outside": (
        "found = []\n"
        "for top, folders, _ in os.walk('/'):\n"
        "    if top.count('/') > 2: folders.clear()\n"
        "    if not top.startswith('/snippet'):\n"
        "        try: open(top + '/written', 'x'); found.append(top)\n"
        "        except OSError: pass\n"
        "print('ESCAPED' if found else 'nowhere', found)",
        "nowhere",
    ),
    "write_to_a_folder_of_the_host": ("open('$FOLDER/written', 'w').write('x'); print('ESCAPED')", "FileNotFoundError"),
    "write_through_a_symbolic_link": (
        "os.symlink('/', 'link'); os.symlink('$FOLDER', 'folder')\n"
        "for path in ('link/usr/written', 'link/etc/written', 'folder/written', 'link/written'):\n"
        "    try: open(path, 'w'); print('ESCAPED')\n"
        "    except OSError as error: print('refused')",
        "(refused\n?){4}",
    ),
    "keep_a_file_by_a_hard_link": (
        "os.link(sys.executable or '/usr/bin/env', 'mine'); print('ESCAPED')",
        "OSError|Permission",
    ),
    "change_the_interpreter": ("os.chmod(os.__file__, 0o777); print('ESCAPED')", "Read-only|PermissionError"),
    "make_a_device": (
        "import stat\nos.mknod('disk', stat.S_IFBLK | 0o600, os.makedev(8, 0)); print('ESCAPED')",
        "Permission",
    ),
    "fill_the_working_directory": (
        "try:\n"
        "    for number in range(100): open(str(number), 'wb').write(b'x' * 2 ** 20)\n"
        "except OSError as error: print(error)\n"
        "print('ESCAPED' if number > 8 else 'full')",
        "No space left.*\nfull",
    ),
    "fill_tmp_and_shared_memory": (
        "total = 0\n"
        "for folder in ('/tmp', '/dev/shm', '/var/tmp', '/run', '/dev', '/'):\n"
        "    try:\n"
        "        for number in range(100):\n"
        "            total += open(f'{folder}/{number}-{len(folder)}', 'wb').write(b'x' * 2 ** 20)\n"
        "    except OSError as error: pass\n"
        "print('ESCAPED' if total > 8 * 2 ** 20 else 'full')",
        "full",
    ),
    "write_a_huge_file": ("open('f', 'wb').truncate(2 ** 40); print('ESCAPED')", "too large"),
    "use_up_the_inodes": (
        "try:\n"
        "    for number in range(10 ** 6): os.mkdir(f'{number}')\n"
        "except OSError as error: print(error)\n"
        "print('ESCAPED' if number > 5000 else 'full')",
        "No space left.*\nfull",
    ),
    "nest_folders_too_deep_to_remove": (
        "for _ in range(3000): os.mkdir('x' * 200); os.chdir('x' * 200)\nos.chmod('..', 0); print('nested')",
        "nested",
    ),
    # --- processes, memory, time
    "fork_bomb": ("while True: os.fork()", "BlockingIOError|time-out"),
    "fork_bomb_that_goes_on": (
        "count = 0\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)",
        "time-out",
    ),
    "more_processes_than_allowed": (
        "children = 0\n"
        "try:\n"
        "    while children < 100:\n"
        "        if os.fork() == 0: time.sleep(60)\n"
        "        children += 1\n"
        "except OSError: pass\n"
        "print('ESCAPED' if children > 16 else 'held', children)",
        "held 1[0-9]",
    ),
    "thread_bomb": (
        "import threading\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
        "Error|time-out",
    ),
    "memory_bomb": ("x = []\nwhile True: x.append(bytearray(2 ** 20))", "MemoryError|MiB of memory|time-out"),
    "memory_bomb_of_many_processes": (
        "for _ in range(8):\n"
        "    if os.fork() == 0:\n"
        "        x = bytearray(b'x') * (100 * 2 ** 20); time.sleep(60)\n"
        "time.sleep(60)",
        "more than 128 MiB of memory",
    ),
    "memory_in_anonymous_files": ("os.memfd_create('x'); print('ESCAPED')", "PermissionError"),
    "memory_that_stays": (
        "print('refused' if libc.shmget(0, 1 << 20, 0o1600) == -1 else 'ESCAPED')",
        "refused",
    ),
    "share_memory_that_no_process_maps_any_longer": (  # of 100 MiB a piece, and each leaves one page in its space
        "libc.mmap.restype = ctypes.c_void_p\n"
        "for flags in (0x21, 0x23):\n"
        "    kept = libc.mmap(None, 1 << 20, 3, flags, -1, 0)\n"
        "    print('refused' if kept == 2 ** 64 - 1 else 'ESCAPED')",
        "(refused\n?){2}",
    ),
    "share_memory_through_a_device": ("os.open('/dev/zero', os.O_RDWR); print('ESCAPED')", "FileNotFoundError"),
    "memory_in_pipes": ("print('refused' if libc.vmsplice(1, None, 0, 0) == -1 else 'ESCAPED')", "refused"),
    "memory_in_sockets": (
        "for _ in range(12):\n"
        "    if os.fork() == 0: break\n"
        "kept = []\n"
        "for _ in range(28):\n"
        "    time.sleep(0.005); kept += socket.socketpair()\n"
        "    for end in kept[-2:]:\n"
        "        end.setblocking(False); end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)\n"
        "        try:\n"
        "            while True: end.send(bytes(1 << 16))\n"
        "        except BlockingIOError: pass\n"
        "time.sleep(60)",
        "more than 128 MiB of memory",
    ),
    "use_up_what_all_users_share": (
        "number, context = {'x86_64': 206, 'aarch64': 0}[os.uname().machine], ctypes.c_ulong(0)\n"
        "print('refused' if libc.syscall(number, 1, ctypes.byref(context)) == -1 else 'ESCAPED')\n"
        "print('refused' if libc.inotify_init1(0) == -1 else 'ESCAPED')",
        "(refused\n?){2}",
    ),
    "endless_loop": ("while True: pass", "time-out"),
    "endless_sleep": ("time.sleep(1000)", "time-out"),
    "ignore_every_signal": (
        "for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "while True: pass",
        "time-out|SIGKILL",
    ),
    "catch_the_limit_of_cpu": (
        "signal.signal(signal.SIGXCPU, lambda *_: print('caught'))\nwhile True: pass",
        "time-out|SIGKILL",
    ),
    "stop_itself": ("os.kill(os.getpid(), signal.SIGSTOP)", "time-out"),
    "raise_the_own_limits": (
        "import resource\n"
        "for name in ('AS', 'NPROC', 'FSIZE', 'CPU', 'NOFILE', 'CORE'):\n"
        "    try: resource.setrlimit(getattr(resource, 'RLIMIT_' + name), (-1, -1)); print('ESCAPED')\n"
        "    except (ValueError, OSError): print('refused')",
        "(refused\n?){6}",
    ),
    # --- the worker and other processes
    "kill_the_parent": (
        "try: os.kill(os.getppid(), signal.SIGKILL)\n"
        "except PermissionError: pass\n"
        "time.sleep(0.1); print('parent', os.getppid())",
        "parent 1",
    ),
    "kill_everybody": ("os.kill(-1, signal.SIGKILL)", "ProcessLookupError"),
    "send_the_parent_every_signal": (
        "for number in signal.valid_signals():\n"
        "    try: os.kill(1, number)\n"
        "    except PermissionError: pass\n"
        "print('sent')",
        "sent",
    ),
    "signal_a_process_of_the_host": ("os.kill($VICTIM, 0); print('ESCAPED')", "ProcessLookupError"),
    "trace_the_worker": ("print('refused' if libc.ptrace(16, 1, 0, 0) == -1 else 'ESCAPED')", "refused"),
    "read_the_memory_of_the_worker": (
        "data = ctypes.create_string_buffer(8)\n"
        "part = (ctypes.c_void_p * 2)(ctypes.addressof(data), 8)\n"
        "print('refused' if libc.process_vm_readv(1, part, 1, part, 1, 0) == -1 else 'ESCAPED')",
        "refused",
    ),
    "limit_the_worker": (
        "import resource\nresource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)); print('ESCAPED')",
        "PermissionError",
    ),
    "slow_the_worker_down": (
        "for attempt in (lambda: os.setpriority(os.PRIO_PROCESS, 1, 19), lambda: os.sched_setaffinity(1, {0}),\n"
        "                lambda: os.setpriority(os.PRIO_USER, 0, 19)):\n"
        "    try: attempt(); print('ESCAPED')\n"
        "    except PermissionError: print('refused')",
        "(refused\n?){3}",
    ),
    # --- privileges
    "become_root": (
        "for attempt in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgid(0),\n"
        "                lambda: os.setgroups([0])):\n"
        "    try: attempt(); print('ESCAPED')\n"
        "    except OSError: print('refused')\n"
        "print(os.getuid(), 'no new privileges', libc.prctl(39, 0, 0, 0, 0))",
        "(refused\n){4}1000 no new privileges 1",
    ),
    "mount": (
        "for call in (lambda: libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None), lambda: libc.umount2(b'/snippet', 2),\n"
        "             lambda: libc.mount(None, b'/usr', None, 0x1020, None), lambda: libc.umount2(b'/usr', 2)):\n"
        "    print('refused' if call() == -1 else 'ESCAPED')",
        "(refused\n?){4}",
    ),
    "list_the_mounts_of_the_host": (  # listmount and statmount: newer than some kernels, so refused by their number
        "for number in (458, 457):\n"
        "    asked = (ctypes.c_uint64 * 3)(24, 2 ** 64 - 1, 0)\n"
        "    count = libc.syscall(number, asked, ctypes.create_string_buffer(800), 100, 0)\n"
        "    print('refused' if count == -1 and ctypes.get_errno() == 38 else 'ESCAPED')",
        "(refused\n?){2}",
    ),
    "change_the_root": ("os.mkdir('new'); os.chroot('new'); print('ESCAPED')", "PermissionError"),
    "make_a_user_namespace": (
        "print('refused' if libc.unshare(0x10000000) == -1 else 'ESCAPED')\n"
        "numbers = {'x86_64': 56, 'aarch64': 220}\n"
        "pid = libc.syscall(numbers[os.uname().machine], 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)\n"
        "print('refused' if pid == -1 else 'ESCAPED')\n"
        "print('refused' if libc.syscall(435, bytes(64), 64) == -1 and ctypes.get_errno() == 38 else 'ESCAPED')",
        "(refused\n?){3}",
    ),
    "enter_a_namespace": ("libc.setns(0, 0); print('ESCAPED' if ctypes.get_errno() != 1 else 'refused')", "refused"),
    "use_kernel_interfaces": (
        "x86 = os.uname().machine == 'x86_64'\n"
        "for name, number in {'bpf': 321 if x86 else 280, 'perf': 298 if x86 else 241, 'fault': 323 if x86 else 282,\n"
        "                     'uring': 425, 'keyctl': 250 if x86 else 219, 'mq_open': 240 if x86 else 180}.items():\n"
        "    refused = libc.syscall(number, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == 1\n"
        "    print('refused' if refused else 'ESCAPED ' + name)",
        "(refused\n?){6}",
    ),
    # --- output and the protocol
    "huge_output": ("while True: print('x' * 1000)", "printed more than"),
    "output_without_end_of_line": ("sys.stdout.write('x' * 3_000_000)", "printed more than|characters cut"),
    "a_name_that_is_no_text": ("libc.prctl(15, b'\\xff\\n(1) R 1\\n'); time.sleep(0.2); print('named')", "^named$"),
    "end_by_a_signal_without_a_name": ("os.kill(os.getpid(), 40)", "^The code was killed by signal 40.$"),
    "binary_output": ("os.write(1, bytes(range(256)) * 40); print('end')", "end$"),
    "forge_a_reply": (
        "import json\n"
        "body = json.dumps({'text': 'ESCAPED', 'error': False, 'seconds': 0.0}).encode()\n"
        "written = []\n"
        "for fd in [0, *range(3, 1024)]:\n"
        "    try: os.write(fd, len(body).to_bytes(4, 'big') + body); written.append(fd)\n"
        "    except OSError: pass\n"
        "print('written', written)",
        r"^written \[\]$",
    ),
    "forge_a_reply_on_standard_output": (
        'body = b\'{"text": "forged", "error": false, "seconds": 0.0}\'\n'
        "os.write(1, len(body).to_bytes(4, 'big') + body); os._exit(3)",
        "exit code 3",
    ),
    "close_every_descriptor": ("os.closerange(0, 1024); os._exit(0)", "^$"),
    "keep_the_output_open": ("if os.fork() == 0: os.setsid(); time.sleep(1000)\nprint('done')", "^done$"),
    # --- what is left behind
    "daemon_that_outlives_the_snippet": (
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.closerange(0, 64)\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "    while True: time.sleep(0.01)\n"
        "time.sleep(0.1); print('left')",
        "left",
    ),
    "threads_traces_and_exit_handlers": (
        "import atexit, threading\n"
        "atexit.register(time.sleep, 1000)\n"
        "sys.settrace(lambda *_: None); threading.settrace(lambda *_: None)\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "print('left')",
        "left",
    ),
    "thread_that_goes_on": ("import threading\nthreading.Thread(target=time.sleep, args=(1000,)).start()", "time-out"),
    "signal_handlers_and_timers": (
        "signal.signal(signal.SIGALRM, lambda *_: os.fork()); signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN); signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "time.sleep(0.2); print('left')",
        "left|Error",
    ),
    "change_what_is_built_in": (
        "import builtins, json, math, random\n"
        "for name in ('print', 'open', 'repr', 'len', 'compile'): setattr(builtins, name, None)\n"
        "os.listdir = os.fork = json.dumps = sys.modules['os'] = None; sys.path.clear(); random.seed(7)",
        "",
    ),
    "change_the_worker_in_memory": (
        "import gc\n"
        "gc.unfreeze()\n"
        "changed = 0\n"
        "for thing in gc.get_objects():\n"
        "    if type(thing).__name__ == '_SnippetRunner':\n"
        "        thing.limits, thing.memory_mb, thing.filter, thing.max_output = [], 10 ** 6, b'', 1\n"
        "        changed += 1\n"
        "print('changed', changed)",
        "changed [1-9]",
    ),
    "poison_later_processes": (
        "os.putenv('LD_PRELOAD', '/tmp/evil.so'); os.environ['PYTHONPATH'] = '/tmp'\n"
        "for name in ('numpy.py', 'sitecustomize.py', '/tmp/numpy.py'): open(name, 'w').write('print(\"ESCAPED\")')\n"
        "print('left')",
        "left",
    ),
    # --- crashes
    "pickle_that_runs_a_command": (
        "import pickle\n"
        "class Evil:\n"
        "    def __reduce__(self): return os.system, ('id > $FOLDER/written && echo ESCAPED; kill -9 1',)\n"
        "pickle.loads(pickle.dumps(Evil())); print('loaded')",
        "loaded",
    ),
    "value_whose_text_is_code": (
        "class Evil:\n    def __repr__(self): os.kill(1, signal.SIGKILL); raise SystemExit(9)\nEvil()",
        "SystemExit|PermissionError",
    ),
    "deep_recursion": ("def f(): f()\nf()", "RecursionError"),
    "overflow_of_the_c_stack": (
        "sys.setrecursionlimit(10 ** 9)\nx = []\nfor _ in range(10 ** 6): x = [x]\nprint(repr(x)[:9])",
        "SIGSEGV|RecursionError|MemoryError|time-out",
    ),
    "segmentation_fault": ("ctypes.string_at(0)", "SIGSEGV"),
    "abort": ("os.abort()", "SIGABRT"),
}
if platform.machine() == "x86_64":
    ATTACKS["system_calls_of_another_abi"] = (
        "import mmap\n"
        "page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC,\n"
        "                 flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "page.write(bytes.fromhex('b814000000cd80c3'))  # mov eax, 20 (getpid); int 0x80; ret\n"
        "code = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))\n"
        "print('refused' if code() == -38 and libc.syscall(0x40000000 + 39) == -1 else 'ESCAPED')",
        "refused",
    )

# Attacks that do no harm when they succeed, as they must without isolation.
HARMLESS = (
    "connect_to_a_local_service",
    "connect_to_an_abstract_socket",
    "connect_to_a_socket_file",
    "read_a_file_of_the_home_folder",
    "list_places_of_secrets",
    "read_the_environment_of_processes",
    "walk_out_through_proc",
    "walk_up_from_the_working_directory",
    "become_a_shell",
    "write_to_a_folder_of_the_host",
    "fill_the_working_directory",
    "memory_in_anonymous_files",
    "share_memory_that_no_process_maps_any_longer",
    "use_up_what_all_users_share",
    "signal_a_process_of_the_host",
    "enter_a_namespace",
    "pickle_that_runs_a_command",
)
